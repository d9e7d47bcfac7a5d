"""Whoever waits for a run that another worker has gets what that worker comes to, and takes over only what it leaves open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentor import Agentor
from agentor.engine.events import Event
from agentor.errors import ModelError
from agentor.testing import ScriptedModel, calls
from tests.engine.agents import ThreeMethods, Tools, types


@pytest.fixture(autouse=True)
def keeps_workers_apart(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")


class Held:
    """A model that answers when it is told to; an exception is raised."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def complete(self, messages: Any, tools: Any = None) -> Any:
        self.entered.set()
        return (await self.answer).response()


async def worked_on(store: Any, model: Held, **options: Any) -> asyncio.Task[Any]:
    agent = Agentor("Worker", model=model, tools=Tools().functions(), store=store)
    running = asyncio.create_task(agent.arun("go", run_id="r", **options))
    await model.entered.wait()
    return running


async def waiting(store: Any, model: ScriptedModel, callers: int = 1) -> list[asyncio.Task[Any]]:
    """Callers of `resume(wait=True)` that have seen the run under way."""
    load, loop = store.load, asyncio.get_running_loop()
    looked: asyncio.Queue[str] = asyncio.Queue()

    def looking(run_id: str) -> Any:
        events = load(run_id)
        loop.call_soon_threadsafe(looked.put_nowait, run_id)
        return events

    store.load = looking
    agent = Agentor(
        "Waiter", model=model, tools=Tools().functions(), store=store, on_change="adopt"
    )
    tasks = [asyncio.create_task(agent.aresume("r", wait=True)) for _ in range(callers)]
    for _ in tasks:
        await looked.get()
    return tasks


async def test_a_run_that_is_cancelled_meanwhile_is_not_gone_on_with(store: Any) -> None:
    running = await worked_on(store, Held())
    idle = ScriptedModel([])
    [waiter] = await waiting(store, idle)
    assert await Agentor("Boss", store=store).acancel("r", by="boss")
    assert (await running).status == (await waiter).status == "cancelled"
    assert types(store.load("r")) == ["run_start", "cancel", "run_end"]
    assert idle.requests == []


async def test_no_waiter_buys_turns_that_nobody_has_asked_for(store: Any) -> None:
    held = Held()
    running = await worked_on(store, held, max_turns=1)
    idle = ScriptedModel([])
    waiters = await waiting(store, idle, callers=3)
    held.answer.set_result(calls(("get_weather", {"city": "London"})))
    assert [(await each).status for each in (running, *waiters)] == ["max_turns"] * 4
    assert types(store.load("r")).count("run_start") == 1
    assert idle.requests == []


async def test_a_failure_is_what_was_waited_for_and_the_next_resume_tries_again(store: Any) -> None:
    held = Held()
    running = await worked_on(store, held)
    [waiter] = await waiting(store, ScriptedModel([]))
    held.answer.set_exception(ModelError("no such model"))
    with pytest.raises(ModelError):
        await running
    result = await waiter
    assert (result.status, result.final_output) == ("failed", None)
    assert "no such model" in result.error
    agent = Agentor("Worker", model=ScriptedModel(["done"]), store=store, on_change="adopt")
    assert (await agent.aresume("r")).final_output == "done"


async def test_what_is_left_open_is_taken_over(store: Any) -> None:
    running = await worked_on(store, Held())
    [waiter] = await waiting(store, ScriptedModel(["done"]))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await waiter).final_output == "done"


async def test_an_end_that_was_there_before_does_not_keep_anybody_from_going_on(store: Any) -> None:
    for event in [
        Event("run_start", agent="A", messages=[{"role": "user", "content": "go"}]),
        Event("run_end", status="cancelled"),
    ]:
        store.append("r", event)
    lease = store.acquire("r", "somebody", 30.0)
    [waiter] = await waiting(store, ScriptedModel(["done"]))
    store.release(lease)
    assert (await waiter).final_output == "done"


async def test_an_end_between_the_look_and_the_lease_counts_without_a_wait_too(store: Any) -> None:
    store.append("r", Event("run_start", messages=[{"role": "user", "content": "go"}]))
    acquire = store.acquire

    def ended_before(*asked: Any) -> Any:
        store.append("r", Event("run_end", status="cancelled"))
        store.acquire = acquire
        return acquire(*asked)

    store.acquire = ended_before
    idle = ScriptedModel([])
    result = await Agentor("A", model=idle, store=store).aresume("r")
    assert (result.status, idle.requests) == ("cancelled", [])
    assert types(store.load("r")) == ["run_start", "run_end"]
    assert store.holder("r") is None
