"""A batch that settles for the sake of one call, and what that means for the undeclared ones beside it."""

from __future__ import annotations

from typing import Any

from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls, says


def test_beside_a_declared_call_an_undeclared_one_that_had_begun_is_started_again_unasked(
    store: Any,
) -> None:
    ran: list[str] = []

    @function_tool(effect="once")
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @function_tool
    def mail() -> str:
        """Mail."""
        ran.append("mail")
        return "sent"

    model = ScriptedModel.by_turn([calls(("pay", {}), ("mail", {})), says("Done.")])
    agent = Agentor("Shop", model=model, tools=[pay, mail], store=store)
    for event in agent.run("go", run_id="whole").events[:4]:  # as if it had died while both ran
        store.append("r", event)
    ran.clear()
    result = agent.resume("r")
    assert (ran, result.final_output) == (["mail"], "Done.")
    added = [event for event in result.events[4:] if event.type in ("generation", "tool_result")]
    assert [(event.type, event.turn) for event in added] == [
        ("tool_result", 0),
        ("tool_result", 0),
        ("generation", 1),  # the model is asked when the batch is whole, and not before
    ]
