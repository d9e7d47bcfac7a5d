"""The keeper of a lease, beat by beat, under a clock that the test owns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentor import FileStore, LeaseHeldError, LeaseLostError, MemoryStore, StoreError
from agentor.engine import clock, holding
from agentor.engine.lease import DEFAULT_TTL_S, GIVING_BACK_S, Keeper, _Asked
from agentor.engine.store import SQLiteStore
from agentor.engine.store.owner import owner_id
from agentor.engine.store.protocol import Holder, Lease
from tests.engine.agents import ThreeMethods
from tests.engine.test_leases import TestClock


class Book:
    """A store of leases that writes down what it is asked and when, and does as it is told."""

    blocking = False
    lease_ttl_s = 60.0

    def __init__(self, time: TestClock) -> None:
        self._time, self._began = time, time.monotonic()
        self.asked: list[tuple[str, float]] = []
        self.threads: list[threading.Thread] = []
        self.owners: list[str] = []
        self.released: list[Lease] = []
        self.fault: Exception | None = None
        self.let_go_of = threading.Event()  # a lease was released

    def _note(self, verb: str) -> None:
        self.asked.append((verb, self._time.monotonic() - self._began))
        self.threads.append(threading.current_thread())
        if self.fault is not None:
            raise self.fault

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        self._note("acquire")
        self.owners.append(owner)
        return Lease(run_id, owner, 1, self._time.now() + ttl_s, ttl_s)

    def renew(self, lease: Lease) -> Lease:
        self._note("renew")
        expires_at = self._time.now() + lease.ttl_s
        return Lease(lease.run_id, lease.owner, lease.term, expires_at, lease.ttl_s)

    def release(self, lease: Lease) -> None:
        self._note("release")
        self.released.append(lease)
        self.let_go_of.set()


@pytest.fixture
def time() -> Iterator[TestClock]:
    with clock.installed(TestClock()) as mine:
        assert isinstance(mine, TestClock)
        yield mine


@pytest.fixture
def book(time: TestClock) -> Book:
    return Book(time)


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


class Hanging(Book):
    """Its renewals hang, in a thread of their own, until they are let go."""

    blocking = True

    def __init__(self, time: TestClock) -> None:
        super().__init__(time)
        self.let_go = threading.Event()
        self.loop = asyncio.get_running_loop()
        self.renewing = asyncio.Event()

    def renew(self, lease: Lease) -> Lease:
        self.loop.call_soon_threadsafe(self.renewing.set)
        self.let_go.wait(60)
        return super().renew(lease)


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


async def test_a_release_that_fails_is_told_and_harms_nothing(
    time: TestClock, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(book, "r")
    await keeper.acquire()
    book.fault = StoreError("disk full")
    await keeper.release()
    assert caplog.messages == [
        "run r: the release of its lease failed (disk full); if it is still held, it expires by itself"
    ]
    assert keeper.lease is None


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
    for holder in threading.enumerate():
        if holder.name == "agentor-hold-r":
            await asyncio.to_thread(holder.join, 60)
    assert keeper.lease is None
    assert [verb for verb, _ in book.asked] == ["acquire", "release"]
