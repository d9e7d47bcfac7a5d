"""What counts as an attempt at a run: a start that failed or came to no end, since the last that ended in good order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, MemoryStore, StoreError, function_tool
from agentor.engine.events import Event
from agentor.engine.outbox import Nobody
from agentor.engine.replay import replay, verify
from agentor.engine.runner import AgentSpec, Runner
from agentor.testing import ScriptedModel, calls, says
from agentor.worker import WorkReport
from tests.engine.agents import ANSWER, agent, types
from tests.engine.test_held_runs import Press, leave_by_stopping_the_worker


class Slow:
    """A model that never answers, and tells when it is asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, messages: Any, tools: Any = None) -> Any:
        self.asked.set()
        await asyncio.get_running_loop().create_future()


async def stop_in_a_model_call(store: Any) -> None:
    model = Slow()
    worker = agent(store, model).worker(max_attempts=3, poll_s=0.01)
    working = asyncio.create_task(worker.work())
    await model.asked.wait()
    worker.stop()
    report = await working
    assert (report.finished, report.failed, report.parked) == ({}, {}, {})


async def test_a_run_that_was_stopped_ten_times_is_still_worked_on(store: Any) -> None:
    await agent(store).aenqueue("go", run_id="r")
    for _ in range(10):
        await stop_in_a_model_call(store)
    assert types(store.load("r")) == ["run_start"] + ["run_start", "stop"] * 10
    assert replay(store.load("r")).attempts == 0
    report = await agent(store).awork(until_idle=True, max_attempts=3)
    assert report.finished == {"r": "completed"}
    assert (await agent(store).aresult("r")).final_output == ANSWER
    assert verify(store.load("r")) == []


async def test_a_run_whose_workers_died_is_parked_however_often_others_were_stopped() -> None:
    store = MemoryStore()
    await agent(store).aenqueue("go", run_id="r")
    for number in range(3):
        await stop_in_a_model_call(store)
        died = Event("run_start", agent="Weather Agent", kept=2, started_at=float(number))
        store.append("r", died)
    report = await agent(store).awork(until_idle=True, max_attempts=3)
    assert "Gave up after 3 attempts" in report.parked["r"]


async def test_a_stop_that_leaves_a_thread_running_counts_as_an_attempt() -> None:
    store = MemoryStore()
    press = Press(store)
    await leave_by_stopping_the_worker(press)
    assert types(store.load("r"))[-1] == "tool_call"
    assert replay(store.load("r")).attempts == 1
    await press.open_gate()


async def test_a_stop_that_cannot_be_recorded_counts_as_an_attempt_and_ends_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(MemoryStore):
        def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
            if any(event.type == "stop" for event in events):
                raise StoreError("the disk is full")
            super().append_many(run_id, events, lease)

    store, model = Full(), Slow()
    mine = Agentor("A", model=model, store=store, durability="strict")
    await mine.aenqueue("go", run_id="r")
    worker = mine.worker()
    working = asyncio.create_task(worker.work())
    await model.asked.wait()
    worker.stop()
    await working
    assert "that it was let go is not recorded" in caplog.text
    assert replay(store.load("r")).attempts == 1
    other = Agentor("A", model=ScriptedModel(["done"]), store=store)
    assert (await other.aresume("r")).final_output == "done"


async def test_whoever_has_begun_nothing_takes_no_attempt_of_others_back() -> None:
    store = MemoryStore()
    log = agent().run("go").events[:2]
    for event in log:
        store.append("r", event)
    spec = AgentSpec("A", [ScriptedModel([])])
    runner = Runner(spec, "r", store, Nobody(), state=replay(log), events=log)
    await runner.let_go()
    assert store.load("r") == log
    assert replay(store.load("r")).attempts == 1


KINDS = {
    "run_start": Event("run_start", messages=[{"role": "user", "content": "go"}]),
    "queued": Event("run_start", messages=[{"role": "user", "content": "go"}], queued=True),
    "failed": Event("run_end", status="failed"),
    "paused": Event("run_end", status="paused"),
    "parked": Event("run_end", status="parked"),
    **{kind: Event(kind) for kind in ("stop", "message", "fork")},
}


@given(st.lists(st.sampled_from(sorted(KINDS))))
def test_attempts_are_the_starts_that_no_stop_and_no_good_end_followed(kinds: list[str]) -> None:
    expected, begun = 0, False
    for kind in kinds:
        if kind == "run_start":
            expected, begun = expected + 1, True
        elif kind == "stop":
            expected, begun = expected - begun, False
        elif kind in ("paused", "parked", "fork"):
            expected, begun = 0, False
        elif kind != "message":
            begun = False
    state = replay([KINDS[kind] for kind in kinds])
    assert (state.attempts, state.attempting) == (expected, begun)


async def test_attempts_since_a_pause_are_counted_and_those_before_it_are_not() -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    store = MemoryStore()
    model = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
    mine = Agentor("A", model=model, tools=[pay], store=store)
    await mine.aenqueue("go", run_id="r")
    died = Event("run_start", agent="A", kept=1)
    for _ in range(2):
        store.append("r", died)
    assert (await mine.awork(until_idle=True, max_attempts=3)).finished == {"r": "paused"}
    assert replay(store.load("r")).attempts == 0
    await mine.aapprove("r", "call_1")
    for number in range(1, 4):
        store.append("r", died.with_(settling=["call_1"]))
        assert replay(store.load("r")).attempts == number
    report = await mine.awork(until_idle=True, max_attempts=3)
    assert "Gave up after 3 attempts" in report.parked["r"]


async def test_whoever_resumes_a_parked_run_by_hand_gives_it_all_its_attempts_back() -> None:
    store, model = MemoryStore(), ScriptedModel(lambda messages: ConnectionError("reset"))
    mine = agent(store, model)
    await mine.aenqueue("go", run_id="r")
    how: dict[str, Any] = {"until_idle": True, "max_attempts": 3, "backoff_s": 0, "poll_s": 0.001}
    assert (await mine.awork(**how)).parked
    assert len(model.requests) == 3
    assert (await mine.awork(**how)).to_dict() == WorkReport().to_dict()
    with pytest.raises(ConnectionError):
        await mine.aresume("r")
    assert "Gave up after 3 attempts" in (await mine.awork(**how)).parked["r"]
    assert len(model.requests) == 6


async def test_what_failed_at_a_parent_does_not_count_against_its_fork(store: Any) -> None:
    mine = agent(store, ScriptedModel(lambda messages: ConnectionError("reset")))
    for run in (mine.arun("go", run_id="r"), mine.aresume("r"), mine.afork("r", fork_id="f")):
        with pytest.raises(ConnectionError):
            await run
    assert [replay(store.load(run_id)).attempts for run_id in "rf"] == [2, 1]


def test_a_stop_changes_nothing_that_a_resume_would_do(store: Any) -> None:
    whole = agent().run("go").events
    for length in range(1, len(whole)):
        for run_id, more in ((f"a{length}", []), (f"b{length}", [Event("stop")])):
            for event in [*whole[:length], *more]:
                store.append(run_id, event)
        plans = [agent(store).plan(f"{letter}{length}").to_dict() for letter in "ab"]
        assert {**plans[0], "run_id": ""} == {**plans[1], "run_id": ""}
        assert agent(store).resume(f"b{length}").final_output == ANSWER
