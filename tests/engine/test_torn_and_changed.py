"""What holds at every place where a log may break off, and however the tools were declared when it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentor import Agentor, MemoryStore, RunContext, function_tool
from agentor.engine.events import Event
from agentor.engine.responses import ModelResponse, ToolCall
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods

PAYS = calls(("pay", {"amount": 40}))
ONE_PAYMENT = [PAYS, says("done")]


class Desk:
    """An agent with one tool, which says when it starts, and dies in it if it is told to."""

    def __init__(self, store: Any, script: Sequence[Any] = ONE_PAYMENT, **options: Any) -> None:
        self.started: list[dict[str, Any]] = []
        self.dies = False
        of_tool = {
            name: options.pop(name)
            for name in ("effect", "on_doubt", "needs_approval")
            if name in options
        }

        @function_tool(**of_tool)
        def pay(ctx: RunContext, amount: int = 1000) -> str:
            """Pay."""
            self.started.append({"amount": amount})
            if amount == 13:
                raise RuntimeError("no")
            return "paid"

        self.model = ScriptedModel.by_turn(script)
        self.agent = Agentor("A", model=self.model, tools=[pay], store=store, **options)


def broken_off(store: Any, log: Sequence[Event], run_id: str = "r") -> None:
    for event in log:
        store.append(run_id, event)


def until_claimed(log: Sequence[Event]) -> list[Event]:
    """A log up to its first claim: the process died in the tool."""
    claim = next(event.seq for event in log if event.type == "tool_call")
    return list(log[:claim])


def asks(arguments: str, finish_reason: str = "tool_calls") -> ModelResponse:
    return ModelResponse(tool_calls=[ToolCall("c", "pay", arguments)], finish_reason=finish_reason)


@pytest.mark.parametrize("told", ["cut off", "broken", "withdrawn"])
@pytest.mark.parametrize(
    "options", [{"effect": "idempotent"}, {"effect": "once", "on_doubt": "park"}]
)
def test_a_call_that_must_not_run_is_started_by_no_resume_of_any_part_of_its_log(
    told: str, options: dict[str, Any]
) -> None:
    fails = asks('{"amount": 13}')
    script = {
        "cut off": [asks('{"amount": 5}', "length"), says("done")],
        "broken": [asks('{"amount": 5, "to": '), says("done")],
        "withdrawn": [fails, fails, asks('{"amount": 7}'), says("done")],
    }[told]
    whole = Desk(MemoryStore(), script, max_tool_failures=2, **options)
    whole.agent.run("go", run_id="r")
    assert whole.agent.store is not None
    log = whole.agent.store.load("r")
    for length in range(1, len(log)):
        store = ThreeMethods()
        broken_off(store, log[:length])
        desk = Desk(store, script, max_tool_failures=2, **options)
        result = desk.agent.resume("r")
        while result.pending:  # a payment that failed is in doubt at some places
            desk.agent.approve("r", result.pending[0])
            result = desk.agent.resume("r")
        assert all(start == {"amount": 13} for start in desk.started), length


@pytest.mark.parametrize("forked", [False, True])
def test_a_call_begun_as_transactional_is_started_once_by_code_that_calls_it_once(
    store: Any, forked: bool
) -> None:
    log = until_claimed(Desk(None, effect="once").agent.run("go").events)
    broken_off(
        store, [e.with_(effect="transactional") if e.type == "tool_call" else e for e in log]
    )
    first = Desk(store, effect="once", on_change="adopt")
    started = [first]
    if forked:
        fork = Desk(store, effect="once", on_change="adopt")
        fork.agent.fork("r", fork_id="f")
        started.append(fork)
    first.agent.resume("r")
    died = [event for event in store.load("r") if event.type not in ("tool_result", "run_end")]
    claims = [event for event in died if event.type == "tool_call"]
    again = MemoryStore()
    broken_off(again, died[: claims[-1].seq])
    for _ in range(2):
        desk = Desk(again, effect="once", on_change="adopt")
        started.append(desk)
        assert "not known" in desk.agent.resume("r").messages[-2]["content"]
    assert sum(len(each.started) for each in started) == 1


@pytest.mark.parametrize("before", ["transactional", "idempotent", None, "once"])
@pytest.mark.parametrize("today", ["idempotent", "once", None])
def test_no_call_is_started_without_the_consent_that_todays_code_wants(
    store: Any, before: str | None, today: str | None
) -> None:
    log = until_claimed(Desk(None, effect="once").agent.run("go").events)
    broken_off(store, [e.with_(effect=before) if e.type == "tool_call" else e for e in log])
    desk = Desk(store, effect=today, needs_approval=True, on_change="adopt")
    result = desk.agent.resume("r")
    assert desk.started == []
    if result.pending:
        desk.agent.approve("r", result.pending[0])
        assert desk.agent.resume("r").status == "completed"
        assert len(desk.started) == 1


@pytest.mark.parametrize("first", [{"half_finished": "settle"}, {"half_finished": "rewind"}, {}])
@pytest.mark.parametrize("second", [{"half_finished": "settle"}, {"half_finished": "rewind"}, {}])
@pytest.mark.parametrize("effect", ["idempotent", None])
def test_what_a_fork_was_asked_is_in_its_conversation_however_often_it_is_broken_off(
    store: Any, first: dict[str, Any], second: dict[str, Any], effect: str | None
) -> None:
    broken_off(store, until_claimed(Desk(None, effect=effect).agent.run("go").events))
    forked = Desk(store, effect=effect, **first).agent.fork("r", "And not twice.", fork_id="f")
    start = [event.seq for event in forked.events if event.type == "run_start"][-1]
    for length in range(start, len(forked.events)):
        again = MemoryStore()
        broken_off(again, forked.events[:length], "f")
        result = Desk(again, effect=effect, **second).agent.resume("f")
        users = [m["content"] for m in result.messages if m["role"] == "user"]
        assert users == ["go", "And not twice."], length


def test_the_instructions_are_told_once_however_often_a_batch_is_broken_off(store: Any) -> None:
    log = until_claimed(Desk(None, effect="idempotent").agent.run("go").events)
    broken_off(store, log)
    for _ in range(3):
        desk = Desk(store, effect="idempotent", instructions="Be brief.", on_change="adopt")
        died = desk.agent.resume("r").events
        start = [event.seq for event in died if event.type == "run_start"][-1]
        store = MemoryStore()
        broken_off(store, died[:start])
    result = Desk(store, effect="idempotent", instructions="Be brief.").agent.resume("r")
    assert result.messages[0] == {"role": "system", "content": "Be brief."}
