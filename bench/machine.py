"""What the figures were measured on, in one line and as JSON."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from pathlib import Path
from typing import Any

import apsw

from bench.peers import PEERS, VENV, versions


def machine(folder: Path) -> dict[str, Any]:
    """`folder`: where the trials keep their files, whose file system counts."""
    packages = [need.partition("==")[0] for _, needs in PEERS.values() for need in needs]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder.resolve()),
        "python": platform.python_version(),
        "sqlite_apsw": apsw.sqlite_lib_version(),
        "sqlite_stdlib": sqlite3.sqlite_version,
        "fsyncs_per_s": round(fsyncs_per_s(folder)),
        "load_average": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
        "peers": versions(str(VENV / "bin" / "python"), packages),
    }


def told(machine: dict[str, Any]) -> str:
    """The machine in a line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores; {machine['kernel']}; {machine['file_system']}, "
        f"{machine['fsyncs_per_s']:,} fsyncs a second before and "
        f"{machine.get('fsyncs_per_s_after', 0):,} after; Python {machine['python']}; SQLite "
        f"{machine['sqlite_apsw']} (apsw), {machine['sqlite_stdlib']} (sqlite3); "
        f"load average {machine['load_average']} at the start; "
        f"{', '.join(f'{name} {version}' for name, version in machine['peers'].items())}"
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the mount that a folder is on."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    under = [mount for mount in mounts if folder.is_relative_to(mount[1])]
    return max(under, key=lambda mount: len(mount[1]))[2] if under else "unknown file system"


def fsyncs_per_s(folder: Path, seconds: float = 0.5) -> float:
    """How often a small append reaches the disk, one after the other."""
    path = folder / "fsync"
    count, begin = 0, time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while (taken := time.perf_counter() - begin) < seconds:
            file.write(b"x" * 300)
            os.fsync(file.fileno())
            count += 1
    path.unlink()
    return count / taken
