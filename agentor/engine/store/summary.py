"""What a run's row says of its events: worked out as they are appended, or again from all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from agentor.engine.events import (
    FORK,
    GENERATION,
    MOST,
    RUN_END,
    RUN_START,
    Event,
    RunStatus,
    Usage,
)
from agentor.engine.strict_json import clean_text
from agentor.errors import ConfigError

UNFINISHED = "unfinished"
STATUSES = (UNFINISHED, *get_args(RunStatus))  # those that we write; a log of others may tell any
_FIELDS = tuple(Usage.__slots__)
COUNTS = ("turns", *_FIELDS)  # these add up; every other column of a summary is replaced
_OPEN = {"status": UNFINISHED, "ended_at": None, "error": None}
COUNT_MAX = MOST  # where sums stay, too


def summary(events: Iterable[Event]) -> dict[str, Any]:
    """What events change of their run's row. Columns that stay as they are, are absent; counts are to be added.

    `started_at` is that of the first segment: it counts only where the row has none yet.
    """
    changes: dict[str, Any] = {}
    counts = dict.fromkeys(COUNTS, 0)
    for event in events:
        if event.type == GENERATION:
            _count(counts, event.usage or Usage())
        elif event.type == RUN_START:
            changes = _started(changes, event)
        elif event.type == RUN_END:
            status = event.status or "failed"
            changes |= {"status": status, "ended_at": event.ended_at, "error": event.error}
        elif event.type == FORK:
            changes |= {"forked_from": event.forked_from, "forked_at": event.forked_at}
            changes |= _branched(event)
    told = {name: _storable(value) for name, value in changes.items()}
    return told | {name: count for name, count in counts.items() if count}


def _storable(value: Any) -> Any:
    """As every store can keep it: valid Unicode, and None for a number that no column can hold."""
    if isinstance(value, str):
        return clean_text(value)
    return None if isinstance(value, int | float) and abs(value) > MOST else value


def own_times(
    started_at: float | None, ended_at: float | None, branched_at: float | None
) -> tuple[float | None, float | None]:
    """When a run began and ended, in epoch seconds, of when its log says so and of when its last fork was branched off.

    What a fork has inherited happened before, and is its parent's: its own times begin where it was branched off, and
    a copy of a finished run ended there.
    """
    if branched_at is None or started_at is None:
        return started_at, ended_at
    return max(started_at, branched_at), None if ended_at is None else max(ended_at, branched_at)


def branched_from(
    parent: str | None, parent_seq: int, forked_from: str | None, forked_at: int | None
) -> tuple[str | None, int | None]:
    """The run that a run was branched off from, and the last seq it has of that.

    A store may know of a `parent`, of which the run has the events up to `parent_seq`, where no fork event tells: then a
    fork event among them is one that the parent had, too, and says where that comes from.
    """
    if parent_seq > (forked_at or 0):
        return parent, parent_seq
    return forked_from, forked_at


def status_of(events: Iterable[Event]) -> str:
    """That of the last run_end; "unfinished" without one."""
    return str(summary(events).get("status", UNFINISHED))


def no_such_status(status: str) -> ConfigError:
    """For one that we never write and that no log in the store tells."""
    if status in ("running", "queued"):
        told = f"a run that is {status} has the status {UNFINISHED!r}; whether somebody works on it says store.holder(run_id)"
    else:
        told = f"give one of {', '.join(STATUSES)}"
    return ConfigError(f"status={status!r}: no run in this store has it; {told}")


def _count(counts: dict[str, int], usage: Usage) -> None:
    counts["turns"] += 1
    for name in _FIELDS:
        clamped = min(max(getattr(usage, name), 0), COUNT_MAX)
        counts[name] = min(counts[name] + clamped, COUNT_MAX)


def _branched(event: Event) -> dict[str, Any]:
    """Whoever was asked something has not answered it, whatever the parent has come to."""
    by = {"agent": event.agent} if event.agent else {}
    return by | (_OPEN if event.messages else {})


def _started(changes: dict[str, Any], event: Event) -> dict[str, Any]:
    found = {"agent": event.agent, "model": event.model}
    changes |= {name: value for name, value in found.items() if value}
    if event.started_at is not None:
        changes.setdefault("started_at", event.started_at)
    return changes | _OPEN
