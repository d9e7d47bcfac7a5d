"""Copying a run event by event, for stores that have no better way.

A process that dies on the way leaves a part of the parent's log under the id of the copy. Taken for a run, it would be
resumed, and its calls made a second time under keys of their own. So where that could harm, the first event of a copy says
what is to become of it, in a field that older versions and other readers keep and skip, and until the `fork` event follows the
last one the log is no run. A run of tools that declare nothing is copied as it stands: to ask such a tool again is harmless, and
its copy equals it. Not so if the fork is asked something: without it the copy would give its parent's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentor.engine.events import APPROVAL, COPY, FORK, Event, without_repeats
from agentor.engine.replay import replay
from agentor.engine.store.numbering import numbered
from agentor.engine.store.own import answer_of, loaded
from agentor.engine.store.protocol import Store
from agentor.errors import LogCorruptError, RunExistsError


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the first so many events of a run."""

    run_id: str
    parent: str
    events: int

    def mark(self, event: Event) -> Event:
        told = {"run": self.run_id, "of": self.parent, "events": self.events}
        return event.with_(extra={**event.extra, COPY: told})

    def broken_off(self, done: int) -> str:
        """What is wrong with a log that ends after `done` events, in words."""
        return (
            f"it is a copy of run {self.parent!r} that was broken off after {done} of {self.events} events, and no run yet; "
            f"fork({self.parent!r}, fork_id={self.run_id!r}) finishes it, with the input "
            "that it was made for if there was one"
        )

    def orphaned(self, done: int) -> str:
        """Why nobody can finish it any more, in words."""
        return (
            f"it is a copy that was broken off after {done} of {self.events} events of a run {self.parent!r} that has been "
            "deleted since, or has lost some of them; nobody can finish it, and it may be deleted"
        )


def unfinished_copy(run_id: str, events: Sequence[Event]) -> Copy | None:
    """What the log was to become, if its copying was broken off; None for the log of a run.

    The mark names the run: a fork of a copy inherits its events, and is whole. It says so in a `fork` event, without which
    the log is a part that somebody has given another name.
    """
    match events[0].extra.get(COPY) if events else None:
        case {"run": str(run), "of": str(parent), "events": int(count)} if len(events) <= count:
            if run == run_id or all(event.type != FORK for event in events):
                return Copy(run_id, parent, count)
    return None


def check_whole(run_id: str, events: Sequence[Event]) -> None:
    """`LogCorruptError` if this is no run yet but a part of a copy: whatever is made of it would be taken for a run."""
    if (copy := unfinished_copy(run_id, events)) is not None:
        raise LogCorruptError(run_id, len(events), copy.broken_off(len(events)))


def copy_events(store: Store, copy: Copy, source: Sequence[Event], is_asked: bool = False) -> None:
    """Append what the copy still lacks of its parent's events, but for the `fork` event that makes it whole.

    `source` is the parent's log, numbered without gaps or repeats. `is_asked`: the fork is going to be given an input.
    `RunExistsError` if what is there was copied from another run, which had the parent's id before.
    """
    there = unmarked(numbered(copy.run_id, without_repeats(loaded(store, copy.run_id))))
    copied = unmarked(source[: copy.events])  # the mark of a parent says nothing of its copy
    if there != copied[: len(there)] or len(copied) < copy.events:
        raise RunExistsError(copy.run_id, copy.orphaned(len(there)))
    marks = not there and (is_asked or _may_be_made_twice(copied))
    for event in copied[len(there) :]:
        body = copy.mark(event) if marks and event.seq == 1 else event
        answer_of(store.append, copy.run_id, body)


def _may_be_made_twice(events: Sequence[Event]) -> bool:
    """Whether a part of this log, taken for a run, may start a call that has consequences."""
    if any(event.effect is not None or event.type == APPROVAL for event in events):
        return True
    try:
        return replay(events).batch is not None  # of calls that nobody has claimed it says nothing
    except LogCorruptError:
        return True


def unmarked(events: Sequence[Event]) -> list[Event]:
    """The events as they stand in the log that they were copied from."""
    if not events or COPY not in events[0].extra:
        return list(events)
    first, *others = events
    return [first.with_(extra={k: v for k, v in first.extra.items() if k != COPY}), *others]
