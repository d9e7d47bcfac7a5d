"""Events that are to be recorded together, and the state that they lead to."""

from __future__ import annotations

from collections.abc import Iterable

from agentor.engine.events import Event
from agentor.engine.replay import RunState, evolve, messages_of


class Staged:
    """Grows event by event; `state` is what a reload would give once `events` are in the log."""

    def __init__(self, state: RunState, events: Iterable[Event] = ()) -> None:
        self.state = state
        self.events: list[Event] = []
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        seq = self.state.seq + 1
        if (messages := messages_of(self.state, event)) is None:
            event = event.with_(seq=seq).checked()
        else:
            event = event.with_(seq=seq, messages=messages).checked()
        self.events.append(event)
        self.state = evolve(self.state, event)
