"""A person who is asked about a call can look it up under the key that its tool was, or will be, given."""

from __future__ import annotations

from typing import Any

import pytest

from agentor import Agentor, RunContext, function_tool
from agentor.testing import ScriptedModel, calls, says

ASKED_FIRST = {"needs_approval": True}
ASKED_IN_DOUBT = {"effect": "once", "on_doubt": "park"}


class Till:
    """An agent that pays twice alike: only the keys tell the payments apart. `keys` are those its tool was given."""

    def __init__(self, store: Any, declared: dict[str, Any]) -> None:
        self.keys: list[str | None] = []

        @function_tool(**declared)
        def pay(ctx: RunContext, amount: int) -> str:
            """Pay."""
            self.keys.append(ctx.idempotency_key)
            return "paid"

        script = [calls(("pay", {"amount": 5}), ("pay", {"amount": 5})), says("Paid.")]
        model = ScriptedModel.by_turn(script)
        self.agent = Agentor("Till", model=model, tools=[pay], store=store)

    def pay_after_consent(self, run_id: str) -> None:
        for call in self.agent.result(run_id).pending:
            self.agent.approve(run_id, call)
        assert self.agent.resume(run_id).status == "completed"


def asked(store: Any, declared: dict[str, Any]) -> Till:
    """With the run "r", whose two calls wait."""
    till = Till(store, declared)
    started = till.agent.run("Pay 5 twice.", run_id="r" if declared is ASKED_FIRST else "whole")
    if declared is ASKED_IN_DOUBT:
        for event in started.events[:4]:  # as if the process had died while it paid
            store.append("r", event)
        assert till.agent.resume("r").status == "paused"
    till.keys.clear()
    return till


@pytest.mark.parametrize("declared", [ASKED_FIRST, ASKED_IN_DOUBT], ids=["first", "in doubt"])
def test_a_call_that_waits_names_the_key_that_its_tool_is_given(
    store: Any, declared: dict[str, Any]
) -> None:
    till = asked(store, declared)
    keys = [call.idempotency_key for call in till.agent.result("r").pending]
    assert len(set(keys)) == 2
    till.pay_after_consent("r")
    assert sorted(map(str, till.keys)) == sorted(map(str, keys))


def test_a_fork_names_an_inherited_call_by_the_key_that_it_has_in_the_run_it_came_from(
    store: Any,
) -> None:
    till = asked(store, ASKED_IN_DOUBT)
    keys = [call.idempotency_key for call in till.agent.result("r").pending]
    till.agent.fork("r", fork_id="f")
    till.agent.fork("f", fork_id="g")
    for run_id in ("f", "g"):
        pending = till.agent.result(run_id).pending
        assert [call.idempotency_key for call in pending] == keys
        till.pay_after_consent(run_id)
    assert sorted(map(str, till.keys)) == sorted(map(str, keys + keys))


def test_what_is_not_asked_about_yet_is_not_settled_and_the_refusal_says_how_to_go_on(
    store: Any,
) -> None:
    till = asked(store, ASKED_IN_DOUBT)
    for event in till.agent.result("whole").events[:4]:
        store.append("dead", event)
    before = store.load("dead")
    with pytest.raises(ValueError, match=r"nobody has been asked .* resume\('dead'\) goes on"):
        till.agent.settle("dead", "call_1", "paid")
    assert store.load("dead") == before
    assert till.agent.resume("dead").status == "paused"
    till.agent.settle("dead", "call_1", "paid")
