"""A plan says what a resume then does, and what has changed in the agent since."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentor import (
    Agentor,
    Budget,
    ConfigError,
    MemoryStore,
    ModelSettings,
    RunContext,
    function_tool,
)
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import agent, types

EFFECTS = st.sampled_from([None, "read", "idempotent", "once"])


class Acting:
    """An agent with two tools of given effects that counts what it runs."""

    def __init__(self, store: Any, effects: list[str | None], approvals: list[bool]) -> None:
        self.ran: Counter[str] = Counter()
        tools = [
            self._tool(name, effect, asks)
            for name, effect, asks in zip(("one", "two"), effects, approvals, strict=True)
        ]
        script = [calls(("one", {}), ("two", {})), says("done")]
        self.model = ScriptedModel.by_turn(script)
        self.agent = Agentor("A", "sys", model=self.model, tools=tools, store=store)

    def _tool(self, name: str, effect: Any, asks: bool) -> Any:
        async def act(ctx: RunContext) -> str:
            self.ran[str(ctx.call_id)] += 1
            return "ok"

        make = function_tool(
            effect=effect, needs_approval=asks, name_override=name, description_override=name
        )
        return make(act)


@settings(max_examples=150)
@given(
    st.lists(EFFECTS, min_size=2, max_size=2),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.data(),
)
def test_a_plan_matches_what_the_resume_then_does(
    effects: list[str | None], approvals: list[bool], data: st.DataObject
) -> None:
    whole = MemoryStore()
    first = Acting(whole, effects, approvals)
    result = first.agent.run("go", run_id="r")
    for call in result.pending:
        first.agent.approve("r", call.call_id)
    if result.pending:
        first.agent.resume("r")
    log = whole.load("r")
    length = data.draw(st.integers(1, len(log)))
    store = MemoryStore()
    store.append_many("r", log[:length])

    acting = Acting(store, effects, approvals)
    plan = acting.agent.plan("r")
    assert store.load("r") == log[:length]  # a plan writes nothing
    after = acting.agent.resume("r")
    new = after.events[length:]
    start = next((e for e in new if e.type == "run_start"), None)

    assert plan.ask_model == bool(acting.model.requests)
    assert sorted(plan.rewound) == sorted((start and start.rewound) or [])
    if not plan.rewound:
        assert set(plan.to_run) <= set(acting.ran) | {c.call_id for c in after.pending}
        assert not set(plan.in_doubt) & set(acting.ran)
        assert not set(plan.settled) & set(acting.ran)
        if plan.waiting:
            assert after.status == "paused"
    assert plan.to_dict()["run_id"] == "r"
    assert str(plan).startswith("run r")


def test_a_plan_of_a_finished_run_is_to_do_nothing(store: Any) -> None:
    run_id = agent(store).run("go").run_id
    plan = agent(store).plan(run_id)
    assert not plan.ask_model
    assert not plan.to_run
    assert not plan.writes_end
    assert "nothing" in str(plan)


def test_a_plan_of_a_run_whose_end_is_missing_is_to_write_it(store: Any) -> None:
    for event in agent().run("go").events[:10]:
        store.append("r", event)
    plan = agent(store).plan("r")
    assert plan.writes_end
    assert not plan.ask_model


def test_a_plan_names_the_tool_that_is_gone() -> None:
    store = MemoryStore()
    acting = Acting(store, ["once", "once"], [False, False])
    store.append_many("r", acting.agent.run("go").events[:4])
    bare = Agentor("A", "sys", model=ScriptedModel([]), store=store)
    plan = bare.plan("r")
    assert ["call_1 needs the tool 'one'" in plan.problems[0], len(plan.problems)] == [True, 2]
    with pytest.raises(ConfigError, match="'one'"):
        bare.resume("r")


def half_done(store: Any) -> None:
    """A run that has all the results of its first turn."""
    for event in agent().run("go").events[:4]:
        store.append("r", event)


def test_a_plan_says_that_the_budget_is_spent_and_the_model_will_not_be_asked(store: Any) -> None:
    half_done(store)
    plan = agent(store, budget=1).plan("r")
    assert (plan.ask_model, plan.writes_end) == (False, False)
    assert str(plan.ends).startswith("Reached the budget of 1 tokens")
    assert f"  ask nobody and end: {plan.ends}" in str(plan)
    result = agent(store, budget=1).resume("r")
    assert (result.status, result.error) == ("budget", plan.ends)


def test_a_plan_says_that_the_time_is_up_and_nothing_will_run(store: Any) -> None:
    acting = Acting(store, ["idempotent", "idempotent"], [False, False])
    log = acting.agent.run("go", run_id="whole").events[:4]
    for event in (log[0].with_(started_at=clock.now() - 3600), *log[1:]):
        store.append("r", event)
    acting.agent._spec = replace(acting.agent._spec, deadline_s=60.0)
    plan = acting.agent.plan("r")
    assert (plan.to_run, plan.ask_model, plan.ends) == (
        (),
        False,
        "Reached the deadline of the run.",
    )
    acting.ran.clear()
    assert acting.agent.resume("r").status == "deadline"
    assert not acting.ran


def test_a_run_whose_spending_cannot_be_counted_is_refused_before_anything_is_written(
    store: Any,
) -> None:
    half_done(store)
    before = store.load("r")
    budget = Budget(money=1.0, prices={"newer": (1.0, 1.0)})
    pricing = agent(store, ScriptedModel([], model="newer"), budget=budget, on_change="adopt")
    plan = pricing.plan("r")
    (problem,) = plan.problems
    assert "no price for the model 'scripted'" in problem
    assert plan.ends is None
    for attempt in (lambda: pricing.resume("r"), lambda: pricing.fork("r", "And?", fork_id="f")):
        with pytest.raises(ConfigError, match="no price for the model 'scripted'"):
            attempt()
    assert store.load("r") == before
    assert store.list_runs() == ["r"]


def test_a_run_of_a_model_without_a_price_that_has_nothing_left_to_ask_is_ended(store: Any) -> None:
    whole = agent().run("go").events
    for event in whole[:-1]:
        store.append("r", event)
    budget = Budget(money=1.0, prices={"newer": (1.0, 1.0)})
    pricing = agent(store, ScriptedModel([], model="newer"), budget=budget, on_change="adopt")
    assert (pricing.plan("r").problems, pricing.plan("r").writes_end) == ((), True)
    assert pricing.resume("r").status == "completed"


@pytest.mark.usefixtures("plain_keys")
def test_a_plan_asks_the_predicate_what_the_resume_asks_it(store: Any) -> None:
    seen = []

    def asks(ctx: RunContext, args: dict[str, Any]) -> bool:
        seen.append((ctx.context, ctx.run_id, ctx.call_id, ctx.idempotency_key, ctx.args))
        return ctx.context != "trusted"

    @function_tool(effect="idempotent", needs_approval=asks)
    def pay(n: int) -> str:
        """Pay."""
        return "paid"

    def cashier(store: Any) -> Agentor:
        script = [calls(("pay", {"n": 1}), ("pay", {"n": 2})), says("done")]
        model = ScriptedModel.by_turn(script)
        return Agentor("A", model=model, tools=[pay], store=store, context="trusted")

    for event in cashier(MemoryStore()).run("go").events[:3]:  # the second call is not claimed
        store.append("r", event)
    seen.clear()
    plan = cashier(store).plan("r")
    assert (plan.waiting, plan.to_run) == ((), ("call_1", "call_2"))
    planned = list(seen)
    seen.clear()
    assert cashier(store).resume("r").status == "completed"
    assert seen == planned
    assert planned == [("trusted", "r", f"call_{n}", f"r:2:{n - 1}", {"n": n}) for n in (1, 2)]


def test_a_plan_knows_of_calls_that_will_be_answered_and_not_run(store: Any) -> None:
    acting = Acting(store, ["idempotent", None], [True, False])
    log = [
        *acting.agent.run("go", run_id="whole").events[:2],
        *(Event("tool_result", name="one", call_id=f"old{n}", error="E: no") for n in range(2)),
        Event("tool_call", name="two", call_id="call_2", effect="idempotent"),
    ]
    for event in log:
        store.append("r", event.with_(seq=None))
    plan = acting.agent.plan("r")  # the first tool has used up its failures
    assert (plan.waiting, plan.to_run, plan.ask_model) == ((), ("call_2",), True)
    acting.ran.clear()
    assert acting.agent.resume("r").status == "completed"
    assert acting.ran == {"call_2": 1}


def test_a_plan_of_a_run_that_failed_after_its_answer_is_to_write_the_end(store: Any) -> None:
    whole = agent().run("go").events
    for event in whole[:10]:
        store.append("r", event)
    store.append("r", Event("run_end", status="failed", error="E: disk"))
    assert agent(store).plan("r").writes_end
    model = ScriptedModel([])
    assert agent(store, model).resume("r").status == "completed"


def changed_agent(store: Any, **settings_: Any) -> Agentor:
    @function_tool
    def get_weather(city: str, day: str = "today") -> str:
        """Get the weather of a day."""
        return "sunny"

    return Agentor(
        "Weather Agent",
        "You are kind.\nYou are brief.",
        model=ScriptedModel(lambda messages: says("done")),
        tools=[get_weather],
        store=store,
        model_settings=ModelSettings(
            temperature=0.5, extra_headers={"X-Key": "very secret header"}
        ),
        **settings_,
    )


def log_of(store: Any) -> list[Event]:
    events = agent().run("go").events[:4]
    for event in events:
        store.append("r", event)
    return events


def test_a_resume_with_a_changed_agent_says_what_has_changed(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log_of(store)
    plan = changed_agent(store).plan("r")
    text = "\n".join(map(str, plan.changes))
    assert "+You are brief." in text
    assert "tool pay was removed" in text
    assert 'parameters.properties.day.default = "today"' in text
    assert "setting temperature: null -> 0.5" in text
    assert "the agent has changed" in str(plan)
    with caplog.at_level(logging.WARNING):
        assert changed_agent(store).resume("r").final_output == "done"
    assert "+You are brief." in caplog.text


def test_what_has_changed_is_told_part_by_part_before_and_after(store: Any) -> None:
    log_of(store)
    told = changed_agent(store).plan("r").to_dict()["changes"]
    assert json.loads(json.dumps(told)) == told
    parts = {(change["part"], change["name"]): change for change in told}
    assert set(parts) == {
        ("instructions", None),
        ("tool", "pay"),
        ("tool", "get_weather"),
        ("setting", "temperature"),
    }
    assert parts["instructions", None]["after"] == "You are kind.\nYou are brief."
    assert parts["tool", "pay"]["after"] is None
    assert parts["tool", "get_weather"]["before"]["description"].startswith("Get the")
    assert (
        parts["setting", "temperature"]["before"],
        parts["setting", "temperature"]["after"],
    ) == (*(None, 0.5),)


def test_a_run_that_goes_on_under_another_agents_name_is_no_secret(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = agent(store, max_turns=1).run("go").run_id
    other = agent(store)
    other.name = "Someone Else"
    other._spec = replace(other._spec, agent=other.name)
    (change,) = other.plan(run_id).changes
    assert (change.part, change.before, change.after) == ("agent", agent().name, "Someone Else")
    assert f'agent: "{agent().name}" -> "Someone Else"' in str(other.plan(run_id))
    with caplog.at_level(logging.WARNING):
        other.resume(run_id)
    assert '-> "Someone Else"' in caplog.text
    assert other.plan(run_id).changes == ()  # it is that agent's run now
    other._on_change = "refuse"
    assert other.plan(run_id).problems == ()


def test_an_agent_that_refuses_changes_refuses_another_agents_run(store: Any) -> None:
    for event in agent().run("go").events[:4]:
        store.append("r", event)
    log = store.load("r")
    other = agent(store)
    other._spec = replace(other._spec, agent="Someone Else")
    other._on_change = "refuse"
    with pytest.raises(ConfigError, match="Someone Else"):
        other.resume("r")
    assert store.load("r") == log


def test_a_changed_agent_can_be_refused_or_adopted(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(store)
    with pytest.raises(ConfigError, match="tool pay was removed"):
        changed_agent(store, on_change="refuse").resume("r")
    assert store.load("r") == log
    with caplog.at_level(logging.WARNING):
        changed_agent(store, on_change="adopt").resume("r")
    assert "changed" not in caplog.text
    with pytest.raises(ConfigError, match="on_change"):
        changed_agent(store, on_change="shrug")


def test_a_definition_is_kept_once_per_content_and_holds_no_headers(store: Any) -> None:
    run_id = agent(store, max_turns=1).run("go").run_id
    agent(store, max_turns=1).resume(run_id)
    changed_agent(store, on_change="adopt").resume(run_id)
    starts = [e for e in store.load(run_id) if e.type == "run_start"]
    assert [e.defined is not None for e in starts] == [True, False, True]
    assert "very secret" not in "".join(e.to_json() for e in starts)


def test_nothing_is_said_of_logs_that_know_no_definition(store: Any) -> None:
    for event in agent().run("go").events[:4]:
        store.append("r", event.with_(definition=None, defined=None))
    assert changed_agent(store).plan("r").changes == ()
    assert types(store.load("r"))[0] == "run_start"
