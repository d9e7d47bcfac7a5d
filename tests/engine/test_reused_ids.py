"""An id can change hands: a run is deleted, and another gets its id. Whoever dealt with the first has not dealt with the second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, PendingCall, RunNotFoundError, function_tool
from agentor.engine import clock
from agentor.engine.clock import SystemClock
from agentor.engine.events import Event
from agentor.testing import ScriptedModel, calls, says
from agentor.worker import Step
from tests.engine.agents import ThreeMethods, types


def delete(store: Any, run_id: str) -> None:
    if isinstance(store, ThreeMethods):
        del store.runs[run_id]
    else:
        store.delete(run_id)


def echo(store: Any, name: str = "Echo") -> Agentor:
    """An agent that answers what it was asked."""
    return Agentor(
        name, model=ScriptedModel(lambda messages: says(messages[-1]["content"])), store=store
    )


def with_a_tool_that_is_gone(store: Any) -> None:
    @function_tool
    def old() -> str:
        """Not there any more."""
        return "old"

    model = ScriptedModel([says("one")])
    Agentor("Echo", model=model, tools=[old], store=store).enqueue("ONE", run_id="x")


def damaged(store: Any) -> None:
    echo(store).enqueue("ONE", run_id="x")
    store.append("x", Event("run_start", kept=99))


@pytest.mark.parametrize("refused", [with_a_tool_that_is_gone, damaged])
async def test_a_worker_takes_a_run_whose_id_it_has_refused_in_another_run(
    store: Any, refused: Callable[[Any], None]
) -> None:
    await asyncio.to_thread(refused, store)
    mine = echo(store)
    worker = mine.worker(concurrency=1, poll_s=0.001)
    told: list[tuple[str, str]] = []

    def watch(step: Step) -> None:
        told.append((step.run_id, step.outcome))
        if step.outcome == "refused":
            delete(store, "x")
            for run_id in ("x", "y"):
                store.append(run_id, start("TWO", f"of {run_id}"))
        if step.run_id == "y":
            worker.stop()

    worker.watch = watch
    report = await asyncio.wait_for(worker.work(), 30)
    assert told == [("x", "refused"), ("x", "completed"), ("y", "completed")]
    assert report.finished == {"x": "completed", "y": "completed"}
    assert report.failed == {}


async def test_a_worker_that_has_refused_a_run_tells_so_once(store: Any) -> None:
    await asyncio.to_thread(damaged, store)
    await echo(store).aenqueue("TWO", run_id="y")
    worker = echo(store).worker(poll_s=0.001)
    told: list[str] = []
    worker.watch = lambda step: told.append(step.run_id)
    looks = 0
    candidates = worker._candidates

    async def counted() -> Any:
        nonlocal looks
        looks += 1
        if looks == 5:
            worker.stop()
        return await candidates()

    worker._candidates = counted  # type: ignore[method-assign]
    await asyncio.wait_for(worker.work(), 30)
    assert sorted(told) == ["x", "y"]


class WhileWeWait(SystemClock):
    """Something happens in the first pause."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens: Callable[[], None] | None = happens

    async def sleep(self, seconds: float) -> None:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        await super().sleep(0 if happens is not None else seconds)


def start(question: str, nonce: str | None) -> Event:
    asked = [{"role": "user", "content": question}]
    return Event("run_start", agent="Echo", messages=asked, nonce=nonce)


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("has_nonce", [True, False])  # older logs have none
async def test_whoever_waits_for_a_run_that_is_deleted_is_told_so_and_gets_no_other_runs_answer(
    store: Any, is_made_anew: bool, has_nonce: bool
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    lease = store.acquire("x", "somebody", 30.0)
    store.append_many("x", [start("ONE", "1" if has_nonce else None)], lease)

    def swap() -> None:
        store.release(lease)
        store.delete("x")
        if is_made_anew:
            store.append("x", start("TWO", "2" if has_nonce else None))

    with clock.installed(WhileWeWait(swap)), pytest.raises(RunNotFoundError) as gone:
        await asyncio.wait_for(echo(store).aresume("x", wait=True), 30)
    assert gone.value.__notes__ == [
        "the run x that was meant was deleted; another may have its id by now"
    ]
    assert types(store.load("x")) == ["run_start"] * is_made_anew


@pytest.mark.parametrize("attempts", [0, 5])  # to be gone on with, and to be given up
async def test_what_a_worker_read_of_a_run_is_not_done_to_another_of_its_id(
    store: Any, attempts: int
) -> None:
    store.append("x", start("ONE", "1"))
    for _ in range(attempts):
        store.append("x", Event("run_start", agent="Echo", kept=1))
    worker = echo(store).worker(until_idle=True, poll_s=0.001)
    begin = worker._start

    def swap(run: Any, state: Any) -> None:
        if state.nonce == "1":
            delete(store, "x")
            store.append("x", start("TWO", "2").with_(agent="Another agent"))
        begin(run, state)

    worker._start = swap  # type: ignore[method-assign]
    report = await asyncio.wait_for(worker.work(), 30)
    assert (report.finished, report.failed, report.parked) == ({}, {}, {})
    assert types(store.load("x")) == ["run_start"]


def asks_to_pay(store: Any, amount: int) -> Agentor:
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel([calls(("pay", {"amount": amount}))])
    return Agentor("Payer", model=model, tools=[pay], store=store)


DECISIONS: dict[str, Callable[[Agentor, PendingCall], Any]] = {
    "approve": lambda mine, call: mine.aapprove("x", call),
    "approve with other arguments": lambda mine, call: mine.aapprove("x", call, {"amount": 4}),
    "reject": lambda mine, call: mine.areject("x", call, "too much"),
    "give up": lambda mine, call: mine.areject("x", call, "too much", give_up=True),
    "settle": lambda mine, call: mine.asettle("x", call, "paid"),
}


@pytest.mark.parametrize("decision", DECISIONS)
async def test_what_was_decided_about_a_call_of_a_run_is_not_said_of_another_run_of_its_id(
    store: Any, decision: str
) -> None:
    [seen] = (await asks_to_pay(store, 5).arun("go", run_id="x")).pending
    delete(store, "x")
    mine = asks_to_pay(store, 5000)
    [waits] = (await mine.arun("go", run_id="x")).pending
    assert (waits.call_id, waits.question) == (seen.call_id, seen.question)
    before = store.load("x")
    with pytest.raises(RunNotFoundError) as gone:
        await DECISIONS[decision](mine, seen)
    assert gone.value.__notes__ == [
        "the run x that was meant was deleted; another may have its id by now"
    ]
    assert store.load("x") == before
    await mine.aapprove("x", waits)
