"""Who holds a lease: a string that says which process it was, exactly enough to know when it is gone.

    1234@myhost/<boot id>/<pid namespace>/<start time of the process>/<random>

Process ids are used again, so the start time is part of the name; boot id and pid namespace say where the
process id means anything. The random part tells two holders in one process apart.
"""

from __future__ import annotations

import os
import socket

from agentor.engine import clock

_UNKNOWN = "-"


def owner_id() -> str:
    """A new name for one holder in this process; no other call returns it."""
    pid = os.getpid()
    here = "/".join((_boot_id(), _pid_namespace(), _start_time(pid) or _UNKNOWN))
    return f"{pid}@{socket.gethostname()}/{here}/{clock.new_id()[:8]}"


def is_gone(owner: str) -> bool:
    """Whether the owner's process has provably ended. False when that cannot be known from here."""
    try:
        process, boot_id, namespace, start_time, _ = owner.rsplit("/", 4)
        pid = int(process.split("@", 1)[0])
    except ValueError:  # a name somebody chose for himself
        return False
    if _UNKNOWN in (boot_id, namespace, start_time):
        return False
    if (boot_id, namespace) != (_boot_id(), _pid_namespace()):
        return False
    return _start_time(pid) != start_time


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip() or _UNKNOWN


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:")
    except OSError:
        return _UNKNOWN


def _start_time(pid: int) -> str | None:
    """Clock ticks since boot at which the process started; None if it is gone, a zombie included."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
