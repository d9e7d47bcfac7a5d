"""Workers take what is unfinished, share it, give up after a bounded number of attempts, and stop cleanly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    LeaseHeldError,
    MemoryStore,
    RunExistsError,
    RunResult,
    StoreError,
    function_tool,
)
from agentor.engine import clock
from agentor.engine.clock import SystemClock
from agentor.engine.events import Event, Usage
from agentor.testing import ScriptedModel, calls, says
from agentor.worker import Step, Worker, WorkPlan, WorkReport
from tests.engine.agents import ANSWER, ThreeMethods, Tools, agent, types
from tests.engine.leases import Later


def test_an_enqueued_run_is_in_the_store_and_asks_no_model(store: Any) -> None:
    idle = ScriptedModel([])
    run_id = agent(store, idle).enqueue("go")
    [start] = store.load(run_id)
    assert (start.type, start.queued, start.agent) == ("run_start", True, "Weather Agent")
    assert idle.requests == []
    with pytest.raises(RunExistsError):
        agent(store).enqueue("go", run_id=run_id)
    with pytest.raises(ConfigError, match="store"):
        agent().enqueue("go")
    with pytest.raises(ConfigError, match="empty"):
        agent(store).enqueue("")


def test_a_worker_finishes_what_was_enqueued_and_what_was_left_behind(store: Any) -> None:
    queued = agent(store).enqueue("go", run_id="queued")
    for event in agent().run("go").events[:6]:
        store.append("crashed", event)
    agent(store).run("go", run_id="finished")
    Agentor("Another", model=ScriptedModel([]), store=store).enqueue("not mine", run_id="other")
    report = agent(store).work(until_idle=True, poll_s=0.01)
    assert report.finished == {queued: "completed", "crashed": "completed"}
    assert types(store.load("other")) == ["run_start"]
    assert agent(store).resume("crashed").final_output == ANSWER
    assert store.load("queued")[-1].status == "completed"


def test_two_workers_share_the_work_and_no_tool_runs_twice(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    tools = Tools()
    agents = [agent(store, tools=tools) for _ in range(2)]
    for number in range(12):
        agents[0].enqueue("go", run_id=f"r{number}")

    async def both() -> list[Any]:
        return await asyncio.gather(*(a.awork(until_idle=True, poll_s=0.01) for a in agents))

    reports = asyncio.run(both())
    finished = [run_id for report in reports for run_id in report.finished]
    assert sorted(set(finished)) == sorted(f"r{n}" for n in range(12))
    assert tools.ran["get_weather London"] == 12


async def test_a_run_that_ends_unfinished_while_the_worker_looks_on_is_taken_again() -> None:
    has_ended = threading.Event()

    class SlowToLoad(MemoryStore):
        blocking = True
        runs = None  # type: ignore[assignment]  # so that a worker loads all of them
        is_slow = False

        def load(self, run_id: str) -> list[Event]:
            if self.is_slow and run_id == "another_agents":
                has_ended.wait(10)
            return super().load(run_id)

    store, attempts = SlowToLoad(), 0
    await agent(store).aenqueue("go", run_id="held")
    await Agentor("B", model=ScriptedModel([]), store=store).aenqueue("go", "another_agents")
    store.is_slow = True

    async def resume(run_id: str, which: str) -> RunResult:
        nonlocal attempts
        attempts += 1
        has_ended.set()
        if attempts == 1:
            raise LeaseHeldError(run_id, "somebody", None)
        return await agent(store).aresume(run_id)

    async def never(run_id: str, which: str, reason: str) -> None:
        raise AssertionError(run_id)

    mine = agent(store)
    plan = WorkPlan(until_idle=True, poll_s=0.01)
    report = await Worker(store, mine.name, plan, resume, never).work()
    assert report.finished == {"held": "completed"}


async def test_no_more_runs_are_worked_on_than_there_is_room_for(store: Any) -> None:
    busy, most = 0, 0

    @function_tool
    async def step() -> str:
        """Count who is here."""
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        for _ in range(5):
            await asyncio.sleep(0)
        busy -= 1
        return "ok"

    model = ScriptedModel.by_turn([calls(("step", {})), says("done")])
    mine = Agentor("A", model=model, tools=[step], store=store)
    for number in range(8):
        await mine.aenqueue("go", run_id=f"r{number}")
    report = await mine.awork(until_idle=True, concurrency=3, poll_s=0.01)
    assert len(report.finished) == 8
    assert most <= 3


async def test_a_run_that_keeps_failing_is_tried_a_bounded_number_of_times_and_parked() -> None:
    store = MemoryStore()
    model = ScriptedModel(lambda messages: ConnectionError("reset"))
    mine = agent(store, model)
    await mine.aenqueue("go", run_id="r")
    with clock.installed(Later(0)) as later:
        worker = mine.worker(until_idle=True, max_attempts=3, backoff_s=10, poll_s=0.001)
        told = asyncio.Event()
        worker.watch = lambda step: told.set()
        while not worker.report.parked:
            told.clear()
            tasks = {asyncio.create_task(worker.work()), asyncio.create_task(told.wait())}
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            later._seconds += 1000  # type: ignore[attr-defined]
            worker._known.clear()
    assert len(model.requests) == 3
    assert "Gave up after 3 attempts" in worker.report.parked["r"]
    assert "ConnectionError: reset" in worker.report.parked["r"]
    assert store.load("r")[-1].status == "parked"
    idle = ScriptedModel([])
    assert (await agent(store, idle).awork(until_idle=True)).finished == {}
    assert (await agent(store).aresume("r")).final_output == ANSWER  # by hand it still goes on


async def test_a_run_that_will_not_be_tried_again_is_parked_without_a_pause() -> None:
    store = MemoryStore()
    mine = agent(store, ScriptedModel([ConnectionError("reset")]))
    with pytest.raises(ConnectionError):
        await mine.arun("go", run_id="r")
    report = await mine.awork(until_idle=True, max_attempts=1, backoff_s=3600, poll_s=0.001)
    assert "Gave up after 1 attempts" in report.parked["r"]


async def test_the_pause_before_another_attempt_is_counted_from_the_log() -> None:
    store = MemoryStore()
    mine = agent(store, ScriptedModel([ConnectionError("reset")]))
    with pytest.raises(ConnectionError):
        await mine.arun("go", run_id="r")
    idle = ScriptedModel([])
    worker = agent(store, idle).worker(backoff_s=60, poll_s=0.001)
    working = asyncio.create_task(worker.work())
    for _ in range(20):
        await asyncio.sleep(0)
    worker.stop()
    await working
    assert idle.requests == []


def test_a_clock_that_was_ahead_makes_no_pause_longer_than_it_is(store: Any) -> None:
    for event in [
        Event("run_start", agent="A", messages=[{"role": "user", "content": "go"}]),
        Event("run_end", status="failed", error="reset", ended_at=clock.now() + 86_400),
    ]:
        store.append("r", event)
    mine = Agentor("A", model=ScriptedModel(["done"]), store=store)
    report = mine.work(until_idle=True, backoff_s=0.01, poll_s=0.001)
    assert report.finished == {"r": "completed"}


def test_a_worker_goes_on_with_a_paused_run_once_somebody_has_decided(store: Any) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
    mine = Agentor("A", model=model, tools=[pay], store=store)
    mine.enqueue("go", run_id="r")
    assert mine.work(until_idle=True).finished == {"r": "paused"}
    assert mine.work(until_idle=True).finished == {}
    mine.approve("r", "call_1")
    assert mine.work(until_idle=True).finished == {"r": "completed"}


def test_a_run_that_a_person_decides_on_eight_times_is_never_parked(store: Any) -> None:
    paid: list[int] = []

    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    script = [calls(("pay", {"amount": amount})) for amount in range(8)]
    model = ScriptedModel.by_turn([*script, says("done")])
    mine = Agentor("A", model=model, tools=[pay], store=store)
    mine.enqueue("go", run_id="r")
    for _ in range(8):
        assert mine.work(until_idle=True, max_attempts=2).finished == {"r": "paused"}
        [call] = mine.result("r").pending
        mine.approve("r", call.call_id)
    assert mine.work(until_idle=True, max_attempts=2).finished == {"r": "completed"}
    assert paid == list(range(8))


async def test_a_stopped_worker_ends_what_it_has_where_it_is_recorded(store: Any) -> None:
    entered = asyncio.Event()

    async def answer(messages: Any) -> Any:
        entered.set()
        await asyncio.get_running_loop().create_future()

    mine = agent(store, ScriptedModel(answer))
    await mine.aenqueue("go", run_id="r")
    worker = mine.worker()
    working = asyncio.create_task(worker.work())
    await entered.wait()
    worker.stop()
    report = await working
    assert report.finished == {}
    assert types(store.load("r")) == ["run_start", "run_start", "stop"]
    assert agent(store).resume("r").final_output == ANSWER


def test_a_run_that_cannot_be_loaded_for_now_keeps_no_other_from_being_worked_on() -> None:
    class Busy(MemoryStore):
        left = 0

        def load(self, run_id: str) -> list[Event]:
            if run_id == "busy" and self.left:
                self.left -= 1
                raise StoreError("somebody has it locked")
            return super().load(run_id)

    store = Busy()
    for run_id in ("other", "busy"):
        agent(store).enqueue("go", run_id=run_id)
    store.left = 3
    report = agent(store).work(until_idle=True, newest_first=True, poll_s=0.001)
    assert report.finished == {"busy": "completed", "other": "completed"}
    assert list(report.finished) == ["other", "busy"]
    assert (report.failed, store.left) == ({}, 0)


def test_a_worker_without_a_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="store"):
        agent().work()


async def test_time_in_the_queue_does_not_count_against_the_deadline() -> None:
    store = MemoryStore()
    mine = agent(store, deadline_s=5)
    await mine.aenqueue("go", run_id="r")
    with clock.installed(Later(3600)):
        report = await mine.awork(until_idle=True, poll_s=0.001)
    assert report.finished == {"r": "completed"}


async def test_a_run_whose_deadline_is_over_is_ended_by_a_worker_once_and_for_all(
    store: Any,
) -> None:
    broken = agent(store, ScriptedModel(lambda messages: ConnectionError("reset")))
    with pytest.raises(ConnectionError):
        await broken.arun("go", run_id="r")
    idle = ScriptedModel([])
    late = agent(store, idle, deadline_s=60)
    with clock.installed(Later(3600)):
        how: dict[str, Any] = {"until_idle": True, "poll_s": 0.001}
        assert (await late.awork(**how)).finished == {"r": "deadline"}
        assert (await late.awork(**how)).to_dict() == WorkReport().to_dict()
    assert types(store.load("r")) == ["run_start", "run_end"] * 2
    assert idle.requests == []


class Jumping(SystemClock):
    """Nobody waits: whoever sleeps wakes at once, and it is later."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def now(self) -> float:
        return super().now() + self.slept_s

    def monotonic(self) -> float:
        return self.slept_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        await asyncio.sleep(0)


