"""Deleting runs whose events forks may share.

A deleted run leaves every list in one short transaction. Then its events are taken away in steps of bounded size, from
the last one backwards, down to the highest seq that a fork needs. What is left of it after that, if anything, is a
nameless beginning for its forks: a row with `deleted_at`, which goes with the last of them. A process that is killed
between two steps, or a step that fails, leaves events behind that nobody sees: a pruning takes them all away, a delete
some of them now and then (`Leftovers`). Otherwise a sweep takes what its own runs have held, and leaves the rest to whoever
is at it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import apsw

from agentor.engine import clock
from agentor.engine.store import sqlite_leases as leases
from agentor.engine.store.protocol import Removed
from agentor.errors import RunNotFoundError, StoreError, UnfinishedDeleteError

T = TypeVar("T")
Marked: TypeAlias = tuple[list[tuple[str, int]], list[str]]  # runs with their numbers; held ones

EVENTS_PER_STEP = 1000  # and runs
PAGES_PER_STEP = 1000
LOOK_EVERY_S = 60.0  # for what others have left: it takes a scan of the runs' rows
STEPS_PER_LOOK = 10

_ALL: Final = 2**63 - 1  # what a fork may need whose parent_seq is damaged

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
_IS_RUN = "SELECT 1 FROM agentor_runs WHERE number = ? AND deleted_at IS NULL"
# Two looks into the index, however many forks there are: the first one shows a parent_seq that is NULL. To ask for that
# would find none, since SQLite knows that the column has none.
_NEEDED = f"""coalesce(
    (SELECT iif(typeof(parent_seq) = 'integer', NULL, {_ALL})
     FROM agentor_runs WHERE parent = r.run_id ORDER BY parent_seq LIMIT 1),
    (SELECT max(parent_seq) FROM agentor_runs WHERE parent = r.run_id), 0)"""
_SHARED = "iif(typeof(parent_seq) = 'integer', parent_seq, 0)"
_DELETED = f"""
SELECT number, parent, needed, needed > {_SHARED}
FROM (SELECT number, parent, parent_seq, {_NEEDED} AS needed FROM agentor_runs AS r
      WHERE run_id = :run_id AND deleted_at IS NOT NULL)
"""
_IS_SWEPT = f"""
SELECT last_seq <= {_NEEDED} FROM agentor_runs AS r WHERE run_id = ? AND deleted_at IS NOT NULL
"""
_TAKE = """
DELETE FROM agentor_events WHERE position IN (
    SELECT position FROM agentor_events WHERE run = :number AND seq > :needed
    ORDER BY seq DESC LIMIT :limit)
RETURNING octet_length(body)
"""
_ENDS_AT = (
    "UPDATE agentor_runs SET last_seq = :needed WHERE number = :number AND last_seq > :needed"
)
_PASS_ON = "UPDATE agentor_runs SET parent = :parent WHERE parent = :run_id"
_LEFT_BEHIND = "SELECT run_id FROM agentor_runs WHERE deleted_at IS NOT NULL"
_UNFINISHED = f"""
SELECT run_id FROM (
    SELECT run_id, parent_seq, last_seq, {_NEEDED} AS needed
    FROM agentor_runs AS r WHERE deleted_at IS NOT NULL)
