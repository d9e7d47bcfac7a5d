"""What a store may have done without saying so: a lease that nobody heard of is given back, or is in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentor import FileStore, LeaseHeldError, MemoryStore, StoreError
from agentor.engine.lease import GIVING_BACK_S, Keeper, _Asked
from agentor.engine.store import SQLiteStore
from agentor.engine.store.protocol import Holder, Lease
from tests.engine.lease_book import Book, Hanging
from tests.engine.leases import TestClock


def deafened(store: Any, verb: str) -> Any:
    """The store, whose verb once does what it is asked and then fails to say so."""
    ask, answers = getattr(store, verb), iter([StoreError("no answer")])

    def deaf(*args: Any) -> Any:
        outcome = ask(*args)
        for error in answers:
            raise error
        return outcome

    setattr(store, verb, deaf)
    return store


@pytest.fixture(params=["memory", "file", "sqlite"])
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with contextlib.closing(SQLiteStore(tmp_path / "runs.db")) as sqlite:
        yield {"memory": MemoryStore(), "file": FileStore(tmp_path), "sqlite": sqlite}[
            request.param
        ]


async def test_a_lease_that_was_granted_without_our_hearing_of_it_is_ours_the_next_time(
    leases: Any,
) -> None:
    keeper = Keeper(deafened(leases, "acquire"), "r")
    with pytest.raises(StoreError, match="no answer"):
        await keeper.ensure()
    await keeper.ensure()
    assert keeper.lease is not None
    assert keeper.lease.term == 1
    await keeper.release()
    assert leases.holder("r") is None


@pytest.mark.parametrize("through", ["acquire", "ensure"])
async def test_whoever_gives_up_after_an_acquire_that_failed_leaves_no_lease_behind(
    leases: Any, through: str
) -> None:
    keeper = Keeper(deafened(leases, "acquire"), "r")
    with pytest.raises(StoreError, match="no answer"):
        await getattr(keeper, through)()
    await keeper.release()
    assert leases.holder("r") is None
    another = Keeper(leases, "r")
    await another.acquire()
    await keeper.release()
    assert another.lease is not None
    assert leases.renew(another.lease).owner == another.lease.owner


async def test_a_renewal_and_a_release_that_failed_when_they_were_done_harm_nothing(
    leases: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(leases, "r")
    await keeper.acquire()
    lease = keeper.lease
    assert lease is not None
    await keeper._renew(deafened(leases, "renew"), lease)
    keeper.check()
    assert (keeper.lease, keeper.lost) == (lease, None)
    await keeper._renew(leases, lease)  # the one that it knows of is good for the next
    assert keeper.lost is None
    deafened(leases, "release")
    await keeper.release()
    for holder in threading.enumerate():
        if holder.name == "agentor-hold-r":  # who tries it again
            await asyncio.to_thread(holder.join, 60)
    assert [message.split(" (")[0] for message in caplog.messages] == [
        "run r: its lease was not renewed",
        "run r: the release of its lease failed",
    ]
    await Keeper(leases, "r").acquire()


@pytest.mark.parametrize("leaves_at", ["before it is granted", "after"])
def test_a_lease_that_is_granted_when_everybody_has_left_is_let_go_where_it_was_asked_for(
    time: TestClock, leaves_at: str
) -> None:
    asked = _Asked()

    class Late(Book):
        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            if leaves_at != "after":
                assert asked.leave() is None
            return super().acquire(run_id, owner, ttl_s)

    late = Late(time)
    lease = asked.acquire(late, "r", "me", 60.0)
    if leaves_at == "after":
        assert asked.leave() == lease  # for whoever leaves to let go
        assert late.released == []
    else:
        assert late.released == [lease]


async def test_what_cannot_be_given_back_is_told_to_whoever_debugs(
    time: TestClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "agentor")
    store = Failing(time, [StoreError("disk full"), RuntimeError("broken")])
    with pytest.raises(StoreError, match="disk full"):
        await Keeper(store, "r").acquire()
    assert caplog.messages == ["run r: what was granted, if it was: broken"]


async def test_where_nobody_holds_the_run_nothing_is_asked_for_again(
    time: TestClock, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    class Names(Book):
        def holder(self, run_id: str) -> Holder | None:
            return None

    caplog.set_level(logging.DEBUG, "agentor")
    names = Names(time)
    names.fault = StoreError("disk full")
    with pytest.raises(StoreError, match="disk full"):
        await Keeper(names, "r").acquire()
    assert [verb for verb, _ in names.asked] == ["acquire"]
    assert caplog.messages == []


async def test_a_store_that_names_no_holder_is_asked_again_under_the_same_name(
    time: TestClock, book: Book
) -> None:
    keeper = Keeper(deafened(book, "acquire"), "r")
    with pytest.raises(StoreError, match="no answer"):
        await keeper.acquire()
    assert [verb for verb, _ in book.asked] == ["acquire", "acquire", "release"]
    assert book.owners == [book.released[0].owner] * 2
    assert set(book.threads) == {threading.main_thread()}  # it says that it never blocks
    await keeper.release()
    assert len(book.asked) == 3  # one attempt


async def test_a_refusal_leaves_nothing_to_give_back(time: TestClock, book: Book) -> None:
    book.fault = LeaseHeldError("r", "rival", None)
    keeper = Keeper(book, "r")
    with pytest.raises(LeaseHeldError):
        await keeper.acquire()
    await keeper.release()
    assert [verb for verb, _ in book.asked] == ["acquire"]


class Failing(Hanging):
    """Fails as often as it is told to, each time as it is told to."""

    def __init__(self, time: TestClock, faults: Sequence[Exception] = ()) -> None:
        super().__init__(time)
        self.faults = list(faults)

    def _note(self, verb: str) -> None:
        self.fault = self.faults.pop(0) if self.faults else None
        super()._note(verb)


async def test_what_is_heard_of_is_why_it_failed_and_not_that_nothing_could_be_given_back(
    time: TestClock,
) -> None:
    store = Failing(time, [StoreError("disk full"), RuntimeError("broken")])
    with pytest.raises(StoreError, match="disk full"):
        await Keeper(store, "r").acquire()
    assert [verb for verb, _ in store.asked] == ["acquire", "acquire"]


class SlowToGrant(Failing):
    """What it grants hangs, in a thread of its own, until it is let go."""

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        if not self.faults:
            self.loop.call_soon_threadsafe(self.renewing.set)
            self.let_go.wait(60)
        return super().acquire(run_id, owner, ttl_s)


async def test_to_give_back_holds_nobody_up_for_long_and_goes_on_to_its_end(
    time: TestClock,
) -> None:
    store = SlowToGrant(time, [StoreError("disk full")])
    keeper = Keeper(store, "r")
    acquiring = asyncio.create_task(keeper.acquire())
    await store.renewing.wait()
    await time.move(GIVING_BACK_S - 0.1)
    assert not acquiring.done()
    await time.move(0.2)
    await asyncio.wait({acquiring})
    with pytest.raises(StoreError, match="disk full"):
        acquiring.result()
    store.let_go.set()
    await asyncio.to_thread(store.let_go_of.wait, 60)
    await keeper.ensure()
    given, mine = store.owners
    assert given == store.released[0].owner != mine
    assert given.rsplit("/", 1)[0] == mine.rsplit("/", 1)[0]


@pytest.mark.parametrize("blocking", [False, True])
async def test_whoever_leaves_before_the_lease_is_asked_for_is_held_up_by_nothing(
    time: TestClock, book: Book, blocking: bool
) -> None:
    book.blocking = blocking
    keeper = Keeper(book, "r")
    acquiring = asyncio.create_task(keeper.acquire())
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    done, _ = await asyncio.wait({acquiring}, timeout=10)
    assert done == {acquiring}
    assert acquiring.cancelled()
    assert len(book.released) == len(book.owners)


async def test_a_loop_that_is_torn_down_while_a_lease_is_asked_for_leaves_none_behind(
    time: TestClock,
) -> None:
    store = SlowToGrant(time)
    acquiring = asyncio.create_task(Keeper(store, "r").acquire())
    await store.renewing.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as a closing loop does
        task.cancel()
    await time.settle()
    store.let_go.set()
    await asyncio.wait({acquiring})
    assert acquiring.cancelled()
    assert await asyncio.to_thread(store.let_go_of.wait, 60)
    assert store.released[0].owner == store.owners[0] == store.owners[-1]


@pytest.mark.parametrize("refused", [False, True])
async def test_whoever_leaves_while_a_lease_is_asked_for_leaves_none_behind(
    time: TestClock, refused: bool
) -> None:
    class Slow(Hanging):
        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            self.loop.call_soon_threadsafe(self.renewing.set)
            self.let_go.wait(60)
            return super().acquire(run_id, owner, ttl_s)

    store = Slow(time)
    store.fault = LeaseHeldError("r", "rival", None) if refused else None
    keeper = Keeper(store, "r")
    acquiring = asyncio.create_task(keeper.acquire())
    await store.renewing.wait()
    acquiring.cancel()
    await time.settle()
    assert not acquiring.done()
    store.let_go.set()
    await asyncio.wait({acquiring})
    assert acquiring.cancelled()
    assert keeper.lease is None
    assert [lease.owner for lease in store.released] == store.owners
