"""One owner for each run, under a clock that the test owns."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    LeaseHeldError,
    LeaseLostError,
    MemoryStore,
    SQLiteStore,
    StoreError,
    function_tool,
)
from agentor.engine.lease import Keeper
from agentor.engine.replay import verify
from agentor.engine.store.protocol import Lease
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods, Tools, agent, types
from tests.engine.leases import TestClock, force_takeover


class Renewals(MemoryStore):
    """A memory store that counts renewals, and can be too busy for them."""

    lease_ttl_s = 30.0

    def __init__(self) -> None:
        super().__init__()
        self.renewed, self.busy = 0, False

    def renew(self, lease: Lease) -> Lease:
        if self.busy:
            raise StoreError("the disk is full")
        self.renewed += 1
        return super().renew(lease)


def waiting_tool() -> tuple[Any, asyncio.Event, asyncio.Event]:
    started, may_end = asyncio.Event(), asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait until the test says so."""
        started.set()
        await may_end.wait()
        return "ok"

    return wait, started, may_end


def waiting_agent(store: Any, tool: Any) -> Any:
    from agentor import Agentor

    script = [calls(("wait", {})), says("done")]
    return Agentor("A", model=ScriptedModel.by_turn(script), tools=[tool], store=store)


async def test_the_lease_is_renewed_while_a_slow_tool_runs(time: TestClock) -> None:
    store = Renewals()
    tool, started, may_end = waiting_tool()
    task = asyncio.create_task(waiting_agent(store, tool).arun("go", run_id="r"))
    await started.wait()
    await time.move(300)
    assert store.renewed == 30
    with pytest.raises(LeaseHeldError) as caught:
        store.acquire("r", "rival", 30.0)
    assert caught.value.expires_at > time.now()
    may_end.set()
    assert (await task).final_output == "done"
    assert store.acquire("r", "rival", 30.0).term == 2  # it was let go at once


async def test_a_worker_that_cannot_renew_stops_before_its_lease_can_expire(
    time: TestClock,
) -> None:
    store = Renewals()
    tool, started, _ = waiting_tool()
    task = asyncio.create_task(waiting_agent(store, tool).arun("go", run_id="r"))
    await started.wait()
    store.busy = True
    await time.move(29.9)
    with pytest.raises(LeaseLostError):
        await task
    assert types(store.load("r")) == ["run_start", "generation", "tool_call"]


async def test_a_worker_that_was_suspended_past_the_expiry_starts_nothing_and_writes_nothing(
    time: TestClock,
) -> None:
    store = Renewals()
    tool, started, may_end = waiting_tool()
    first = asyncio.create_task(waiting_agent(store, tool).arun("go", run_id="r"))
    await started.wait()
    time.stand_still(3600)
    rival = await waiting_agent(store, may_end_at_once()).aresume("r")
    log = store.load("r")
    assert rival.final_output == "done"
    may_end.set()
    with pytest.raises(LeaseLostError) as caught:
        await first
    assert caught.value.run_id == "r"
    assert store.load("r") == log
    assert verify(log) == []


def may_end_at_once() -> Any:
    @function_tool
    async def wait() -> str:
        """At once."""
        return "ok"

    return wait


async def test_an_old_term_cannot_append_after_the_lease_changed_hands(store: Any) -> None:
    if not hasattr(store, "acquire") or type(store).__name__ == "FileStore":
        pytest.skip("no terms: a lock cannot change hands while its holder lives")
    log = agent().run("go").events
    old = store.acquire("r", "old", 30.0)
    store.append_many("r", log[:2], old)
    new = force_takeover(store, "r")
    assert new.term > old.term
    with pytest.raises(LeaseLostError):
        store.append_many("r", log[2:4], old)
    with pytest.raises(LeaseLostError):
        store.renew(old)
    store.release(old)  # too late to matter
    store.append_many("r", log[2:4], new)
    assert store.load("r") == log[:4]


