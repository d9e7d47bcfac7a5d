"""A call whose tool is gone can be given up, whatever was decided about it: what a refused resume advises, works."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import (
    Agentor,
    ConfigError,
    LeaseHeldError,
    MemoryStore,
    SQLiteStore,
    function_tool,
)
from agentor.engine.replay import verify
from agentor.errors import NotWaitingError
from agentor.testing import ScriptedModel, calls, says

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"effect": "idempotent"},
    "once": {"effect": "once"},
    "parked": {"effect": "once", "on_doubt": "park"},
    "approved": {"needs_approval": True},
    "guarded": {"effect": "once", "needs_approval": True},
}


def agent_with(store: Any, batch: list[str], tools: list[str], ran: list[str]) -> Agentor:
    def tool(kind: str) -> Any:
        def act() -> str:
            ran.append(kind)
            return "ok"

        names = {"name_override": kind, "description_override": kind}
        return function_tool(**names, **OPTIONS[kind])(act)

    model = ScriptedModel.by_turn([calls(*((kind, {}) for kind in batch)), says("done")])
    return Agentor("A", model=model, tools=[tool(k) for k in tools], store=store)


def whole_log(batch: list[str]) -> list[Any]:
    store, ran = MemoryStore(), list[str]()
    agent = agent_with(store, batch, list(dict.fromkeys(batch)), ran)
    for call in agent.run("go", run_id="r").pending:
        agent.approve("r", call)
    agent.resume("r")
    return store.load("r")


@given(st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=4), st.data())
def test_who_gives_up_what_a_plan_names_can_resume(batch: list[str], data: st.DataObject) -> None:
    log, store, ran = whole_log(batch), MemoryStore(), list[str]()
    store.append_many("r", log[: data.draw(st.integers(1, len(log)))])
    left = data.draw(st.lists(st.sampled_from(sorted(set(batch))), unique=True))
    agent = agent_with(store, batch, left, ran)
    plan = agent.plan("r")
    if plan.problems:
        with pytest.raises(ConfigError, match="--give-up"):
            agent.resume("r")
    for problem in plan.problems:
        words = shlex.split(problem[problem.index("agentor reject") : -1])
        assert words[:3] == ["agentor", "reject", "r"]
        agent.reject("r", words[3], "its tool is gone", give_up=True)
    assert agent.plan("r").problems == ()
    result = agent.resume("r")
    for call in result.pending:
        agent.reject("r", call, "no")
    assert agent.resume("r").status == "completed"
    assert verify(store.load("r")) == []
    given_up = {p.split()[1] for p in plan.problems}
    told = [e for e in store.load("r") if e.call_id in given_up and e.type == "tool_result"]
    assert all(event.error == "not approved" for event in told)
    assert len(told) == len(given_up)


def paused(store: Any, ran: list[str]) -> Agentor:
    agent = agent_with(store, ["guarded", "approved"], ["guarded", "approved"], ran)
    assert agent.run("go", run_id="r").status == "paused"
    return agent


def test_consent_that_is_not_used_up_can_be_taken_back_by_who_says_so() -> None:
    ran: list[str] = []
    agent = paused(MemoryStore(), ran)
    agent.approve("r", "call_1", by="ada")
    with pytest.raises(NotWaitingError, match="approved by ada already"):
        agent.reject("r", "call_1", "a mistake")
    agent.reject("r", "call_1", "a mistake", by="bob", give_up=True)
    with pytest.raises(NotWaitingError, match="rejected by bob already"):
        agent.reject("r", "call_1", "a mistake", give_up=True)
    with pytest.raises(NotWaitingError, match="rejected by bob already"):
        agent.approve("r", "call_1")
    agent.approve("r", "call_2")
    result = agent.resume("r")
    assert (result.status, ran) == ("completed", ["approved"])
    told = [event.result for event in result.events if event.call_id == "call_1" and event.result]
    assert told == ["Error: bob did not approve this call: a mistake"]
    for call_id in ("call_1", "call_2", "call_9"):
        with pytest.raises(NotWaitingError, match="none of its calls waits"):
            agent.reject("r", call_id, "no", give_up=True)


def test_a_call_that_somebody_is_at_work_on_is_not_given_up(tmp_path: Any) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        agent = paused(store, [])
        store.acquire("r", "somebody else", 60.0)
        before = store.load("r")
        with pytest.raises(LeaseHeldError):
            agent.reject("r", "call_1", "no", give_up=True)
        assert store.load("r") == before
