"""What a tool has given is recorded before the end of its run, whatever the run ends by: it is nobody's doubt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentor import (
    Agentor,
    LeaseLostError,
    MemoryStore,
    RunContext,
    SQLiteStore,
    StoreError,
    function_tool,
)
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.engine.store.protocol import Lease
from agentor.stopping import OVERDUE, LetGo, Stop, tell
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import STORES, ThreeMethods, types
from tests.engine.leases import TestClock

CANCEL = Stop("cancelled", "Cancelled.", "ada")
TURNS = 32  # of the loop: more than it takes until nothing moves but by a cancel


class Till:
    """Payments in every manner of ending, and what they have given."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.given: list[str] = []
        self.waiting = asyncio.Event()  # a tool that ends only when it is cancelled has begun

    async def _work(self, name: str, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.given.append(name)
        return name

    def tools(self) -> list[Any]:
        async def quick() -> str:
            self.began.append("quick")
            return await self._work("quick", 0)

        async def steady() -> str:
            self.began.append("steady")
            work = asyncio.ensure_future(self._work("steady", 6))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                return await work  # it is not left half-done

        async def tidy() -> str:
            self.began.append("tidy")
            self.waiting.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return await self._work("tidy", 3)
            return "never"

        async def fading() -> str:
            self.began.append("fading")
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await self._work("nothing", 2)
            return "never"

        async def breaking() -> str:
            self.began.append("breaking")
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise RuntimeError("broken off") from None
            return "never"

        made = [quick, steady, tidy, fading, breaking]
        return [
            function_tool(f, effect="once", description_override=f.__name__)  # type: ignore[arg-type]
            for f in made
        ]

    def agent(self, store: Any, *names: str, **settings: Any) -> Agentor:
        script = [calls(*[(name, {}) for name in names]), says("done")]
        model = ScriptedModel.by_turn(script)
        return Agentor("A", model=model, tools=self.tools(), store=store, **settings)


def by_telling(stop: Stop | LetGo) -> Callable[..., Any]:
    async def end(task: asyncio.Task[Any], store: Any) -> bool:
        return tell(store, "r", stop) or not task.cancel()

    return end


async def by_cancelling_the_task(task: asyncio.Task[Any], store: Any) -> bool:
    return not task.cancel()


async def impatiently(task: asyncio.Task[Any], store: Any) -> bool:
    tell(store, "r", CANCEL)
    for _ in range(5):
        await asyncio.sleep(0)
        task.cancel()
    return False


# Each tells whether whoever reads along is still there.
ENDS: dict[str, Callable[..., Any]] = {
    "cancel": by_telling(CANCEL),
    "deadline": by_telling(OVERDUE),
    "worker stops": by_telling(LetGo()),
    "task": by_cancelling_the_task,
    "impatient": impatiently,
}
ALONE = [("steady",), ("tidy",), ("fading",), ("breaking",)]
TOGETHER = [("quick", "tidy"), ("steady", "fading", "quick"), ("tidy", "breaking", "steady")]


def results(log: Sequence[Event]) -> list[Any]:
    return [event.result for event in log if event.type == "tool_result"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("names", ALONE + TOGETHER, ids="-".join)
async def test_whenever_a_run_is_ended_what_its_tools_have_given_stands_before_the_end_once(
    names: tuple[str, ...], end: str
) -> None:
    for turns in range(TURNS):
        store, till, shown = MemoryStore(), Till(), list[Event]()
        mine = till.agent(store, *names)

        async def read(mine: Agentor = mine, shown: list[Event] = shown) -> None:
            async for event in mine.astream("go", run_id="r"):
                if event.type != "text_delta":
                    shown.append(event)

        task = asyncio.create_task(read())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_read = await ENDS[end](task, store)
        await asyncio.wait({task}, timeout=30)
        log = store.load("r")
        given = [name for name in till.given if name != "nothing"]
        assert sorted(results(log)) == sorted(given), turns
        assert log == [] or verify(log) == []
        assert not is_read or shown == log
        over = [t for t in types(log) if t in ("cancel", "run_end", "stop")]
        assert types(log)[len(log) - len(over) :] == over
        assert store.holder("r") is None
        await goes_on(store, till, names)


async def goes_on(store: MemoryStore, first: Till, names: tuple[str, ...]) -> None:
    """A resume starts nothing that may have begun, and says of nothing more than is known."""
    log = store.load("r")
    claimed = {event.name for event in log if event.type == "tool_call"}
    if not log or log[-1].status == "completed":
        return
    second = Till()
    mine = second.agent(store, *names)
    task = asyncio.create_task(mine.aresume("r"))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=30)
    assert not set(second.began) & claimed
    doubts = [e for e in store.load("r") if e.error == "outcome unknown"]
    assert {e.name for e in doubts} == claimed - set(first.given)
    assert all("the work was broken off" in str(e.result) for e in doubts)
    assert "process died" not in str(doubts)


# Behind a transaction ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["cancel", "deadline", "worker stops", "task"])
async def test_what_waits_for_a_transaction_to_end_is_recorded_when_the_run_is_ended(
    tmp_path: Path, end: str
) -> None:
    writing, sent, may_end = threading.Event(), asyncio.Event(), threading.Event()

    @function_tool(effect="transactional")
    def book(ctx: RunContext) -> str:
        """Book."""
        writing.set()
        may_end.wait(60)
        return "booked"

    @function_tool(effect="once")
    async def send() -> str:
        """Send."""
        await asyncio.to_thread(writing.wait, 60)
        sent.set()
        return "sent"

    script = [calls(("book", {}), ("send", {})), says("done")]
    with SQLiteStore(tmp_path / "runs.db") as store:
        mine = Agentor("A", model=ScriptedModel.by_turn(script), tools=[book, send], store=store)
        task = asyncio.create_task(mine.arun("go", run_id="r"))
        await sent.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert results(store.load("r")) == []
        await ENDS[end](task, store)
        await asyncio.wait({task}, timeout=30)
        may_end.set()
        assert results(store.load("r")) == ["sent"]
        assert verify(store.load("r")) == []
        result = await mine.aresume("r", wait=True)
        assert sorted(results(result.events)) == ["booked", "sent"]


@pytest.mark.parametrize("atomic", [False, True])
async def test_what_has_been_given_is_recorded_when_a_transaction_beside_it_cannot_be_begun(
    tmp_path: Path, atomic: bool
) -> None:
    """Whoever has the file lets go of it when the waiting is over."""
    booked: list[str] = []

    class Crowded(SQLiteStore):
        def transact(self, run_id: str, lease: Lease | None = None, limit_s: float = 5.0) -> Any:
            other.execute("BEGIN IMMEDIATE")
            transaction = super().transact(run_id, lease, limit_s)
            transaction.begun.add_done_callback(lambda _: other.execute("ROLLBACK"))
            return transaction

    @function_tool(effect="transactional")
    def book(ctx: RunContext) -> str:
        """Book."""
        booked.append("booked")
        return "booked"

    till, script = Till(), [calls(("book", {}), ("quick", {}), ("book", {})), says("done")]
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.append("other", Event("message", text="there is a file"))
    with Crowded(tmp_path / "runs.db", busy_timeout_s=0.05) as store:
        other = apsw.Connection(str(tmp_path / "runs.db"))
        mine = Agentor(
            "A",
            model=ScriptedModel.by_turn(script),
            tools=[book, *till.tools()],
            store=store,
            atomic_batches=atomic,
        )
        with pytest.raises(StoreError, match="could not be begun"):
            await mine.arun("go", run_id="r")
        assert (till.given, booked) == (["quick"], [])
        assert results(store.load("r")) == ["quick"]
        other.close()
    with SQLiteStore(tmp_path / "runs.db") as store:
        mine.store = store
        result = await mine.aresume("r")
        assert (till.given, booked) == (["quick"], ["booked", "booked"])
        assert sorted(results(result.events)) == ["booked", "booked", "quick"]


# Not where something is broken ------------------------------------------------------------------------------------


class WithLeasesOnly(ThreeMethods):
    """A store whose leases keep workers apart, and whose append is not told of them."""

    def __init__(self) -> None:
        super().__init__()
        self._book = MemoryStore()
        self.acquire, self.renew = self._book.acquire, self._book.renew
        self.release, self.holder = self._book.release, self._book.holder


LEASED: dict[str, Callable[[Path], Any]] = {
    **{name: make for name, make in STORES.items() if name != "three methods"},
    "leases only": lambda path: WithLeasesOnly(),
}


async def suspended_in_a_payment(
    store: Any, time: TestClock, meanwhile: Callable[[], object]
) -> list[Event]:
    """The log of a worker that was suspended beyond its lease while its tool was at work, and had the result when it woke."""
    till = Till()
    store.blocking = False
    task = asyncio.create_task(till.agent(store, "tidy").arun("go", run_id="r"))
    await till.waiting.wait()
    time.stand_still(31.0)
    meanwhile()
    with pytest.raises(LeaseLostError):
        await asyncio.gather(task, time.move(1.0))
    assert till.given == ["tidy"]
    log: list[Event] = store.load("r")
    return log


@pytest.mark.parametrize("name", LEASED)
async def test_whoever_was_suspended_beyond_its_lease_records_what_it_has_in_hand_if_nobody_had_the_run(
    name: str, time: TestClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LEASED[name](tmp_path)
    log = await suspended_in_a_payment(store, time, lambda: None)
    begun = ["run_start", "generation", "tool_call"]
    if name == "leases only":  # nothing else would refuse it if somebody had
        assert types(log) == begun
        assert "results that came while it was stopped are not recorded" in caplog.text
        return
    assert types(log) == [*begun, "tool_result"]  # and nothing follows from it
    assert verify(log) == []
    assert store.holder("r") is None
    again = Till()
    result = await again.agent(store, "tidy").aresume("r")
    assert (result.final_output, again.began) == ("done", [])
    getattr(store, "close", lambda: None)()


@pytest.mark.parametrize("lets_go", [False, True])
@pytest.mark.parametrize("name", ["memory", "sqlite", "leases only"])
async def test_whoever_was_suspended_beyond_its_lease_records_nothing_once_somebody_had_the_run(
    name: str, lets_go: bool, time: TestClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LEASED[name](tmp_path)

    def take_over() -> None:
        lease = store.acquire("r", "rival", 30.0)
        if lets_go:
            store.release(lease)

    log = await suspended_in_a_payment(store, time, take_over)
    assert types(log) == ["run_start", "generation", "tool_call"]
    assert "results that came while it was stopped are not recorded" in caplog.text
    getattr(store, "close", lambda: None)()


class Full(MemoryStore):
    """It cannot take results, as often as it is told to."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        if self.times and any(event.type == "tool_result" for event in events):
            self.times -= 1
            raise StoreError("the disk is full")
        super().append_many(run_id, events, lease)


@pytest.mark.parametrize("durability", ["best_effort", "strict"])
@pytest.mark.parametrize("names", [("tidy",), ("quick", "tidy")], ids="-".join)
async def test_a_result_that_cannot_be_saved_at_once_goes_before_the_end_of_its_run(
    names: tuple[str, ...], durability: Any
) -> None:
    store, till = Full(times=0), Till()
    mine = till.agent(store, *names, durability=durability)
    task = asyncio.create_task(mine.arun("go", run_id="r"))
    await till.waiting.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    store.times = 1
    tell(store, "r", CANCEL)
    result = await task
    assert (result.status, result.unsaved) == ("cancelled", 0)
    log = store.load("r")
    assert types(log)[-3:] == ["tool_result", "cancel", "run_end"]
    assert sorted(results(log)) == sorted(names)
    assert log == result.events
    assert verify(log) == []


@pytest.mark.parametrize("end", ["cancel", "task"])
async def test_a_strict_run_whose_last_result_cannot_be_saved_ends_as_strict_runs_do(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, till = Full(times=1000), Till()
    mine = till.agent(store, "tidy", durability="strict")
    task = asyncio.create_task(mine.arun("go", run_id="r"))
    await till.waiting.wait()
    await ENDS[end](task, store)
    with pytest.raises(StoreError if end == "cancel" else asyncio.CancelledError):
        await task
    assert types(store.load("r")) == ["run_start", "generation", "tool_call"]
    assert "are not recorded (run 'r': the events from seq 4 on could not be saved" in caplog.text
    store.times = 0
    result = await till.agent(store, "tidy").aresume("r")
    assert [e.error for e in result.events if e.type == "tool_result"] == ["outcome unknown"]


async def test_a_strict_run_whose_store_fails_records_nothing_more_of_its_tools() -> None:
    store, till = Full(times=1), Till()
    mine = till.agent(store, "quick", "tidy", durability="strict")
    with pytest.raises(StoreError, match="the disk is full"):
        await mine.arun("go", run_id="r")
    assert sorted(till.given) == ["quick", "tidy"]
    assert types(store.load("r")) == ["run_start", "generation", "tool_call", "tool_call"]


# Nobody else meanwhile --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("tidy",), ("quick", "tidy")], ids="-".join)
async def test_however_impatient_somebody_is_the_run_is_held_while_its_tools_end(
    names: tuple[str, ...],
) -> None:
    held: list[bool] = []

    class Slow(Till):
        async def _work(self, name: str, turns: int) -> str:
            if name == "tidy":
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                held.append(store.holder("r") is not None)
            return await super()._work(name, turns)

    store, till = MemoryStore(), Slow()
    task = asyncio.create_task(till.agent(store, *names).arun("go", run_id="r"))
    await till.waiting.wait()
    await impatiently(task, store)
    await asyncio.wait({task}, timeout=30)
    assert held == [True]
    assert store.holder("r") is None
    assert sorted(results(store.load("r"))) == sorted(names)
