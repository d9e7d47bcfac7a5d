"""Ending a run from outside: cancelled, over budget, out of time. The history stays legal and can be resumed."""

from __future__ import annotations

import asyncio
import threading
import typing
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from agentor import (
    Agentor,
    AgentorError,
    ConfigError,
    LeaseLostError,
    MemoryStore,
    function_tool,
)
from agentor.engine import clock
from agentor.engine.budget import Budget
from agentor.engine.events import Event, RunStatus, Usage
from agentor.engine.replay import verify
from agentor.engine.store.protocol import Lease, Signals
from agentor.stopping import Stop, end_run
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ANSWER, ThreeMethods, Tools, agent, types
from tests.engine.leases import Later, force_takeover


class Hanging:
    """A model that waits for ever, until it is let go."""

    def __init__(self) -> None:
        self.entered, self.left = asyncio.Event(), asyncio.Event()

    async def complete(self, messages: Any, tools: Any = None) -> Any:
        self.entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.left.set()


async def test_a_run_of_this_process_is_cancelled_in_the_middle_of_its_model_call(
    store: Any,
) -> None:
    model = Hanging()
    mine = Agentor("A", model=model, store=store)
    task = asyncio.create_task(mine.arun("go", run_id="r"))
    await model.entered.wait()
    assert await mine.acancel("r", by="ada")
    result = await task
    assert (result.status, result.final_output) == ("cancelled", None)
    assert model.left.is_set()
    assert types(store.load("r")) == ["run_start", "cancel", "run_end"]
    assert await mine.acancel("r") is False
    again = await Agentor("A", model=ScriptedModel(["done"]), store=store).aresume("r")
    assert again.final_output == "done"
    assert await mine.acancel("r") is False  # it has finished


@pytest.mark.parametrize("length", range(1, 12))
def test_a_run_that_nobody_works_on_can_be_cancelled_at_every_event_and_resumed(
    store: Any, length: int
) -> None:
    for event in agent().run("go").events[:length]:
        store.append("r", event)
    mine = agent(store)
    assert mine.cancel("r", by="ada")
    [cancel, end] = store.load("r")[length:]
    assert (cancel.type, cancel.by, end.status) == ("cancel", "ada", "cancelled")
    assert verify(store.load("r")) == []
    tools = Tools()
    result = agent(store, tools=tools).resume("r")
    assert result.final_output == ANSWER
    if length >= 4:
        assert tools.ran["get_weather London"] == 0


