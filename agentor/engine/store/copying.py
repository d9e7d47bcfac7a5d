"""Copying a run event by event, for stores that have no better way.

A process that dies on the way leaves a part of the parent's log under the id of the copy. Taken for a run, it would be
resumed, and its calls made a second time under keys of their own. So the first event of a copy says what is to become of
it, in a field that older versions and other readers keep and skip, and until the `fork` event follows the last one the log is
no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentor.engine.events import COPY, Event
from agentor.engine.store.protocol import Store


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
            f"fork({self.parent!r}, fork_id={self.run_id!r}) finishes it"
        )


def unfinished_copy(run_id: str, events: Sequence[Event]) -> Copy | None:
    """What the log was to become, if its copying was broken off; None for the log of a run.

    The mark names the run: a fork of a copy inherits its events, and is whole.
    """
    match events[0].extra.get(COPY) if events else None:
        case {"run": str(run), "of": str(parent), "events": int(count)} if run == run_id:
            return Copy(run_id, parent, count) if len(events) <= count else None
    return None


def copy_events(store: Store, copy: Copy, source: Sequence[Event]) -> None:
    """Append what the copy still lacks of its parent's events, but for the `fork` event that makes it whole."""
    done = len(store.load(copy.run_id))
    for seq, event in enumerate(source[done : copy.events], done + 1):
        numbered = event.with_(seq=seq)
        store.append(copy.run_id, copy.mark(numbered) if seq == 1 else numbered)


def unmarked(events: Sequence[Event]) -> list[Event]:
    """The events as they stand in the log that they were copied from."""
    if not events or COPY not in events[0].extra:
        return list(events)
    first, *others = events
    return [first.with_(extra={k: v for k, v in first.extra.items() if k != COPY}), *others]
