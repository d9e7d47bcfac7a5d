"""Deleting runs whose events forks may share.

A deleted run leaves every list in one short transaction. Then its events are taken away in steps of bounded size, from
the last one backwards, down to the highest seq that a fork needs. What is left of it after that, if anything, is a
nameless beginning for its forks: a row with `deleted_at`, which goes with the last of them. A process that is killed
between two steps, or a step that fails, leaves events behind that nobody sees; the next delete or pruning of the file
takes them away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import apsw

from agentor.engine import clock
from agentor.engine.store import sqlite_leases as leases
from agentor.engine.store.protocol import Removed
from agentor.errors import RunNotFoundError, StoreError, UnfinishedDeleteError

EVENTS_PER_STEP = 1000
PAGES_PER_STEP = 1000

_MARK = """
UPDATE agentor_runs SET deleted_at = :now WHERE run_id = :run_id AND deleted_at IS NULL
RETURNING number
"""
_UNCHANGED = """
SELECT 1 FROM agentor_runs WHERE run_id = ? AND updated_at = ? AND deleted_at IS NULL
"""
_FORGET = """
DELETE FROM agentor_leases WHERE run_id = :run_id;
DELETE FROM agentor_signals WHERE run_id = :run_id;
"""
_DELETED = """
SELECT number, parent, parent_seq,
    (SELECT coalesce(max(parent_seq), 0) FROM agentor_runs WHERE parent = :run_id)
FROM agentor_runs WHERE run_id = :run_id AND deleted_at IS NOT NULL
"""
_TAKE = """
DELETE FROM agentor_events WHERE position IN (
    SELECT position FROM agentor_events WHERE run = :number AND seq > :needed
    ORDER BY seq DESC LIMIT :limit)
RETURNING octet_length(body)
"""
_PASS_ON = "UPDATE agentor_runs SET parent = :parent WHERE parent = :run_id"
_LEFT_BEHIND = "SELECT run_id FROM agentor_runs WHERE deleted_at IS NOT NULL"
_UNFINISHED = """
SELECT run_id FROM (
    SELECT run_id, parent_seq, last_seq,
        (SELECT coalesce(max(parent_seq), 0) FROM agentor_runs WHERE parent = r.run_id) AS needed
    FROM agentor_runs AS r WHERE deleted_at IS NOT NULL)
WHERE last_seq > needed OR parent_seq >= needed
"""
_FORKS = "SELECT run_id, parent, parent_seq FROM agentor_runs WHERE parent IS NOT NULL"
_WEIGHT = """
SELECT count(*), coalesce(sum(octet_length(body)), 0)
FROM agentor_events WHERE run = (SELECT number FROM agentor_runs WHERE run_id = ?) AND seq > ?
"""


@dataclass(slots=True)
class Sweep:
    """Deleted runs whose events are still to be taken away, and what was done so far."""

    run_ids: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    events: int = 0
    bytes: int = 0

    def removed(self) -> Removed:
        return Removed(self.deleted, self.held, self.events, self.bytes)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Whatever fails once runs are deleted is told as that, and not as if nothing had been done."""
        try:
            yield
        except StoreError as error:
            if not self.deleted:
                raise
            raise UnfinishedDeleteError(self.removed(), str(error)) from error


def left_behind(connection: apsw.Connection) -> list[str]:
    """Deleted runs of which something is still there: needed by forks, or not yet taken away."""
    return [str(run_id) for (run_id,) in connection.execute(_LEFT_BEHIND).fetchall()]


def unfinished(connection: apsw.Connection) -> list[str]:
    """Those of `left_behind` that a sweep has something to do about."""
    return [str(run_id) for (run_id,) in connection.execute(_UNFINISHED).fetchall()]


def mark(connection: apsw.Connection, run_id: str) -> None:
    """Make it no run any more. `RunNotFoundError`; `LeaseHeldError` while somebody works on it."""
    leases.check(connection, run_id, None)
    if connection.execute(_MARK, {"now": clock.now(), "run_id": run_id}).get is None:
        raise RunNotFoundError(run_id)
    connection.execute(_FORGET, {"run_id": run_id})


def mark_chosen(
    connection: apsw.Connection, chosen: list[tuple[str, float]]
) -> tuple[list[str], list[str]]:
    """Mark those that have not changed since they were chosen at `(run_id, updated_at)`; and those that are held."""
    marked, held = [], []
    for run_id, updated_at in chosen:
        if connection.execute(_UNCHANGED, (run_id, updated_at)).get is None:
            continue
        if leases.is_held(connection, run_id):
            held.append(run_id)
        else:
            mark(connection, run_id)
            marked.append(run_id)
    return marked, held


