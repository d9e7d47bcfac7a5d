"""One run in one row: what `agentor runs` lists, and the head of `agentor show`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from agentor.cli.stores import looked_at
from agentor.cli.timeline import between, where_it_stands
from agentor.cli.wording import advised
from agentor.engine import events as ev
from agentor.engine.events import Event, Usage
from agentor.engine.replay import replay
from agentor.engine.store.protocol import Holder, NamesHolder, Store
from agentor.engine.store.summary import UNFINISHED, branched_from, own_times
from agentor.errors import ConfigError, LogCorruptError

DAMAGED = "damaged"
STATUSES = (
    *("completed", "max_turns", "failed", "paused", "cancelled", "budget", "deadline", "parked"),
    UNFINISHED,
)
STANDINGS = ("running", "queued")  # what an unfinished run can be besides; see `Overview.standing`


@runtime_checkable
class ListsRows(Protocol):
    """A store that keeps a row per run, so that a list of runs need not read their events."""

    def runs(
        self,
        *,
        limit: int | None = None,
        newest: bool = False,
        status: str | None = None,
        agent: str | None = None,
    ) -> Sequence[Any]: ...

    def counts(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Overview:
    """`turns` counts all model calls of the log, those of rewound turns and of a fork's parent included, as
    `usage` does. Times are seconds since the epoch; a fork began when it was branched off."""

    run_id: str
    status: str
    agent: str | None = None
    model: str | None = None
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    started_at: float | None = None
    ended_at: float | None = None
    forked_from: str | None = None
    forked_at: int | None = None
    error: str | None = None
    queued: bool = False  # nobody has begun with it yet
    worker: Holder | None = None  # who works on it now, if it is unfinished

    @property
    def standing(self) -> str:
        """The status; of an unfinished run whether it is "running", "queued", or nobody works on it."""
        if self.worker is not None:
            return "running"
        return "queued" if self.queued else self.status

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        worker = None if self.worker is None else asdict(self.worker)
        return {**values, "usage": self.usage.to_dict(), "worker": worker}

    def took(self, now: float) -> str:
        """How long it took; of an unfinished one how long it has taken until now; "" where the log does not tell."""
        if self.started_at is not None and self.ended_at is not None:
            return between(self.started_at, self.ended_at)
        if self.started_at is not None and self.status == UNFINISHED:
            return f"{between(self.started_at, now)} so far"
        return ""


def overview(run_id: str, log: Iterable[Event]) -> Overview:
    """Fold a log into its row. `LogCorruptError` if it cannot be folded."""
    log = list(log)
    state = replay(log, run_id)
    fork = ev.last_of(log, ev.FORK)
    branched_at = fork.started_at if fork else None
    started_at, ended_at = own_times(state.started_at, state.ended_at, branched_at)
    return Overview(
        run_id=run_id,
        status=where_it_stands(state),
        agent=state.agent,
        model=state.model,
        turns=sum(event.type == ev.GENERATION for event in log),
        usage=state.usage,
        started_at=started_at,
        ended_at=ended_at,
        forked_from=state.forked_from,
        forked_at=fork.forked_at if fork else None,
        error=state.error,
        queued=state.status is None and _is_queued(log),
    )


def _is_queued(log: Sequence[Event]) -> bool:
    """Whether an open run waits for somebody to begin with it. One that was let go of has been begun with."""
    start = ev.last_of(log, ev.RUN_START)
    return start is not None and bool(start.queued)


def attended(store: Store, row: Overview) -> Overview:
    """The row, and of an unfinished run who works on it, or that it waits in the queue."""
    if row.status != UNFINISHED:
        return row
    try:
        worker = store.holder(row.run_id) if isinstance(store, NamesHolder) else None
        queued = row.queued or (worker is None and row.turns == 0 and _waits(store, row.run_id))
    except ConfigError:  # damage: no run can have this id
        return row
    return replace(row, worker=worker, queued=queued, started_at=None if queued else row.started_at)


def _waits(store: Store, run_id: str) -> bool:
    try:
        return _is_queued(store.load(run_id))
    except LogCorruptError:
        return False


def overviews_of(store: Store, run_ids: Iterable[str]) -> Iterator[Overview]:
    """The rows of stored runs. A damaged one gets a row that says so, for the others should still be listed; one that has
    been deleted since it was listed gets none."""
    for run_id in run_ids:
        try:
            log = looked_at(store, run_id)
            log.warn_of_problems(run_id)
            if log.events:
                yield overview(run_id, log.events)
        except (LogCorruptError, ConfigError) as damage:
            yield Overview(run_id, DAMAGED, error=advised(str(damage)))


_IN_ROWS = tuple(name for name in Overview.__slots__ if name not in ("queued", "worker"))


def overview_of_row(row: Any) -> Overview:
    """What a store's row says."""
    told = Overview(**{name: getattr(row, name) for name in _IN_ROWS})
    parent = getattr(row, "parent", None), getattr(row, "parent_seq", 0)
    forked_from, forked_at = branched_from(*parent, told.forked_from, told.forked_at)
    return replace(told, forked_from=forked_from, forked_at=forked_at)


def as_tree(rows: Sequence[Overview]) -> Iterator[tuple[str, Overview]]:
    """Each run below the one it was forked from, if that is among the rows, with the branches to draw before it."""
    there = {row.run_id for row in rows}
    forks: dict[str | None, list[Overview]] = {}
    for row in rows:
        parent = row.forked_from if row.forked_from in there - {row.run_id} else None
        forks.setdefault(parent, []).append(row)
    told: set[str] = set()
    for row in forks.get(None, []):
        yield from _with_forks(row, forks, told)
    # What is left goes round in a circle: an id was used again. Listed all the same.
    yield from (("", row) for row in rows if row.run_id not in told)


def _with_forks(
    top: Overview, forks: dict[str | None, list[Overview]], told: set[str]
) -> Iterator[tuple[str, Overview]]:
    waiting = [("", "", top)]  # not recursive: a line of forks has any length
    while waiting:
        branch, indent, row = waiting.pop()
        told.add(row.run_id)
        yield branch, row
        children = forks.get(row.run_id, [])
        for child in reversed(children):
            is_last = child is children[-1]
            corner, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            waiting.append((indent + corner, indent + below, child))