class HoldsAllTwice(MemoryStore):
    """Whose every append failed once when it had written."""

    def load(self, run_id: str) -> list[Event]:
        return [event for event in super().load(run_id) for _ in range(2)]


async def worked_in_vain(
    resume: Callable[[str, str], Awaitable[RunResult]],
    kind: Callable[[], Any] = MemoryStore,
    **how: Any,
) -> tuple[list[tuple[float, Step]], WorkReport]:
    """What a worker tells, and when, of a run that `resume` does not move."""

    async def never(run_id: str, which: str, reason: str) -> None:
        raise AssertionError(run_id)

    store, told = kind(), list[tuple[float, Step]]()
    mine = agent(store)
    await mine.aenqueue("go", run_id="r")
    worker = Worker(store, mine.name, WorkPlan(poll_s=0.25, **how), resume, never)
    with clock.installed(Jumping()) as jumping:

        def watch(step: Step) -> None:
            told.append((jumping.monotonic(), step))
            if len(told) == 20:
                worker.stop()

        worker.watch = watch
        report = await worker.work()
    assert set(types(store.load("r"))) == {"run_start"}
    return told, report


def test_a_worker_goes_on_with_a_run_that_its_store_holds_twice() -> None:
    store, tools = HoldsAllTwice(), Tools()
    agent(store).enqueue("go", run_id="queued")
    for event in agent().run("go").events[:6]:
        store.append("crashed", event)
    report = agent(store, tools=tools).work(until_idle=True, poll_s=0.01)
    assert report.finished == {"queued": "completed", "crashed": "completed"}


