"""What a log says of the calls in it: which results it holds, and which calls were under way where it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentor.engine import events as ev
from agentor.engine import strict_json
from agentor.engine.batch import Batch
from agentor.engine.events import Event
from agentor.engine.replay import RunState, evolve, replay
from agentor.engine.request import Call


class Asked(NamedTuple):
    """A tool and its arguments as JSON: what makes two calls the same, whatever their ids."""

    tool: str
    args: str

    @classmethod
    def of(cls, tool: str, args: Mapping[str, Any] | None) -> Asked:
        return cls(tool, strict_json.canonical(strict_json.clean(dict(args or {}))))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One result in a log, and the call it answers."""

    asked: Asked
    call_id: str
    key: str  # the call's idempotency key
    error: str | None


def recorded(log: Sequence[Event], run_id: str) -> Iterator[Recorded]:
    """All results, in order, also those of batches that were given up later."""
    state = RunState()
    for event in log:
        batch, state = state.batch, evolve(state, event)
        if event.type == ev.TOOL_RESULT and batch is not None:
            call = batch.find(event, batch.answers)
            if call is not None:
                yield _recorded(batch, call, run_id, event.error)


def _recorded(batch: Batch, call: Call, run_id: str, error: str | None) -> Recorded:
    asked = Asked.of(call.name, batch.edited.get(call.position, call.args))
    return Recorded(asked, call.call_id, batch.key_of(run_id, call), error)


def open_calls(log: Sequence[Event]) -> set[str]:
    """The calls of the batch that is half-finished where the log ends."""
    batch = replay(log).batch
    return set() if batch is None else {call.call_id for call in batch.calls}


def side_by_side(log: Sequence[Event]) -> set[str]:
    """The calls that the model asked for together with others."""
    found: set[str] = set()
    state = RunState()
    for event in log:
        state = evolve(state, event)
        if event.type == ev.GENERATION and state.batch is not None and len(state.batch.calls) > 1:
            found |= {call.call_id for call in state.batch.calls}
    return found


def kept_generations(log: Sequence[Event]) -> Iterator[Event]:
    """The generations whose message has joined the conversation, or still may."""
    waiting: Event | None = None
    state = RunState()
    for event in log:
        before, state = state, evolve(state, event)
        if event.type == ev.GENERATION and state.batch is not None:
            waiting = event
        elif event.type == ev.GENERATION and len(state.transcript) > len(before.transcript):
            yield event
        elif before.batch is not None and state.batch is None and waiting is not None:
            if event.type != ev.RUN_START:  # else it was given up
                yield waiting
            waiting = None
    if waiting is not None and state.batch is not None:
        yield waiting
