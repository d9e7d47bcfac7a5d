"""A thread cannot be stopped: while one works for a run that has ended, nobody else may start the run's calls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentor import (
    Agentor,
    LeaseHeldError,
    LeaseLostError,
    MemoryStore,
    SQLiteStore,
    StoreError,
    function_tool,
)
from agentor.engine import clock
from agentor.engine.holding import held_for, hold
from agentor.engine.lease import Keeper
from agentor.engine.store.protocol import Lease
from agentor.errors import StoreClosedError
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import STORES, ThreeMethods
from tests.engine.leases import TestClock
from tests.workers.crew import processes

SCRIPT = [calls(("press", {})), says("done")]


class Press:
    """An agent whose tool is a thread that goes on until the gate is opened."""

    def __init__(self, store: Any, effect: Any = "idempotent", **settings: Any) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        self.ran: Counter[str] = Counter()

        @function_tool(effect=effect)
        def press() -> str:
            """Press."""
            self.ran["press"] += 1
            self.entered.set()
            assert self.gate.wait(60)
            return "pressed"

        model = ScriptedModel.by_turn(SCRIPT)
        self.agent = Agentor("A", model=model, tools=[press], store=store, **settings)

    async def begun(self, **how: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(self.agent.arun("go", run_id="r", **how))
        await asyncio.to_thread(self.entered.wait, 60)
        return task

    async def open_gate(self) -> None:
        """Let the tool end, and see the run let go."""
        holders = [each for each in threading.enumerate() if each.name == "agentor-hold-r"]
        self.gate.set()
        for holder in holders:
            await asyncio.to_thread(holder.join, 60)


async def leave_by_cancelling_the_task(press: Press) -> None:
    task = await press.begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_cancelling_the_run(press: Press) -> None:
    task = await press.begun()
    assert await press.agent.acancel("r", by="ada")
    result = await task
    assert result.status == "cancelled"
    assert result.error == (
        "Cancelled. Still running, since a thread cannot be stopped: press (call_1)."
    )


async def leave_by_dropping_the_stream(press: Press) -> None:
    stream = press.agent.astream("go", run_id="r")
    async for event in stream:
        if event.type == "tool_call":
            break
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(press.entered.wait, 60)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.aclose()


async def leave_by_stopping_the_worker(press: Press) -> None:
    await press.agent.aenqueue("go", run_id="r")
    worker = press.agent.worker(poll_s=0.01)
    working = asyncio.ensure_future(worker.work())
    await asyncio.to_thread(press.entered.wait, 60)
    worker.stop()
    await working


WAYS = [
    leave_by_cancelling_the_task,
    leave_by_cancelling_the_run,
    leave_by_dropping_the_stream,
    leave_by_stopping_the_worker,
]


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("effect", ["idempotent", "once", None])
async def test_a_run_whose_tool_still_runs_is_nobody_elses_until_it_has_ended(
    store: Any, tmp_path: Path, leave: Any, effect: Any
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    press = Press(store, effect)
    await leave(press)
    same_place = store if isinstance(store, MemoryStore) else type(store)(store_path(store))
    rival = Press(same_place, effect)
    with pytest.raises(LeaseHeldError, match="this process itself works on run 'r'"):
        await rival.agent.aresume("r")
    with pytest.raises(LeaseHeldError) as told:
        await press.agent.aresume("r")
    assert told.value.__notes__ == ["Tools of it that still run, and cannot be stopped: press."]
    assert not rival.ran
    await press.open_gate()
    assert held_for(store, "r") == []
    rival.gate.set()
    assert (await rival.agent.aresume("r")).final_output == "done"
    same_place.close()


def store_path(store: Any) -> Any:
    return store.path if isinstance(store, SQLiteStore) else store.directory


async def test_a_deadline_that_a_thread_outlives_holds_the_run(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    press = Press(store, deadline_s=0.5)
    task = await press.begun()
    result = await task
    assert result.status == "deadline"
    assert "Still running" in (result.error or "")
    with pytest.raises(LeaseHeldError):
        await Press(store).agent.aresume("r")
    await press.open_gate()
    later = Press(store)
    later.gate.set()
    assert (await later.agent.aresume("r")).final_output == "done"


async def test_a_run_is_held_for_longer_than_a_lease_lasts(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db", lease_ttl_s=0.2) as store:
        press = Press(store)
        await leave_by_cancelling_the_task(press)
        with pytest.raises(LeaseHeldError):
            await Press(store).agent.aresume("r", wait=0.7)
        await press.open_gate()
        later = Press(store)
        later.gate.set()
        assert (await later.agent.aresume("r")).final_output == "done"


class Failing(MemoryStore):
    """Takes no result while it `fails`."""

    fails = True

    def append_many(self, run_id: str, events: Any, lease: Lease | None = None) -> None:
        if self.fails and any(event.type == "tool_result" for event in events):
            raise StoreError("the disk failed")
        super().append_many(run_id, events, lease)


@pytest.mark.parametrize("durability", ["strict", "best_effort"])
async def test_a_timed_out_call_whose_result_could_not_be_saved_holds_its_run(
    durability: Any,
) -> None:
    store = Failing()
    press = Press(store, tool_timeout_s=0.01, durability=durability)
    task = await press.begun()
    await asyncio.wait({task})
    assert [event.type for event in store.load("r")][-1] == "tool_call"
    store.fails = False
    with pytest.raises(LeaseHeldError):
        await Press(store).agent.aresume("r")
    await press.open_gate()
    later = Press(store)
    later.gate.set()
    assert (await later.agent.aresume("r", wait=True)).final_output == "done"


async def test_a_timed_out_call_has_its_result_so_its_thread_holds_nothing(store: Any) -> None:
    press = Press(store, tool_timeout_s=0.01)
    result = await (await press.begun())
    assert result.status == "completed"
    assert "whether it took effect is not known" in str(result.events)
    if not isinstance(store, ThreeMethods):
        store.release(store.acquire("r", "somebody", 30.0))
    press.gate.set()


def resume_elsewhere(place: Path, answer: Any) -> None:
    """In another process."""
    with SQLiteStore(place / "runs.db") as store:
        press = Press(store)
        press.gate.set()
        try:
            answer.put((press.agent.resume("r").status, press.ran["press"]))
        except LeaseHeldError:
            answer.put(("held", press.ran["press"]))


async def test_a_worker_in_another_process_does_not_start_a_call_that_still_runs(
    tmp_path: Path,
) -> None:
    async def ask_elsewhere() -> Any:
        answer = processes.Queue()
        child = processes.Process(target=resume_elsewhere, args=(tmp_path, answer))
        child.start()
        told = await asyncio.to_thread(answer.get, True, 60)
        await asyncio.to_thread(child.join, 60)
        return told

    with SQLiteStore(tmp_path / "runs.db") as store:
        press = Press(store)
        await leave_by_cancelling_the_run(press)
        assert await ask_elsewhere() == ("held", 0)
        await press.open_gate()
        assert await ask_elsewhere() == ("completed", 1)


def test_the_interpreters_exit_waits_for_no_thread_and_frees_the_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    program = f"""
        import asyncio, threading
        from agentor import Agentor
        from agentor.testing import ScriptedModel, calls

        entered = threading.Event()

        def press() -> str:
            '''Press.'''
            entered.set()
            threading.Event().wait()

        async def main():
            model = ScriptedModel([calls(("press", {{}}))])
            agent = Agentor("A", model=model, tools=[press], store={str(path)!r})
            task = asyncio.ensure_future(agent.arun("go", run_id="r"))
            await asyncio.to_thread(entered.wait)
            task.cancel()
            await asyncio.wait([task])
            try:
                await agent.aresume("r")
            except Exception as error:
                print(type(error).__name__)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "LeaseHeldError\n", done.stderr
    with SQLiteStore(path) as store:
        later = Press(store)
        later.gate.set()
        assert later.agent.resume("r").final_output == "done"


