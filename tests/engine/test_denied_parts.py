"""A run as the engine records it, changed in one place: what another part of its log denies is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentor import MemoryStore
from agentor.engine.events import Event, Usage
from agentor.engine.replay import verify
from tests.engine.agents import agent

# By type, the fields that another part of the log says again, with something else in their place.
SAID_TWICE: dict[str, dict[str, Any]] = {
    "run_start": {"messages": [{"role": "user", "content": "gone"}], "defined": {"tools": {}}},
    "generation": {"text": "xxx", "usage": Usage(1, 1, 99_999), "digest": "00"},
    "tool_call": {"name": "xook", "call_id": "zzz", "args": {"n": 999}, "effect": "once"},
    "tool_result": {"name": "xook", "call_id": "zzz", "result": "changed"},
    "message": {"text": "xxx"},
    "run_end": {"text": "xxx", "status": "failed", "usage": Usage(1, 1, 99_999)},
}


def recorded(resumed: bool) -> list[Event]:
    store = MemoryStore()
    agent(store, max_turns=1 if resumed else 20).run("go", run_id="r")
    if resumed:
        agent(store).resume("r")
    return store.load("r")


def spoilt(log: list[Event]) -> Iterator[tuple[str, list[Event]]]:
    for at, event in enumerate(log):
        fields = SAID_TWICE[event.type]
        for name, value in fields.items():
            if name == "defined" and event.defined is None:
                continue
            if name == "messages" and not event.messages:
                continue
            if name == "text" and event.type == "run_end" and event.status != "completed":
                value = "an answer"
            if name == "status" and event.status != "completed":
                value = "completed"
            yield (
                f"{event.seq} {event.type}.{name}",
                [
                    *(log[:at]),
                    event.with_(**{name: value}),
                    *log[at + 1 :],
                ],
            )


@pytest.mark.parametrize("resumed", [False, True])
def test_each_field_that_the_log_says_again_elsewhere_is_compared(resumed: bool) -> None:
    log = recorded(resumed)
    assert verify(log) == []
    changes = dict(spoilt(log))
    assert len(changes) > 25
    assert [change for change, events in changes.items() if not verify(events)] == []


@pytest.mark.parametrize("resumed", [False, True])
def test_a_start_or_a_generation_that_was_taken_out_is_missed(resumed: bool) -> None:
    log = recorded(resumed)
    for at, event in enumerate(log):
        if event.type in ("generation", "tool_call", "tool_result"):
            left = [e.with_(seq=seq) for seq, e in enumerate(log[:at] + log[at + 1 :], 1)]
            assert verify(left), event
