"""The floor: a loop over apsw that commits the bodies of our run as often as our run did, and does nothing else."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw

from bench import script
from bench.slow_disk import slow_vfs

_TABLE = "CREATE TABLE events (run_id TEXT, seq INTEGER, body TEXT, PRIMARY KEY (run_id, seq))"
_INSERT = "INSERT INTO events VALUES (?, ?, ?)"


def run(folder: Path, log: Path, *, turns: int, sync_ms: float = 0) -> dict[str, Any]:
    """`log` is the folder of our run; its `measured.json` says how many commits there were."""
    commits = json.loads((log / "measured.json").read_text())["commits"]
    groups = _shared_out(_bodies(log / "runs.db"), commits)
    disk, vfs = slow_vfs(sync_ms)
    connection = apsw.Connection(str(folder / "floor.db"), vfs=vfs)
    connection.pragma("journal_mode", "WAL")
    connection.pragma("synchronous", "FULL")
    connection.execute(_TABLE)
    begin = time.perf_counter()
    for group in groups:
        connection.execute("BEGIN IMMEDIATE")
        for seq, body in group:
            connection.execute(_INSERT, (script.RUN_ID, seq, body))
        connection.execute("COMMIT")
    seconds = time.perf_counter() - begin
    connection.close()
    del disk
    return script.figures(seconds=seconds, commits=len(groups), bytes=script.size_of(folder))


def _bodies(path: Path) -> list[str]:
    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT body FROM agentor_events ORDER BY position").fetchall()
    connection.close()
    return [str(body) for (body,) in rows]


def _shared_out(bodies: list[str], commits: int) -> list[list[tuple[int, str]]]:
    """The bodies with their seqs in `commits` groups of about one size, none of them empty."""
    numbered = list(enumerate(bodies, 1))
    edges = [round(i * len(numbered) / commits) for i in range(commits + 1)]
    return [numbered[low:high] for low, high in pairwise(edges)]


KINDS = {"run": run}