async def test_a_keeper_that_trusts_its_lease_no_more_still_gives_it_back(store: Any) -> None:
    """A process that slept for too long has lost its trust; a file's lock is its own all the same."""
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    keeper = Keeper(store, "r")
    await keeper.acquire()
    keeper.lost = LeaseLostError("r")
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, args=(60,), daemon=True)
    thread.start()
    keeper.hold_for([thread])
    with pytest.raises(LeaseHeldError):
        store.acquire("r", "somebody", 30.0)
    [holder] = [each for each in threading.enumerate() if each.name == "agentor-hold-r"]
    gate.set()
    await asyncio.to_thread(holder.join, 60)
    store.release(store.acquire("r", "somebody", 30.0))


# The holding itself ------------------------------------------------------------------------------------------------


class Desk:
    """A store of leases that writes down what it is asked, and may refuse to renew."""

    def __init__(self, thread: threading.Event, refusal: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()
        self._thread, self._refusal = thread, refusal

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        raise AssertionError("nobody asks")

    def renew(self, lease: Lease) -> Lease:
        self.asked.append("renew")
        if len(self.asked) == 5:
            self._thread.set()
        if self._refusal is not None:
            raise self._refusal
        return lease

    def release(self, lease: Lease) -> None:
        self.asked.append("release")
        self.released.set()


def held(refusal: Exception | None = None, expires_at: float = 0.0) -> Desk:
    """What becomes of a lease that is held for a thread which ends at the fifth renewal."""
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, args=(60,), daemon=True)
    thread.start()
    desk = Desk(gate, refusal)
    hold(desk, Lease("held", "me", 1, expires_at, 0.003), [thread])
    for holder in [each for each in threading.enumerate() if each.name == "agentor-hold-held"]:
        holder.join(60)
    gate.set()
    return desk


