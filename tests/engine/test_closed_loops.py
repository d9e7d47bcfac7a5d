"""An event loop is closed while somebody waits in it: for a lease, which nobody holds then, or for the end of a run."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from agentor import Agentor, FileStore, stopping
from agentor.engine import clock
from agentor.engine.lease import Keeper
from agentor.engine.recorder import uninterrupted
from agentor.engine.store.protocol import Lease
from agentor.testing import ScriptedModel
from tests.engine.lease_book import Book
from tests.engine.leases import Later, TestClock


class Granting(Book):
    """It grants when it may, on its own thread."""

    blocking = True

    def __init__(self, time: TestClock) -> None:
        super().__init__(time)
        self.is_asked, self.may_grant = threading.Event(), threading.Event()

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        self.is_asked.set()
        assert self.may_grant.wait(10.0)
        return super().acquire(run_id, owner, ttl_s)


@pytest.mark.parametrize("first", ["the loop is closed", "the coroutine is closed"])
def test_a_lease_is_let_go_if_the_loop_that_waits_for_it_is_closed(
    time: TestClock, first: str
) -> None:
    store = Granting(time)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # which hears of the task that never ended
    acquiring = Keeper(store, "r").acquire()

    async def begin() -> None:
        acquiring.send(None)

    loop.run_until_complete(begin())
    assert store.is_asked.wait(10.0)
    if first == "the coroutine is closed":
        acquiring.close()
    loop.close()
    store.may_grant.set()
    assert store.let_go_of.wait(10.0)
    acquiring.close()
    assert {(lease.run_id, lease.term) for lease in store.released} == {("r", 1)}


def test_a_lease_that_was_granted_and_not_yet_heard_of_is_let_go_when_the_coroutine_is_closed(
    time: TestClock,
) -> None:
    store = Granting(time)
    store.may_grant.set()
    acquiring = Keeper(store, "r").acquire()

    async def begin() -> None:
        acquiring.send(None)
        (asking,) = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait({asking})  # it has ended, and nobody was told

    asyncio.run(begin())
    assert store.released == []
    acquiring.close()
    assert store.let_go_of.wait(10.0)


async def test_who_waits_uninterrupted_is_closed_like_everybody_else() -> None:
    waiting = uninterrupted(asyncio.get_running_loop().create_future())
    waiting.send(None)
    waiting.close()  # it may raise nothing


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a run whose loop is gone the collector says that its coroutines cannot wait any more."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lambda _: None)
        yield
        gc.collect()


def left_in_a_closed_loop(store: Any) -> tuple[asyncio.Task[Any], asyncio.AbstractEventLoop]:
    """The run `r`, whose model is being asked in a loop that is closed over it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # which hears of the tasks that never ended

    async def begin() -> asyncio.Task[Any]:
        is_asked = asyncio.Event()

        async def never(messages: Any) -> str:
            is_asked.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        mine = Agentor("A", model=ScriptedModel(never), store=store)
        running = asyncio.ensure_future(mine.arun("go", run_id="r"))
        await is_asked.wait()
        return running

    running = loop.run_until_complete(begin())
    loop.close()
    return running, loop


@pytest.mark.usefixtures("_quiet")
def test_a_run_whose_loop_was_closed_over_it_is_ended_by_whoever_cancels_it(store: Any) -> None:
    left = left_in_a_closed_loop(store)
    with clock.installed(Later(3600)):  # its lease has expired, and nobody renews it
        assert Agentor("A", model=ScriptedModel([]), store=store).cancel("r")
    if isinstance(store, FileStore):  # a lock in files ends with the process: who has it next hears
        assert store.asked("r") == ["cancel"]
    else:
        assert store.load("r")[-1].status == "cancelled"
    del left


@pytest.mark.usefixtures("_quiet")
def test_nothing_keeps_a_run_whose_loop_was_closed_over_it_and_it_may_go_at_any_moment(
    store: Any,
) -> None:
    def leave() -> weakref.ref[asyncio.AbstractEventLoop]:
        return weakref.ref(left_in_a_closed_loop(store)[1])

    def collect() -> None:
        with stopping._lock:  # as whoever tells a run to end, when his memory is tidied up
            gc.collect()

    loop = leave()
    for thread in threading.enumerate():
        if (
            thread.name == "agentor-store"
        ):  # a look at the store that is under way: it knows the loop
            thread.join(30.0)
    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    collecting.join(30.0)
    assert not collecting.is_alive()
    assert loop() is None
    assert (id(store), "r") not in stopping._live
