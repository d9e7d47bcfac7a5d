"""The events that close a segment, however it comes to its end."""

from __future__ import annotations

from agentor.engine import events as ev
from agentor.engine.decide import Finish
from agentor.engine.events import Event
from agentor.engine.replay import RunState


def run_end(state: RunState, end: Finish, started_at: float, now: float) -> Event:
    """The last event of a segment. `started_at`: when whoever writes it began to work on the run."""
    return Event(
        ev.RUN_END,
        status=end.status,
        text=end.text,
        error=end.error,
        usage=state.usage,
        started_at=started_at,
        ended_at=now,
    )


def closing(state: RunState, end: Finish, started_at: float, now: float) -> list[Event]:
    """How a run ends by itself: its answer for readers, if nobody has written it yet, and the end."""
    said = [Event(ev.MESSAGE, text=end.text, turn=state.turn or None)] if end.say else []
    return [*said, run_end(state, end, started_at, now)]


def stopped(
    state: RunState, end: Finish, by: str | None, started_at: float, now: float
) -> list[Event]:
    """How a run ends from outside: who cancelled it, if somebody did, and the end."""
    cancel = [Event(ev.CANCEL, by=by, started_at=now)] if end.status == "cancelled" else []
    return [*cancel, run_end(state, end, started_at, now)]