def step(connection: apsw.Connection, sweep: Sweep) -> None:
    """Take away up to EVENTS_PER_STEP events of the runs of the sweep."""
    # On a copy: if the transaction fails, the sweep still says what is to be done.
    waiting, taken = list(sweep.run_ids), 0
    size = 0
    while waiting and taken < EVENTS_PER_STEP:
        sizes, parent, is_done = _take(connection, waiting[-1], EVENTS_PER_STEP - taken)
        taken += len(sizes)
        size += sum(sizes)
        if is_done:
            waiting.pop()
            waiting.extend([parent] if parent is not None else [])
    sweep.run_ids = waiting
    sweep.events += taken
    sweep.bytes += size


def _take(
    connection: apsw.Connection, run_id: str, limit: int
) -> tuple[list[int], str | None, bool]:
    """Sizes of the events taken; the parent, if its events may now be needed less; and whether that was all."""
    found: Any = connection.execute(_DELETED, {"run_id": run_id}).get
    if found is None:
        return [], None, True
    number, parent, parent_seq, needed = found
    bindings = {"number": number, "needed": needed, "limit": limit}
    rows: list[Any] = connection.execute(_TAKE, bindings).fetchall()
    sizes: list[int] = [size for (size,) in rows]
    if len(sizes) == limit:
        return sizes, None, False
    if needed > parent_seq:
        connection.execute(
            "UPDATE agentor_runs SET last_seq = ? WHERE run_id = ?", (needed, run_id)
        )
        return sizes, None, True
    # Nothing of its own is left: its forks are forks of its parent, at the same seqs.
    connection.execute(_PASS_ON, {"parent": parent, "run_id": run_id})
    connection.execute("DELETE FROM agentor_runs WHERE run_id = ?", (run_id,))
    return sizes, parent, True


def free_id(connection: apsw.Connection, run_id: str) -> None:
    """Let a new run have the id of a deleted one. What is left of that goes under a name no run can have.

    This is part of somebody's append: of a long run that is half deleted it takes away one step, and leaves the rest.
    """
    if connection.execute(_DELETED, {"run_id": run_id}).get is None:
        return
    step(connection, Sweep([run_id]))
    if connection.execute(_DELETED, {"run_id": run_id}).get is None:
        return
    aside = f".{clock.new_id()}.{run_id}"
    bindings = {"aside": aside, "run_id": run_id}
    connection.execute("UPDATE agentor_runs SET run_id = :aside WHERE run_id = :run_id", bindings)
    connection.execute("UPDATE agentor_runs SET parent = :aside WHERE parent = :run_id", bindings)


def name_before(parent: str | None) -> str | None:
    """The id that a parent had before it was put aside; None if it is not known, as in files of before."""
    if parent is None or not parent.startswith("."):
        return parent
    return parent[1:].partition(".")[2] or None


def vacuum_step(connection: apsw.Connection) -> bool:
    """Give some free pages of the file back to the system; whether there are more."""
    if (
        connection.pragma("auto_vacuum") != 2
    ):  # a database of the program's own: SQLite uses the pages again
        return False
    connection.execute(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})").fetchall()
    return bool(connection.pragma("freelist_count"))


def foretold(connection: apsw.Connection, chosen: list[tuple[str, float]]) -> Removed:
    """What deleting the runs chosen would come to."""
    with connection:  # as of one moment
        held = [run_id for run_id, _ in chosen if leases.is_held(connection, run_id)]
        run_ids = [run_id for run_id, _ in chosen if run_id not in set(held)]
        going = {*run_ids, *left_behind(connection)}
        needed = _needed(going, connection.execute(_FORKS).fetchall())
        weights: list[Any] = [
            connection.execute(_WEIGHT, (each, needed.get(each, 0))).get for each in going
        ]
    return Removed(run_ids, held, sum(n for n, _ in weights), sum(size for _, size in weights))


def _needed(going: set[str], forks: list[Any]) -> dict[str, int]:
    """Of each run that has forks: the highest seq that a fork which stays needs."""
    needed: dict[str, int] = {}
    parents = {run_id: (parent, parent_seq) for run_id, parent, parent_seq in forks}
    for run_id in parents.keys() - going:
        child = run_id
        seq = None
        while child in parents:
            parent, parent_seq = parents[child]
            seq = parent_seq if seq is None else min(seq, parent_seq)
            if needed.get(parent, 0) >= seq:
                break  # this far down, somebody else needs as much
            needed[parent] = seq
            if parent not in going:
                break  # it stays, and is asked for itself
            child = parent
    return needed