def test_a_lease_is_renewed_until_the_thread_has_ended_and_then_released() -> None:
    desk = held()
    assert desk.asked[:5] == ["renew"] * 5
    assert desk.asked[-1] == "release"


def test_a_lease_that_somebody_took_is_given_up_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "agentor")
    assert held(LeaseLostError("held")).asked == ["renew"]
    assert "its lease was lost while a tool still ran" in caplog.text


@pytest.mark.parametrize("expires_at", [0.0, 2e12])
def test_a_store_that_cannot_renew_is_asked_again_until_the_thread_has_ended(
    caplog: pytest.LogCaptureFixture, expires_at: float
) -> None:
    caplog.set_level(logging.WARNING, "agentor")
    asked = held(OSError("the disk is full"), expires_at).asked
    assert asked[:5] == ["renew"] * 5
    assert asked[-1] == "release"
    assert "its lease was not renewed (the disk is full)" in caplog.text


def test_a_store_that_was_closed_holds_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    assert held(StoreClosedError("runs.db")).asked == ["renew"]
    assert "its lease could not be held or released (runs.db: this store is closed" in caplog.text


def test_a_run_is_let_go_when_its_thread_ends_however_long_no_renewal_came_through(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    gate, is_long_over = threading.Event(), threading.Event()

    def renew(lease: Lease) -> Lease:
        if clock.now() > lease.expires_at + lease.ttl_s:
            is_long_over.set()
        raise StoreError("the disk does not answer")

    thread = threading.Thread(target=gate.wait, args=(60,), daemon=True)
    thread.start()
    monkeypatch.setattr(store, "renew", renew)
    hold(store, store.acquire("r", "me", 0.01), [thread])
    [holder] = [each for each in threading.enumerate() if each.name == "agentor-hold-r"]
    assert is_long_over.wait(60)
    assert holder.is_alive()
    gate.set()
    holder.join(60)
    assert store.holder("r") is None
    assert held_for(store, "r") == []
    assert store.acquire("r", "somebody", 30.0).owner == "somebody"


def test_who_cannot_be_given_a_thread_holds_a_run_as_soon_as_somebody_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gate = threading.Event()
    tool = threading.Thread(target=gate.wait, args=(60,), name="agentor-tool-pay", daemon=True)
    tool.start()
    desk = Desk(gate)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        hold(desk, Lease("held", "me", 1, 0.0, 0.003), [tool])
        assert held_for(desk, "held") == ["pay"]
    assert desk.asked == []
    assert set(caplog.messages) == {
        "run held: its lease is not renewed for now (can't start new thread)"
    }
    assert held_for(desk, "held") == ["pay"]
    assert desk.released.wait(60)
    assert desk.asked[:5] == ["renew"] * 5


# What is said of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
async def test_a_run_is_said_to_be_held_where_somebody_holds_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    press = Press(STORES[name](tmp_path))
    await leave_by_cancelling_the_task(press)
    holds = name != "three methods"
    how = "held until it ends" if holds else "it goes on, and cannot be stopped"
    assert f"run r: {how}: press (call_1)" in caplog.messages
    await press.open_gate()


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_run_is_not_said_to_be_held_by_whoever_was_suspended_beyond_its_lease(
    is_taken: bool, time: TestClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    press = Press(store, "once")
    task = await press.begun()
    time.stand_still(31.0)
    if is_taken:
        store.acquire("r", "rival", 30.0)
    with pytest.raises(LeaseLostError):
        await asyncio.gather(task, time.move(5.0))
    assert "run r: it goes on, and cannot be stopped: press (call_1)" in caplog.messages
    await press.open_gate()
    told = [text for text in caplog.messages if "its lease was lost while a tool" in text]
    assert len(told) == is_taken
