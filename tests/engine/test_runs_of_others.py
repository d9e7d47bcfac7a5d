"""Two agents of one name in one store do not finish each other's runs, and deploys go on as ever."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, MemoryStore, function_tool
from agentor.testing import ScriptedModel, says


def built(store: Any, tools: str, instructions: str = "Be kind.", **settings: Any) -> Agentor:
    """An agent with a tool for each letter."""

    def tool(name: str) -> Any:
        def act() -> str:
            return name

        return function_tool(name_override=name, description_override=name)(act)

    model = ScriptedModel.by_turn([says("done"), says("done again")])
    return Agentor(
        "Support",
        instructions,
        model=model,
        tools=[tool(t) for t in tools],
        store=store,
        **settings,
    )


def work(agent: Agentor) -> Any:
    return agent.work(until_idle=True, poll_s=0.01)


def test_a_worker_leaves_a_run_to_the_agent_of_the_same_name_that_has_its_tools(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = built(store, "a"), built(store, "bc")
    two.enqueue("go", run_id="twos")
    one.enqueue("go", run_id="ones")
    before = store.load("twos")
    with caplog.at_level(logging.WARNING, "agentor"):
        report = work(one)
    assert report.finished == {"ones": "completed"}
    told = report.failed["twos"]
    assert "workers leave run 'twos' alone" in told
    assert "tools that this agent does not have (b, c)" in told
    assert "another agent called 'Support'" in told
    assert caplog.text.count("workers leave run 'twos' alone") == 1
    assert store.load("twos") == before
    assert work(two).finished == {"twos": "completed"}


TOOL_SETS = st.text("abc", max_size=3).map(lambda names: "".join(sorted(set(names))))


@given(
    TOOL_SETS,
    TOOL_SETS,
    st.sampled_from(["Be kind.", "Be brief."]),
    st.sampled_from(["warn", "adopt"]),
)
def test_a_worker_takes_what_a_deploy_has_changed_unless_a_tool_is_gone_and_a_plan_says_so(
    before: str, after: str, instructions: str, on_change: str
) -> None:
    store = MemoryStore()
    built(store, before).enqueue("go", run_id="r")
    agent = built(store, after, instructions, on_change=on_change)
    is_left = on_change == "warn" and not set(before) <= set(after)
    plan = agent.plan("r")
    assert bool(plan.left_alone) == is_left
    assert ("workers leave it alone" in str(plan)) == is_left
    report = work(agent)
    assert set(report.failed) == ({"r"} if is_left else set())
    assert agent.resume("r").status == "completed"  # by hand, with a warning
    assert agent.plan("r").left_alone is None


def test_once_it_was_resumed_by_hand_a_worker_takes_it_too(store: Any) -> None:
    built(store, "ab").enqueue("go", run_id="r")
    newer = built(store, "a", max_turns=1)
    assert set(work(newer).failed) == {"r"}
    for event in newer_segment(newer):
        store.append("r", event)
    assert work(built(store, "a")).finished == {"r": "completed"}


def newer_segment(agent: Agentor) -> list[Any]:
    """The segment that a resume by hand opens, whose process then dies."""
    scratch = MemoryStore()
    log = agent.store.load("r")  # type: ignore[union-attr]
    scratch.append_many("r", log)
    opened = built(scratch, "a").resume("r").events[len(log) :]
    return opened[:1]


@pytest.mark.parametrize("name", ["What if", "Support"])
def test_a_failed_fork_is_finished_by_the_workers_of_the_name_it_was_made_under(
    store: Any, name: str
) -> None:
    real = built(store, "a")
    real.run("go", run_id="parent")
    broken = Agentor(name, model=ScriptedModel([]), store=store, on_change="adopt")
    with pytest.raises(AssertionError, match="script"):
        broken.fork("parent", "and then?", fork_id="fork")
    before = store.load("fork")
    assert before[-1].status == "failed"
    report = real.work(until_idle=True, poll_s=0.01, backoff_s=0.0)
    assert report.finished == ({"fork": "completed"} if name == "Support" else {})
    assert report.failed == report.parked == {}
    assert (store.load("fork") == before) == (name == "What if")