@pytest.mark.parametrize("kind", [MemoryStore, HoldsAllTwice])
@pytest.mark.parametrize("error", [RuntimeError("gone"), StoreError("the disk is full")])
async def test_attempts_that_leave_nothing_in_the_log_have_pauses_and_an_end(
    error: Exception, kind: Callable[[], Any]
) -> None:
    async def resume(run_id: str, which: str) -> RunResult:
        raise error

    told, report = await worked_in_vain(resume, kind, until_idle=True, max_attempts=4)
    assert [step.outcome for _, step in told] == ["failed"] * 4 + ["refused"]
    assert [at_s for at_s, _ in told] == [0, 1, 3, 7, 7]
    assert "4 attempts in a row left nothing in its log; the last: " in report.failed["r"]
    assert str(error) in report.failed["r"]


async def test_a_worker_that_goes_on_looks_again_at_what_it_has_refused_after_the_longest_pause() -> (
    None
):
    async def resume(run_id: str, which: str) -> RunResult:
        raise StoreError("the disk is full")

    told, _ = await worked_in_vain(resume, max_attempts=3)
    refused = [at_s for at_s, step in told if step.outcome == "refused"]
    assert refused == [3, 303, 603, 903, 1203, 1503, 1803, 2103, 2403]


async def test_a_resume_that_finds_nothing_to_do_is_refused_at_once() -> None:
    async def resume(run_id: str, which: str) -> RunResult:
        start = Event("run_start", queued=True)
        return RunResult(None, "failed", run_id, [start], Usage(), [])

    told, report = await worked_in_vain(resume, until_idle=True)
    assert [step.outcome for _, step in told] == ["refused"]
    assert "found nothing to do" in report.failed["r"]
    assert report.finished == {}


async def test_a_run_whose_end_could_not_be_saved_is_not_told_as_finished() -> None:
    class Full(MemoryStore):
        is_full = False

        def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
            if self.is_full:
                raise StoreError("the disk is full")
            super().append_many(run_id, events, lease)

    store = Full()
    store.append("r", agent().run("go").events[0])
    store.is_full = True
    worker = agent(store).worker(until_idle=True, max_attempts=3, backoff_s=0.01, poll_s=0.01)
    told: list[Step] = []

    def watch(step: Step) -> None:
        told.append(step)
        store.is_full = len(told) < 2

    worker.watch = watch
    report = await worker.work()
    assert [step.outcome for step in told] == ["failed", "failed", "completed"]
    assert told[0].error == "completed, but 12 of its events could not be saved"
    assert (report.finished, report.failed) == ({"r": "completed"}, {})
    assert store.load("r")[-1].status == "completed"