WHERE last_seq > needed OR {_SHARED} >= needed
"""
_NUMBER = "SELECT number FROM agentor_runs WHERE run_id = ?"
_FORKS = f"""
SELECT number, parent, iif(typeof(parent_seq) = 'integer', parent_seq, {_ALL})
FROM agentor_runs WHERE parent IS NOT NULL
"""
_WEIGHT = """
SELECT count(*), coalesce(sum(octet_length(body)), 0) FROM agentor_events WHERE run = ? AND seq > ?
"""


class Perform(Protocol):
    """How a store reads, or writes in a commit of its own."""

    def __call__(self, operation: Callable[[apsw.Connection], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """What one step has taken, and the runs that are still to be swept."""

    run_ids: list[str]
    events: int
    bytes: int
    pages: int  # of the file that are free now


class Leftovers:
    """When one store looks for what deletes have left that were killed or failed, and how much of it a delete takes.

    Not at each delete, and never all: it may be much, and somebody may be at it.
    """

    def __init__(self) -> None:
        self._look_at = -math.inf

    def look_soon(self) -> None:
        self._look_at = -math.inf

    def take_some(self, read: Perform, write: Perform) -> None:
        """Up to STEPS_PER_LOOK steps, if it is time. What fails here has failed for nobody: the rest is left once more."""
        now = clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        with contextlib.suppress(StoreError):
            run_ids = read(unfinished)
            for _ in range(STEPS_PER_LOOK):
                if run_ids:
                    run_ids = write(partial(step, run_ids=run_ids)).run_ids
                elif not write(vacuum_step):
                    return


@dataclass(slots=True)
class Sweep:
    """Deleted runs whose events are still to be taken away, and what was done so far."""

    run_ids: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    events: int = 0
    bytes: int = 0
    pages: float = 0  # to be given back

    def removed(self) -> Removed:
        return Removed(self.deleted, self.held, self.events, self.bytes)

    @contextlib.contextmanager
    def told(self, leftovers: Leftovers) -> Iterator[None]:
        """Whatever fails once runs are deleted is told as that, and not as if nothing had been done."""
        try:
            yield
        except StoreError as error:
            if not isinstance(error, RunNotFoundError):
                leftovers.look_soon()
            if not self.deleted:
                raise
            raise UnfinishedDeleteError(self.removed(), str(error)) from error

    def mark(
        self, operation: Callable[[apsw.Connection], Marked], read: Perform, write: Perform
    ) -> None:
        """Delete what the operation marks. If its commit fails, what is deleted nevertheless is noted as that."""
        marked: list[tuple[str, int]] = []

        def noted(connection: apsw.Connection) -> list[str]:
            found, held = operation(connection)
            marked.extend(found)
            return held

        try:
            self.held += write(noted)
        except StoreError as error:
            self.deleted += _gone(marked, error, read)
            raise
        self.deleted += [run_id for run_id, _ in marked]

    def take_away(self, write: Perform) -> None:
        """The events of the runs, then as many free pages as these leave."""
        while self.run_ids:
            taken = write(partial(step, run_ids=self.run_ids))
            self.run_ids = taken.run_ids
            self.events += taken.events
            self.bytes += taken.bytes
            self.pages += taken.pages
        while self.pages > 0 and write(vacuum_step):
            self.pages -= PAGES_PER_STEP


def _gone(marked: list[tuple[str, int]], error: StoreError, read: Perform) -> list[str]:
    """Those that are no runs any more: a disk may fail when it has the commit, and so may the look at the file after it."""
    if not marked:
        return []

    def look(connection: apsw.Connection) -> list[str]:
        return [
            run_id
            for run_id, number in marked
            if connection.execute(_IS_RUN, (number,)).get is None
        ]

    try:
        return read(look)
    except StoreError:
        named = ", ".join(repr(run_id) for run_id, _ in marked[:5]) + ", ..." * (len(marked) > 5)
        raise StoreError(
            f"{error}. It is not known whether that deleted {named}: once the store can be read again, look which runs are there"
        ) from error


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


def mark_one(connection: apsw.Connection, run_id: str) -> Marked:
    mark(connection, run_id)
    return [(run_id, connection.execute(_NUMBER, (run_id,)).get)], []


def mark_chosen(connection: apsw.Connection, chosen: list[tuple[str, float]]) -> Marked:
    """Mark those that have not changed since they were chosen at `(run_id, updated_at)`; and those that are held."""
    marked, held = [], []
    for run_id, is_held in _unchanged(connection, chosen):
        if is_held:
            held.append(run_id)
        else:
            marked += mark_one(connection, run_id)[0]
    return marked, held


def _unchanged(
    connection: apsw.Connection, chosen: list[tuple[str, float]]
) -> Iterator[tuple[str, bool]]:
    """Those that are as they were chosen, and whether they are held. A damaged id is found by nobody."""
    for run_id, updated_at in chosen:
        if connection.execute(_UNCHANGED, (run_id, updated_at)).get is not None:
            yield run_id, leases.is_held(connection, run_id)


def step(connection: apsw.Connection, run_ids: list[str]) -> Taken:
    """Take away up to EVENTS_PER_STEP events, of as many runs at most."""
    waiting, sizes = list(run_ids), list[int]()
    room = EVENTS_PER_STEP
    before = connection.pragma("freelist_count")
    while waiting and room > 0:
        taken, parent, is_done = _take(connection, waiting[-1], room)
        sizes += taken
        room -= max(len(taken), 1)
        if is_done:
            waiting.pop()
            waiting.extend([parent] if parent is not None else [])
    return Taken(waiting, len(sizes), sum(sizes), connection.pragma("freelist_count") - before)


def _take(
    connection: apsw.Connection, run_id: str, limit: int
) -> tuple[list[int], str | None, bool]:
    """Sizes of the events taken; the parent, if its events may now be needed less; and whether that was all."""
    found: Any = connection.execute(_DELETED, {"run_id": run_id}).get
    if found is None:
        return [], None, True
    number, parent, needed, has_own = found
    bindings = {"number": number, "needed": needed, "limit": limit}
    rows: list[Any] = connection.execute(_TAKE, bindings).fetchall()
    sizes: list[int] = [size for (size,) in rows]
    if len(sizes) == limit:
        return sizes, None, False
    if has_own:
        connection.execute(_ENDS_AT, {"number": number, "needed": needed})
        return sizes, None, True
    # If the parent is not swept yet, somebody is at it, or has left it: what is there is not ours alone.
    is_ours = connection.execute(_IS_SWEPT, (parent,)).get
    # Nothing of its own is left: its forks are forks of its parent, at the same seqs.
    connection.execute(_PASS_ON, {"parent": parent, "run_id": run_id})
    connection.execute("DELETE FROM agentor_runs WHERE run_id = ?", (run_id,))
    return sizes, parent if is_ours else None, True


def free_id(connection: apsw.Connection, run_id: str) -> None:
    """Let a new run have the id of a deleted one. What is left of that goes under a name no run can have.

    This is part of somebody's append: of a long run that is half deleted it takes away one step, and leaves the rest.
    """
    if connection.execute(_DELETED, {"run_id": run_id}).get is None:
        return
    step(connection, [run_id])
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
        found = list(_unchanged(connection, chosen))
        held = [run_id for run_id, is_held in found if is_held]
        run_ids = [run_id for run_id, is_held in found if not is_held]
        numbers = {
            run_id: connection.execute(_NUMBER, (run_id,)).get
            for run_id in [*run_ids, *left_behind(connection)]
        }
        going = {run_id: number for run_id, number in numbers.items() if number is not None}
        needed = _needed(going, connection.execute(_FORKS).fetchall())
        weights: list[Any] = [
            connection.execute(_WEIGHT, (number, needed.get(run_id, 0))).get
            for run_id, number in going.items()
        ]
    return Removed(run_ids, held, sum(n for n, _ in weights), sum(size for _, size in weights))


def _needed(going: dict[str, int], forks: list[Any]) -> dict[str, int]:
    """Of each run that has forks: the highest seq that a fork which stays needs. Runs that go have numbers."""
    needed: dict[str, int] = {}
    parents = {number: (parent, parent_seq) for number, parent, parent_seq in forks}
    for child in parents.keys() - set(going.values()):
        seq = _ALL
        while child in parents:
            parent, parent_seq = parents[child]
            seq = _ALL if parent_seq == _ALL else min(seq, parent_seq)
            if needed.get(parent, 0) >= seq:
                break  # this far down, somebody else needs as much
            needed[parent] = seq
            if parent not in going:
                break  # it stays, and is asked for itself
            child = going[parent]
    return needed
