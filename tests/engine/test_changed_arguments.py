"""The arguments that a person sees, consents to and hashes are those that the tool gets and the log holds. Always."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, ConfigError, MemoryStore, RunContext, function_tool
from agentor.consent import pending_of
from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.replay import replay, verify
from agentor.testing import ScriptedModel, calls, says

SCRIPT = [calls(("refund", {"amount": 1000})), says("done")]
EDITED = {"amount": 10}


class Desk:
    """An agent with one tool that needs consent. It remembers what the tool and the predicate were given."""

    def __init__(self, store: Any, above: int = -1, **options: Any) -> None:
        self.got: list[Any] = []
        self.judged: list[Any] = []

        def asks(ctx: RunContext, args: dict[str, Any]) -> bool:
            self.judged.append((ctx.args, args))
            return bool(args["amount"] > above)

        @function_tool(needs_approval=asks, **options)
        def refund(ctx: RunContext, amount: int) -> str:
            """Refund."""
            self.got += [{"amount": amount}, ctx.args]
            return "refunded"

        model = ScriptedModel.by_turn(SCRIPT)
        self.agent = Agentor("A", "sys", model=model, tools=[refund], store=store)


def die_after_start(store: Any, run_id: str, **options: Any) -> Desk:
    """Resume the run; its process dies when the refund has begun, and nothing that followed was saved."""
    scratch, log = MemoryStore(), store.load(run_id)
    scratch.append_many(run_id, log)
    desk = Desk(scratch, **options)
    for event in desk.agent.resume(run_id).events[len(log) :]:
        store.append(run_id, event)
        if event.type == "tool_call":
            return desk
    raise AssertionError("it was not started")


def edited_and_dead(store: Any, **options: Any) -> Desk:
    assert Desk(store, **options).agent.run("go", run_id="r").status == "paused"
    Desk(store, **options).agent.approve("r", "call_1", args=EDITED, by="ada")
    return die_after_start(store, "r", **options)


def last(log: list[Event], kind: str) -> Event:
    return next(event for event in reversed(log) if event.type == kind)


OPTIONS: list[dict[str, Any]] = [{}, {"effect": "once", "on_doubt": "park"}]


@pytest.mark.parametrize("options", OPTIONS)
def test_after_a_change_and_a_crash_a_person_is_shown_what_the_tool_will_get(
    store: Any, options: Any
) -> None:
    first = edited_and_dead(store, **options)
    assert first.got == [EDITED, EDITED]
    waiting = Desk(store, **options).agent.resume("r")
    assert [call.args for call in waiting.pending] == [EDITED]
    digest = strict_json.digest(EDITED)
    assert last(waiting.events, "approval").args_digest == digest

    Desk(store, **options).agent.approve("r", "call_1", by="bob")
    assert store.load("r")[-1].args_digest == digest
    desk = Desk(store, **options)
    result = desk.agent.resume("r")
    assert desk.got == [EDITED, EDITED]
    assert last(result.events, "tool_call").args == EDITED
    assert '{"amount":10}' in str(last(result.events, "tool_result").result)
    assert verify(store.load("r")) == []


def test_consent_with_other_arguments_is_recorded_with_their_digest(store: Any) -> None:
    Desk(store).agent.run("go", run_id="r")
    Desk(store).agent.approve("r", "call_1", args=EDITED)
    asked, given_ = (e for e in store.load("r") if e.type == "approval")
    assert asked.args_digest == strict_json.digest({"amount": 1000})
    assert given_.args_digest == strict_json.digest(EDITED)


def test_a_predicate_judges_the_changed_arguments_when_it_is_asked_again(store: Any) -> None:
    edited_and_dead(store, above=100)
    desk = Desk(store, above=100)
    assert desk.agent.plan("r").waiting == ()
    assert desk.agent.plan("r").rewound == ()
    assert desk.agent.resume("r").status == "completed"  # ten need no consent
    assert set(map(str, desk.judged)) == {str((EDITED, EDITED))}
    assert desk.got == [EDITED, EDITED]


def test_a_call_that_is_safe_to_repeat_is_repeated_with_the_changed_arguments(store: Any) -> None:
    edited_and_dead(store, effect="idempotent")
    desk = Desk(store, effect="idempotent")
    assert desk.agent.resume("r").status == "completed"
    assert desk.got == [EDITED, EDITED]


@given(st.lists(st.sampled_from([None, {"amount": 1}, {"amount": 5000}]), min_size=1, max_size=5))
def test_whatever_people_change_between_crashes_what_is_shown_is_what_is_started(
    changes: list[dict[str, Any] | None],
) -> None:
    store, expected = MemoryStore(), {"amount": 1000}
    Desk(store).agent.run("go", run_id="r")
    for change in changes:
        [call] = pending_of(replay(store.load("r")))
        assert call.args == expected
        Desk(store).agent.approve("r", "call_1", args=change)
        expected = change or expected
        assert store.load("r")[-1].args_digest == strict_json.digest(expected)
        desk = die_after_start(store, "r")
        assert desk.got == [expected, expected]
        assert store.load("r")[-1].args == expected
        Desk(store).agent.resume("r")  # asks again


@pytest.mark.parametrize("has_the_tool", [True, False])
def test_a_misspelt_argument_is_refused_and_no_default_steps_in_for_it(has_the_tool: bool) -> None:
    @function_tool(needs_approval=True)
    def refund(order: str, amount: int = 500) -> str:
        """Refund."""
        return f"refunded {amount}"

    store = MemoryStore()
    model = ScriptedModel.by_turn([calls(("refund", {"order": "A"})), says("done")])
    desk = Agentor("A", model=model, tools=[refund], store=store)
    assert desk.run("go", run_id="r").status == "paused"
    before = store.load("r")
    decider = desk if has_the_tool else Agentor("A", model=model, store=store)
    for wrong in ({"order": "A", "amout": 20}, {"amount": 20}, {"order": "A", "amount": []}):
        with pytest.raises(ConfigError, match="do not fit the tool 'refund'"):
            decider.approve("r", "call_1", args=wrong)
    assert store.load("r") == before
    decider.approve("r", "call_1", args={"order": "A", "amount": 20})
    assert [e.args for e in desk.resume("r").tool_calls] == [{"order": "A", "amount": 20}]
