"""What counts as an attempt at a run: a start that came to an end of its own, or to none; not one that was stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, MemoryStore, StoreError
from agentor.engine.events import Event
from agentor.engine.outbox import Nobody
from agentor.engine.replay import replay, verify
from agentor.engine.runner import AgentSpec, Runner
from agentor.testing import ScriptedModel
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


@given(st.lists(st.sampled_from(["run_start", "queued", "stop", "message", "run_end"])))
def test_attempts_are_the_starts_that_no_stop_followed(kinds: list[str]) -> None:
    log = [
        Event("run_start", messages=[{"role": "user", "content": "go"}], queued=True)
        if kind == "queued"
        else Event(kind, messages=[{"role": "user", "content": "go"}])
        if kind == "run_start"
        else Event(kind)
        for kind in kinds
    ]
    expected, begun = 0, False
    for kind in kinds:
        if kind == "run_start":
            expected, begun = expected + 1, True
        elif kind == "stop" and begun:
            expected, begun = expected - 1, False
        elif kind == "queued":
            begun = False
    assert replay(log).attempts == expected


def test_a_stop_changes_nothing_that_a_resume_would_do(store: Any) -> None:
    whole = agent().run("go").events
    for length in range(1, len(whole)):
        for run_id, more in ((f"a{length}", []), (f"b{length}", [Event("stop")])):
            for event in [*whole[:length], *more]:
                store.append(run_id, event)
        plans = [agent(store).plan(f"{letter}{length}").to_dict() for letter in "ab"]
        assert {**plans[0], "run_id": ""} == {**plans[1], "run_id": ""}
        assert agent(store).resume(f"b{length}").final_output == ANSWER