async def test_a_clock_that_jumps_changes_who_works_but_not_what_is_written(store: Any) -> None:
    if isinstance(store, ThreeMethods) or type(store).__name__ == "FileStore":
        pytest.skip("no expiry")
    tools = Tools()

    def jump(messages: Any) -> Any:
        force_takeover(store, "r")  # by a worker whose clock is an hour ahead
        return calls(("get_weather", {"city": "London"}))

    with pytest.raises(LeaseLostError):
        await agent(store, ScriptedModel(jump), tools).arun("go", run_id="r")
    assert not tools.ran
    assert types(store.load("r")) == ["run_start"]


@pytest.mark.parametrize(
    "wait",
    [float("nan"), -1, -math.inf, None, "1", b"x", [], 10**400],
    ids=lambda wait: str(wait)[:5],
)
async def test_a_wait_that_is_no_time_is_refused_before_anything_is_looked_at(wait: Any) -> None:
    with pytest.raises(ConfigError, match="wait="):
        await agent(MemoryStore(), ScriptedModel([])).aresume("nobody", wait=wait)


async def test_resume_can_wait_for_a_run_that_somebody_else_finishes(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    tool, started, may_end = waiting_tool()
    first = asyncio.create_task(waiting_agent(store, tool).arun("go", run_id="r"))
    await started.wait()
    idle = ScriptedModel([])
    with pytest.raises(LeaseHeldError):
        await agent(store, idle).aresume("r")
    with pytest.raises(LeaseHeldError) as held:
        await agent(store, idle).aresume("r", wait=0.01)
    assert held.value.__notes__ == ["It was waited for, 0.01 s."]
    waiting = asyncio.create_task(agent(store, idle).aresume("r", wait=True))
    for _ in range(10):
        await asyncio.sleep(0)
    may_end.set()
    assert (await waiting).final_output == (await first).final_output == "done"
    assert idle.requests == []


@pytest.mark.parametrize("leave", ["end", "failure", "cancel", "strict"])
async def test_the_lease_is_let_go_on_every_way_out(store: Any, leave: str) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    hang = asyncio.Event()

    async def answer(messages: Any) -> Any:
        if leave == "failure":
            raise ConnectionError("reset")
        if leave == "cancel":
            hang.set()
            await asyncio.get_running_loop().create_future()
        return says("done")

    task = asyncio.create_task(agent(store, ScriptedModel(answer)).arun("go", run_id="r"))
    if leave == "cancel":
        await hang.wait()
        task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
    store.release(store.acquire("r", "next", 30.0))


async def test_a_new_run_goes_on_without_a_lease_when_there_is_none_to_be_had() -> None:
    class NoLeases(MemoryStore):
        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            raise StoreError("the disk is full")

    store = NoLeases()
    assert (await agent(store).arun("go", run_id="r")).status == "completed"
    with pytest.raises(StoreError, match="full"):
        await agent(store, durability="strict").arun("go")
    store.append_many("s", (await agent().arun("go")).events[:1])
    idle = ScriptedModel([])
    with pytest.raises(StoreError, match="full"):
        await agent(store, idle).aresume("s")
    assert idle.requests == []


async def test_the_trust_window_is_counted_from_when_the_renewal_was_sent(time: TestClock) -> None:
    class Slow(Renewals):
        def renew(self, lease: Lease) -> Lease:
            time.stand_still(20)  # the store takes its time to answer
            return super().renew(lease)

    keeper = Keeper(Slow(), "r")
    await keeper.acquire()
    keeping = asyncio.create_task(keeper.keep())
    await time.settle()
    await time.move(10)  # renewed: sent at 10, answered at 30
    keeper.check()
    time.stand_still(7)  # 37 = 10 + 27
    with pytest.raises(LeaseLostError):
        keeper.check()
    keeping.cancel()
    await asyncio.wait({keeping})


async def test_a_cancellation_while_the_lease_is_acquired_leaves_the_run_free(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    for event in (await agent().arun("go")).events[:4]:
        store.append("r", event)
    acquire, acquiring = store.acquire, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*args: Any) -> Lease:
        loop.call_soon_threadsafe(acquiring.set)
        lease: Lease = acquire(*args)
        return lease

    store.blocking = True
    store.acquire = slow
    task = asyncio.create_task(agent(store).aresume("r"))
    await acquiring.wait()
    task.cancel()
    await asyncio.wait({task})
    store.acquire = acquire
    store.release(store.acquire("r", "next", 30.0))


async def test_a_worker_that_slept_while_it_found_out_does_not_start_the_tool(
    time: TestClock,
) -> None:
    from agentor import DidNotHappen

    store, ran = Renewals(), []

    def reconcile(ctx: Any) -> DidNotHappen:
        time.stand_still(3600)  # suspended past the expiry
        return DidNotHappen()

    @function_tool(effect="once", reconcile=reconcile)
    def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    script = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
    log = (await Agentor("A", model=script, tools=[pay]).arun("go")).events[:3]
    ran.clear()
    store.append_many("r", log)
    with pytest.raises(LeaseLostError):
        await Agentor("A", model=script, tools=[pay], store=store).aresume("r")
    assert not ran


async def test_a_run_that_began_without_a_lease_takes_one_before_it_writes() -> None:
    class LateLeases(MemoryStore):
        """Full at first; then there is room, and a rival is quicker."""

        def __init__(self, rival: bool) -> None:
            super().__init__()
            self.tries, self.rival = 0, rival

        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            self.tries += 1
            if self.tries <= 2:
                raise StoreError("the disk is full")
            if self.rival and self.tries == 3:
                super().acquire(run_id, "rival", 30.0)
            return super().acquire(run_id, owner, ttl_s)

    store = LateLeases(rival=False)
    result = await agent(store).arun("go", run_id="r")
    assert (result.status, result.unsaved) == ("completed", 0)
    assert store.load("r") == result.events
    assert store.acquire("r", "next", 30.0).term == 2  # there was a lease, and it was let go

    contested, tools = LateLeases(rival=True), Tools()
    with pytest.raises(LeaseHeldError):
        await agent(contested, tools=tools).arun("go", run_id="r")
    assert contested.load("r") == []
    assert not tools.ran


@pytest.mark.parametrize(
    "ask",
    [
        lambda mine: mine.resume("r"),
        lambda mine: mine.approve("r", "call_1"),
        lambda mine: mine.cancel("r"),
        lambda mine: mine.fork("r", "and now?", fork_id="r2"),
        lambda mine: mine.run("go", run_id="r3"),
    ],
)
def test_a_lease_whose_grant_was_not_heard_of_is_in_nobodys_way(ask: Any, tmp_path: Path) -> None:
    """It was committed, and then the disk failed: this process does not work on the run, and says so to nobody."""

    class Deaf(SQLiteStore):
        failing = False

        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            lease = super().acquire(run_id, owner, ttl_s)
            if self.failing:
                self.failing = False
                raise StoreError("disk I/O error")
            return lease

    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    script = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
    with Deaf(tmp_path / "runs.db") as store:
        mine = Agentor("A", model=script, tools=[pay], store=store, durability="strict")
        assert mine.run("go", run_id="r").status == "paused"
        store.failing = True
        with pytest.raises(StoreError, match="disk I/O error"):
            ask(mine)
        assert [store.holder(run_id) for run_id in ("r", "r2", "r3")] == [None] * 3
        mine.approve("r", "call_1")
        assert mine.resume("r").status == "completed"


def test_a_new_run_whose_lease_was_not_heard_of_is_saved_under_it_and_leaves_none(
    tmp_path: Path,
) -> None:
    terms: list[int] = []

    class Deaf(SQLiteStore):
        def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
            lease = super().acquire(run_id, owner, ttl_s)
            terms.append(lease.term)
            if len(terms) == 1:
                raise StoreError("disk I/O error")
            return lease

    with Deaf(tmp_path / "runs.db") as store:
        result = agent(store).run("go", run_id="r")
        assert (result.status, result.unsaved) == ("completed", 0)
        assert terms == [1, 1]
        assert store.holder("r") is None
