"""An event loop is closed while somebody waits in it for a lease: nothing stays held by nobody."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentor.engine.lease import Keeper
from agentor.engine.recorder import uninterrupted
from agentor.engine.store.protocol import Lease
from tests.engine.lease_book import Book
from tests.engine.leases import TestClock


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
