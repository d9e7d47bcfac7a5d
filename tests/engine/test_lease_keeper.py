"""The keeper of a lease, beat by beat, under a clock that the test owns."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentor import LeaseHeldError, LeaseLostError, StoreError
from agentor.engine import holding
from agentor.engine.lease import DEFAULT_TTL_S, Keeper
from agentor.engine.store.owner import owner_id
from agentor.engine.store.protocol import Lease
from agentor.errors import StoreClosedError
from tests.engine.agents import ThreeMethods
from tests.engine.lease_book import Book, Hanging
from tests.engine.leases import TestClock


async def held(store: object) -> tuple[Keeper, asyncio.Task[None]]:
    """A keeper that has acquired and keeps."""
    keeper = Keeper(store, "r")
    await keeper.acquire()
    keeping = asyncio.create_task(keeper.keep())
    await asyncio.sleep(0)
    return keeper, keeping


async def stop(keeping: asyncio.Task[None]) -> None:
    keeping.cancel()
    await asyncio.wait({keeping})


async def test_a_store_without_leases_is_asked_for_none_and_loses_none(time: TestClock) -> None:
    keeper, keeping = await held(ThreeMethods())
    await keeper.ensure()
    await time.move(3600)
    keeper.check()
    await keeper.release()
    assert (keeper.lease, keeper.lost, keeping.done()) == (None, None, False)
    await stop(keeping)


async def test_a_lease_is_asked_for_by_this_process_for_as_long_as_the_store_says(
    time: TestClock, book: Book
) -> None:
    keeper = Keeper(book, "r")
    await keeper.acquire()
    assert keeper.lease is not None
    assert (keeper.lease.run_id, keeper.lease.ttl_s, keeper.run_id) == ("r", 60.0, "r")
    [owner] = book.owners
    assert owner.rsplit("/", 1)[0] == owner_id().rsplit("/", 1)[0]


async def test_a_store_that_names_no_time_is_asked_for_half_a_minute(time: TestClock) -> None:
    class Unsaid(Book):
        lease_ttl_s = property()  # type: ignore[assignment]  # no such attribute

    keeper, keeping = await held(Unsaid(time))
    assert keeper.lease is not None
    assert keeper.lease.ttl_s == DEFAULT_TTL_S == 30.0
    await stop(keeping)


async def test_a_lease_is_trusted_to_a_tenth_before_its_end_and_never_again(
    time: TestClock, book: Book
) -> None:
    keeper = Keeper(book, "r")
    await keeper.acquire()
    time.stand_still(53.9)
    keeper.check()
    time.stand_still(0.1)
    with pytest.raises(LeaseLostError) as caught:
        keeper.check()
    assert caught.value.run_id == "r"
    assert keeper.lost is caught.value
    time.stand_still(-60)  # nor when a clock is set back
    with pytest.raises(LeaseLostError):
        keeper.check()


async def test_trust_begins_when_the_lease_was_asked_for_not_when_it_was_given(
    time: TestClock,
) -> None:
    class Slow(Book):
        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            time.stand_still(20)
            return super().acquire(run_id, owner, ttl_s)

    keeper = Keeper(Slow(time), "r")
    await keeper.acquire()
    time.stand_still(33.9)
    keeper.check()
    time.stand_still(0.1)
    with pytest.raises(LeaseLostError):
        keeper.check()


async def test_a_lease_is_renewed_at_each_third_of_its_time_and_trusted_anew(
    time: TestClock, book: Book
) -> None:
    keeper, keeping = await held(book)
    first = keeper.lease
    await time.move(119)
    assert book.asked == [("acquire", 0), *(("renew", at) for at in (20, 40, 60, 80, 100))]
    assert first is not None
    assert keeper.lease is not None
    assert keeper.lease.expires_at == first.expires_at + 100
    time.stand_still(34.9)  # 153.9; trusted to 154
    keeper.check()
    assert not keeping.done()
    await stop(keeping)


@pytest.mark.parametrize("ttl_s", [60.0, 1.5])
async def test_a_renewal_that_fails_is_tried_again_and_the_trust_ends_when_it_would(
    time: TestClock, book: Book, caplog: pytest.LogCaptureFixture, ttl_s: float
) -> None:
    book.lease_ttl_s = ttl_s
    keeper, keeping = await held(book)
    book.fault = StoreError("disk full")
    await time.move(0.89 * ttl_s)
    assert book.asked[1:] == [("renew", ttl_s / 3), ("renew", ttl_s * 2 / 3)]
    assert caplog.messages == ["run r: its lease was not renewed (disk full)"] * 2
    assert not keeping.done()
    await time.move(0.02 * ttl_s)
    assert keeping.done()
    assert isinstance(keeper.lost, LeaseLostError)
    assert keeper.lost.run_id == "r"
    assert len(book.asked) == 3  # too late to be worth a question


async def test_a_renewal_that_comes_through_at_last_saves_the_lease(
    time: TestClock, book: Book
) -> None:
    keeper, keeping = await held(book)
    book.fault = StoreError("disk full")
    await time.move(30)
    book.fault = None
    await time.move(60)
    assert [at for verb, at in book.asked if verb == "renew"] == [20, 40, 60, 80]
    keeper.check()
    await stop(keeping)


async def test_a_lease_that_was_taken_over_is_lost_with_the_stores_own_words(
    time: TestClock, book: Book
) -> None:
    keeper, keeping = await held(book)
    book.fault = LeaseLostError("r", "rival")
    await time.move(20)
    assert keeping.done()
    assert keeper.lost is book.fault
    with pytest.raises(LeaseLostError, match="held by rival"):
        keeper.check()


async def test_a_keeper_that_was_suspended_past_its_trust_asks_for_no_renewal(
    time: TestClock, book: Book
) -> None:
    keeper, keeping = await held(book)
    time.stand_still(54)
    await time.move(0)
    assert keeping.done()
    assert isinstance(keeper.lost, LeaseLostError)
    assert keeper.lost.run_id == "r"
    assert book.asked == [("acquire", 0)]


@pytest.mark.parametrize("ttl_s", [60.0, 1.5])
async def test_a_renewal_that_hangs_ends_the_trust_when_it_ends(
    time: TestClock, ttl_s: float
) -> None:
    store = Hanging(time)
    store.lease_ttl_s = ttl_s
    keeper, keeping = await held(store)
    try:
        await time.move(ttl_s / 3)
        await store.renewing.wait()
        await time.move(0.89 * ttl_s - ttl_s / 3)
        assert not keeping.done()
        await time.move(0.02 * ttl_s)
        assert keeping.done()
        assert isinstance(keeper.lost, LeaseLostError)
        assert keeper.lost.run_id == "r"
    finally:
        store.let_go.set()


async def test_a_renewal_that_takes_its_time_counts_from_when_it_was_sent(time: TestClock) -> None:
    store = Hanging(time)
    keeper, keeping = await held(store)
    first = keeper.lease
    await time.move(20)
    await store.renewing.wait()
    await time.move(30)
    store.let_go.set()
    async with asyncio.timeout(5):
        while keeper.lease is first:  # noqa: ASYNC110  # until its thread is back
            await asyncio.sleep(0)
    time.stand_still(23.9)  # 73.9; trusted to 20 + 54
    keeper.check()
    time.stand_still(0.2)
    with pytest.raises(LeaseLostError):
        keeper.check()
    await stop(keeping)


@pytest.mark.parametrize("blocking", [False, True])
async def test_only_a_store_that_blocks_is_asked_in_a_thread_of_its_own(
    time: TestClock, book: Book, blocking: bool
) -> None:
    book.blocking = blocking
    keeper = Keeper(book, "r")
    await keeper.acquire()
    assert keeper.lease is not None
    await keeper._renew(book, keeper.lease)
    await keeper.release()
    assert [verb for verb, _ in book.asked] == ["acquire", "renew", "release"]
    assert [thread is threading.main_thread() for thread in book.threads] == [not blocking] * 3


async def test_a_lease_is_let_go_once_and_not_taken_again(time: TestClock, book: Book) -> None:
    keeper = Keeper(book, "r")
    await keeper.acquire()
    lease = keeper.lease
    for _ in range(2):
        await keeper.release()
        await keeper.ensure()
    assert book.released == [lease]
    assert keeper.lease is None
    assert [verb for verb, _ in book.asked] == ["acquire", "release"]


async def the_holding_is_over() -> None:
    for holder in threading.enumerate():
        if holder.name == "agentor-hold-r":
            await asyncio.to_thread(holder.join, 60)


@pytest.mark.parametrize("fails", [1, 2, 4, 5])
async def test_a_release_that_fails_is_told_and_tried_again_for_as_long_as_a_lease_lasts(
    time: TestClock,
    book: Book,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fails: int,
) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == fails - 1:
            book.fault = None

    monkeypatch.setattr(holding, "pause", wait)
    keeper = Keeper(book, "r")
    await keeper.acquire()
    lease = keeper.lease
    book.fault = StoreError("disk full")
    if fails == 1:
        monkeypatch.setattr(book, "release", failing_once(book))
    await keeper.release()
    assert keeper.lease is None
    await the_holding_is_over()
    told = ["run r: the release of its lease failed (disk full); it is tried again"]
    given_up = ["run r: its lease could not be held or released (disk full)"]
    assert waited == [20.0] * (min(fails, 4) - 1)
    assert caplog.messages == (told if fails < 5 else told + given_up)
    assert book.released == ([lease] if fails < 5 else [])


def failing_once(book: Book) -> Any:
    release = book.release

    def fail(lease: Lease) -> None:
        fault, book.fault = book.fault, None
        if fault is not None:
            raise fault
        release(lease)

    return fail


async def test_of_a_store_that_was_closed_no_release_is_asked_again(
    time: TestClock, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(book, "r")
    await keeper.acquire()
    book.fault = StoreClosedError("runs.db")
    await keeper.release()
    await the_holding_is_over()
    assert caplog.messages == [
        f"run r: the release of its lease failed ({book.fault}); if it is still held, it expires by itself"
    ]
    assert keeper.lease is None
    assert [verb for verb, _ in book.asked] == ["acquire", "release"]


async def test_a_release_that_fails_after_its_caller_was_cancelled_is_tried_again(
    time: TestClock,
) -> None:
    class Slow(Hanging):
        def release(self, lease: Lease) -> None:
            if not self.let_go.is_set():
                self.loop.call_soon_threadsafe(self.renewing.set)
                self.let_go.wait(60)
                raise StoreError("disk full")
            super().release(lease)

    store = Slow(time)
    keeper = Keeper(store, "r")
    await keeper.acquire()
    lease = keeper.lease
    releasing = asyncio.create_task(keeper.release())
    await store.renewing.wait()
    releasing.cancel()
    await time.settle()
    store.let_go.set()
    await asyncio.wait({releasing})
    assert releasing.cancelled()
    assert await asyncio.to_thread(store.let_go_of.wait, 60)
    assert store.released == [lease]


@pytest.mark.parametrize("starved", ["agentor-store", "agentor-"])
async def test_a_moment_without_threads_keeps_no_run_from_being_let_go(
    time: TestClock, book: Book, monkeypatch: pytest.MonkeyPatch, starved: str
) -> None:
    book.blocking = True
    keeper = Keeper(book, "r")
    await keeper.acquire()
    lease = keeper.lease
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name.startswith(starved):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        await keeper.release()
    await the_holding_is_over()
    assert book.released == [lease]
    assert (id(book), "r") not in holding._held


async def test_a_lease_that_could_not_be_had_is_had_before_anything_is_written(
    time: TestClock, book: Book
) -> None:
    book.fault = StoreError("disk full")
    keeper = Keeper(book, "r")
    with pytest.raises(StoreError, match="disk full"):
        await keeper.ensure()
    keeping = asyncio.create_task(keeper.keep())
    await time.settle()
    await time.move(25)  # nothing to renew, and nothing to lose
    keeper.check()
    assert [verb for verb, _ in book.asked] == ["acquire"]
    book.fault = None
    for _ in range(2):
        await keeper.ensure()
    assert book.asked[1:] == [("acquire", 25)]
    await time.move(40)
    assert book.asked[2:] == [("renew", 40), ("renew", 60)]
    await stop(keeping)


async def test_a_refusal_names_the_tools_of_this_process_that_hold_the_run(
    time: TestClock, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    tools = [
        threading.Thread(target=may_end.wait, name=f"agentor-tool-{n}") for n in ("pay", "ask")
    ]
    for tool in tools:
        tool.start()
    monkeypatch.setitem(holding._held, (id(book), "r"), tools)
    book.fault = LeaseHeldError("r", "rival", None)
    try:
        with pytest.raises(LeaseHeldError) as held:
            await Keeper(book, "r").acquire()
    finally:
        may_end.set()
        for tool in tools:
            tool.join()
    assert held.value.__notes__ == ["Tools of it that still run, and cannot be stopped: pay, ask."]


async def test_a_lease_is_held_for_a_thread_that_cannot_be_stopped(
    time: TestClock, book: Book
) -> None:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, args=(60,))
    thread.start()
    keeper = Keeper(book, "r")
    await keeper.acquire()
    lease = keeper.lease
    assert lease is not None
    keeper.hold_for([thread])
    assert (keeper.lease, book.released) == (None, [])
    await keeper.release()
    await keeper.ensure()
    assert book.released == []
    assert "acquire" not in [verb for verb, _ in book.asked[1:]]
    may_end.set()
    assert book.let_go_of.wait(60)
    assert [(held.run_id, held.owner) for held in book.released] == [("r", lease.owner)]


async def test_what_was_never_held_is_held_for_nobody_and_what_is_lost_is_given_back(
    time: TestClock, book: Book
) -> None:
    keeper = Keeper(book, "r")
    keeper.hold_for([])
    Keeper(ThreeMethods(), "r").hold_for([])
    assert book.asked == []
    await keeper.acquire()
    time.stand_still(54)
    with pytest.raises(LeaseLostError):
        keeper.check()
    keeper.hold_for([])  # a file's lock is ours until it is released, whatever we trust
    await the_holding_is_over()
    assert keeper.lease is None
    assert [verb for verb, _ in book.asked] == ["acquire", "release"]