async def test_a_run_of_another_process_is_asked_by_a_signal_that_its_worker_sees(
    store: Any,
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    assert isinstance(store, Signals)
    model = Hanging()
    elsewhere = asyncio.create_task(Agentor("A", model=model, store=store).arun("go", run_id="r"))
    await model.entered.wait()
    store.ask("r", "cancel", "ada")  # as another process does, which knows no stopper of ours
    assert (await elsewhere).status == "cancelled"
    assert store.asked("r") == []
    assert [e.by for e in store.load("r") if e.type == "cancel"] == ["ada"]


class SlowDisk(MemoryStore):
    """A commit takes until `commit_next`."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        future: Future[None] = Future()

        def commit() -> None:
            try:
                self.append_many(run_id, events, lease)
            except AgentorError as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        self._under_way.put_nowait(commit)
        return future

    async def commit_next(self, before: Callable[[], object] = lambda: None) -> None:
        commit = await self._under_way.get()
        for _ in range(20):  # whoever has something to say meanwhile says it
            await asyncio.sleep(0)
        before()
        commit()


async def test_a_cancel_that_comes_during_a_write_is_recorded_after_what_was_written() -> None:
    store = SlowDisk()
    store.append("r", agent().run("go").events[0])
    store.ask("r", "cancel", "ada")
    running = asyncio.create_task(Agentor("A", model=Hanging(), store=store).aresume("r"))
    await store.commit_next()  # the run_start of the resume, while its stopper hears of the cancel
    await store.commit_next()
    assert (await running).status == "cancelled"
    assert types(store.load("r")) == ["run_start", "run_start", "cancel", "run_end"]
    assert store.asked("r") == []


async def test_a_reader_is_not_shown_what_a_write_that_is_refused_after_a_cancel_held() -> None:
    store = SlowDisk()
    store.ask("r", "cancel", "ada")
    shown: list[Event] = []

    async def read() -> None:
        async for event in Agentor("A", model=Hanging(), store=store).astream("go", run_id="r"):
            shown.append(event)

    reading = asyncio.create_task(read())
    await store.commit_next(before=lambda: force_takeover(store, "r"))
    further = asyncio.create_task(store.commit_next())  # if the end of the run is tried, too
    with pytest.raises(LeaseLostError):
        await reading
    further.cancel()
    assert (shown, store.load("r")) == ([], [])


async def test_a_store_whose_signals_have_no_names_cancels_without_one() -> None:
    class Nameless(MemoryStore):
        asked_by = None  # type: ignore[assignment]  # as in a store written before there was one

    store, model = Nameless(), Hanging()
    running = asyncio.create_task(Agentor("A", model=model, store=store).arun("go", run_id="r"))
    await model.entered.wait()
    store.ask("r", "cancel", "ada")
    assert (await running).status == "cancelled"
    assert [e.by for e in store.load("r") if e.type == "cancel"] == [None]


def test_cancelling_a_run_held_elsewhere_leaves_a_signal(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    for event in agent().run("go").events[:4]:
        store.append("r", event)
    lease = store.acquire("r", "somebody", 30.0)
    assert agent(store).cancel("r")
    assert store.asked("r") == ["cancel"]
    assert types(store.load("r"))[-1] == "tool_result"
    store.release(lease)


def test_a_run_can_be_cancelled_from_another_thread(store: Any) -> None:
    entered = threading.Event()

    async def answer(messages: Any) -> Any:
        entered.set()
        await asyncio.get_running_loop().create_future()

    mine = Agentor("A", model=ScriptedModel(answer), store=store)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(mine.run("go", run_id="r")))
    thread.start()
    entered.wait()
    mine.cancel("r")
    thread.join()
    assert results[0].status == "cancelled"


async def test_a_stream_ends_when_its_run_is_cancelled(store: Any) -> None:
    model = Hanging()
    mine = Agentor("A", model=model, store=store)

    async def read() -> list[str]:
        return [event.type async for event in mine.astream("go", run_id="r")]

    task = asyncio.create_task(read())
    await model.entered.wait()
    await mine.acancel("r")
    assert await task == ["run_start", "cancel", "run_end"]


async def test_a_cancelled_batch_keeps_the_results_that_were_there(store: Any) -> None:
    seen = asyncio.Event()

    @function_tool
    async def quick() -> str:
        """At once."""
        return "ok"

    @function_tool
    async def slow() -> str:
        """Never."""
        await asyncio.get_running_loop().create_future()
        return "never"

    script = [calls(("quick", {}), ("slow", {})), says("done")]
    mine = Agentor("A", model=ScriptedModel.by_turn(script), tools=[quick, slow], store=store)

    async def read() -> None:
        async for event in mine.astream("go", run_id="r"):
            if event.type == "tool_result":
                seen.set()

    task = asyncio.create_task(read())
    await seen.wait()
    await mine.acancel("r")
    await task
    assert types(store.load("r"))[-3:] == ["tool_result", "cancel", "run_end"]
    assert verify(store.load("r")) == []


def test_a_budget_of_tokens_is_counted_from_the_log_across_resumes_and_forks(store: Any) -> None:
    first = agent(store, budget=15).run("go")
    assert (first.status, first.usage) == ("budget", Usage(10, 5, 15))
    assert "budget of 15 tokens" in str(first.error)
    idle = ScriptedModel([])
    again = agent(store, idle, budget=15).resume(first.run_id)
    assert again.status == "budget"
    assert agent(store, idle, budget=15).fork(first.run_id, "And now?").status == "budget"
    assert idle.requests == []
    more = agent(store, budget=1000).resume(first.run_id)
    assert more.final_output == ANSWER


def test_a_budget_of_money_needs_prices_and_counts_each_model_by_its_own() -> None:
    prices = {"scripted": (1_000_000.0, 2_000_000.0)}  # 10 in, 5 out: 20 a call
    result = agent(budget=Budget(money=21, prices=prices)).run("go")
    assert (result.status, result.usage.total_tokens) == ("budget", 30)
    with pytest.raises(ConfigError, match="no price for the model 'scripted'"):
        agent(budget=Budget(money=1))
    for bad in ({}, {"tokens": 0}, {"money": -1}, {"tokens": True}):
        with pytest.raises(ConfigError, match="budget"):
            Budget(**bad)
    with pytest.raises(ConfigError, match="budget"):
        agent(budget="much")


async def test_a_deadline_breaks_off_what_is_under_way_and_holds_across_resumes() -> None:
    store, model = MemoryStore(), Hanging()
    result = await Agentor("A", model=model, store=store, deadline_s=0.01).arun("go", run_id="r")
    assert result.status == "deadline"
    assert model.left.is_set()
    idle = ScriptedModel([])
    late = Agentor("A", model=idle, store=store, deadline_s=0.01)
    with clock.installed(Later(60)):
        assert (await late.aresume("r")).status == "deadline"
        assert (await late.afork("r", "again")).status == "deadline"
    assert idle.requests == []
    assert (
        await Agentor("A", model=ScriptedModel(["done"]), store=store).aresume("r")
    ).final_output
    with pytest.raises(ConfigError, match="deadline_s"):
        Agentor("A", deadline_s=-1)


LATE = Later(3600)


async def test_a_question_asked_of_a_fork_after_the_deadline_is_in_its_log_and_waits(
    store: Any,
) -> None:
    await agent(store).arun("go", run_id="r")
    parent, idle = store.load("r"), ScriptedModel([])
    with clock.installed(LATE):
        late = await agent(store, idle, deadline_s=60).afork("r", "And now?", fork_id="f")
    assert (late.status, late.final_output) == ("deadline", None)
    assert types(store.load("f"))[len(parent) :] == ["fork", "run_start", "run_end"]
    assert store.load("f")[-2].messages == [{"role": "user", "content": "And now?"}]
    assert (idle.requests, store.load("r")) == ([], parent)
    assert verify(store.load("f")) == []
    model = ScriptedModel(["Later."])
    assert (await agent(store, model).aresume("f")).final_output == "Later."
    assert model.requests[0].messages[-1] == {"role": "user", "content": "And now?"}


@pytest.mark.parametrize("status", sorted({*typing.get_args(RunStatus)} - {"completed"}))
async def test_a_resume_after_the_deadline_says_so_in_the_log_whatever_the_run_had_ended_as(
    store: Any, status: str
) -> None:
    for event in [*agent().run("go").events[:4], Event("run_end", status=status)]:
        store.append("r", event)
    idle = ScriptedModel([])
    with clock.installed(LATE):
        assert (await agent(store, idle, deadline_s=60).aresume("r")).status == "deadline"
    assert types(store.load("r"))[5:] == ["run_start", "run_end"]
    assert idle.requests == []
    assert (await agent(store).aresume("r")).final_output == ANSWER


async def test_a_decision_that_comes_after_the_deadline_is_kept_for_who_has_more_time(
    store: Any,
) -> None:
    paid: list[str] = []

    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        paid.append("3")
        return "paid"

    def payer(**settings: Any) -> Agentor:
        model = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
        return Agentor("A", model=model, tools=[pay], store=store, **settings)

    await payer().arun("go", run_id="r")
    waits = store.load("r")
    late = payer(deadline_s=60)
    with clock.installed(LATE):
        assert (await late.aresume("r")).status == "paused"  # only a person can go on with it
        assert store.load("r") == waits
        await late.aapprove("r", "call_1")
        assert (await late.awork(until_idle=True)).finished == {"r": "deadline"}
        assert (await late.awork(until_idle=True)).finished == {}
    assert types(store.load("r"))[len(waits) :] == ["approval", "run_start", "run_end"]
    assert paid == []
    assert (await payer().aresume("r")).final_output == "done"
    assert paid == ["3"]


@pytest.mark.parametrize("missing", [1, 2])  # the end, and the message before it
async def test_an_answer_that_is_recorded_is_not_late_though_its_end_is_missing(
    store: Any, missing: int
) -> None:
    whole = agent().run("go").events
    assert types(whole)[-3:] == ["generation", "message", "run_end"]
    for event in whole[:-missing]:
        store.append("r", event)
    idle = ScriptedModel([])
    with clock.installed(LATE):
        late = agent(store, idle, deadline_s=60)
        assert late.plan("r").writes_end
        result = await late.aresume("r")
    assert (result.status, result.final_output) == ("completed", ANSWER)
    assert types(store.load("r")) == types(whole)
    assert idle.requests == []


async def test_a_run_that_has_completed_is_not_late(store: Any) -> None:
    await agent(store).arun("go", run_id="r")
    log = store.load("r")
    with clock.installed(LATE):
        late = agent(store, ScriptedModel([]), deadline_s=60)
        assert (await late.aresume("r")).final_output == ANSWER
        assert (await late.afork("r")).final_output == ANSWER
    assert store.load("r") == log


@pytest.mark.parametrize("status", [None, *typing.get_args(RunStatus)])
async def test_a_run_is_given_up_only_if_it_failed_or_died_and_nobody_did_better_meanwhile(
    store: Any, status: str | None
) -> None:
    ends = [Event("run_end", status=status)] if status else []
    for event in [*agent().run("go").events[:2], *ends]:
        store.append("r", event)
    before = types(store.load("r"))
    assert await end_run(store, "r", Stop("parked", "no use")) == (status in (None, "failed"))
    ended = types(store.load("r"))[len(before) :]
    assert ended == (["run_end"] if status in (None, "failed") else [])


async def test_a_run_that_is_not_recorded_yet_can_be_cancelled_by_its_own_process() -> None:
    class Late(MemoryStore):
        """The first write waits until somebody has cancelled the run."""

        blocking = True

        def __init__(self) -> None:
            super().__init__()
            self.is_asked, self.may_write = threading.Event(), threading.Event()

        def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
            self.is_asked.set()
            self.may_write.wait(60)
            super().append_many(run_id, events, lease)

    store = Late()
    mine = Agentor("A", model=Hanging(), store=store)
    task = asyncio.create_task(mine.arun("go", run_id="r"))
    await asyncio.to_thread(store.is_asked.wait, 60)
    assert await mine.acancel("r", by="ada")
    for _ in range(20):  # until the run has heard of it
        await asyncio.sleep(0)
    store.may_write.set()
    assert (await task).status == "cancelled"
    assert types(store.load("r")) == ["run_start", "cancel", "run_end"]


def test_to_cancel_a_run_that_nobody_works_on_reads_its_log_once() -> None:
    class Counted(MemoryStore):
        reads = 0

        def load(self, run_id: str) -> list[Event]:
            self.reads += 1
            return super().load(run_id)

    store = Counted()
    store.append("r", Event("run_start", agent="A", messages=[{"role": "user", "content": "hi"}]))
    assert agent(store).cancel("r")
    assert store.reads == 1
    assert types(store.load("r")) == ["run_start", "cancel", "run_end"]
