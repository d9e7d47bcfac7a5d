"""Whoever takes a run lets it go on every way out, also one that is left before it has begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, FileStore, MemoryStore, function_tool
from agentor.engine.store.protocol import Lease
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods, agent


async def _read(stream: Any) -> None:
    async for _ in stream:
        pass


async def finished(store: Any, run_id: str) -> None:
    await agent(store).arun("go", run_id=run_id)


async def begun(store: Any, run_id: str) -> None:
    for event in (await agent().arun("go")).events[:4]:
        store.append(run_id, event)


async def nothing(store: Any, run_id: str) -> None:
    pass


async def waiting(store: Any, run_id: str) -> None:
    await asking(store).arun("go", run_id=run_id)


def asking(store: Any) -> Agentor:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
    return Agentor("A", model=model, tools=[pay], store=store)


Way = tuple[Callable[..., Any], str, Callable[[Any], Coroutine[Any, Any, Any]]]

# What is there before, the id that it has, and the call that takes run "r".
WAYS: dict[str, Way] = {
    "run": (nothing, "r", lambda s: agent(s).arun("go", run_id="r")),
    "strict run": (nothing, "r", lambda s: agent(s, durability="strict").arun("go", run_id="r")),
    "stream": (nothing, "r", lambda s: _read(agent(s).astream("go", run_id="r"))),
    "chat": (nothing, "r", lambda s: _read(agent(s).stream_chat("go", run_id="r"))),
    "resume": (begun, "r", lambda s: agent(s).aresume("r")),
    "fork": (finished, "p", lambda s: agent(s).afork("p", "more", fork_id="r")),
    "copy": (finished, "p", lambda s: agent(s).afork("p", fork_id="r")),
    "cancel": (begun, "r", lambda s: agent(s).acancel("r")),
    "approve": (waiting, "r", lambda s: asking(s).aapprove("r", "call_1")),
    "reject": (waiting, "r", lambda s: asking(s).areject("r", "call_1", "no")),
}


def lock_files(store: FileStore) -> list[Path]:
    return list(Path(store.directory).glob("*.lock"))


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("way", WAYS)
async def test_who_is_cancelled_while_a_lease_is_asked_for_leaves_none(
    store: Any, way: str, cancels: int
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    prepare, known_id, take = WAYS[way]
    await prepare(store, known_id)
    acquire, acquiring, may_have_it = store.acquire, asyncio.Event(), threading.Event()
    loop, blocking = asyncio.get_running_loop(), getattr(store, "blocking", True)

    def slow(*args: Any) -> Lease:
        loop.call_soon_threadsafe(acquiring.set)
        may_have_it.wait(60)
        lease: Lease = acquire(*args)
        return lease

    store.blocking, store.acquire = True, slow
    task = asyncio.create_task(take(store))
    asked = asyncio.create_task(acquiring.wait())
    await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        pytest.skip("it takes no lease in this store")
    for _ in range(cancels):
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
    may_have_it.set()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    store.blocking, store.acquire = blocking, acquire
    assert store.holder("r") is None
    if isinstance(store, FileStore):
        assert lock_files(store) == []
    if way in ("run", "strict run", "stream", "chat"):
        assert (await agent(store).arun("go", run_id="r")).status == "completed"


@pytest.mark.parametrize("is_cancelled", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_loop_that_ends_while_a_run_is_being_left_leaves_no_lease(
    blocking: bool, is_cancelled: bool
) -> None:
    for turns in range(60):
        store = MemoryStore()
        store.blocking = blocking
        asyncio.run(leave(store, turns, is_cancelled))
        for thread in threading.enumerate():
            if thread.name in ("agentor-store", "agentor-hold-r"):
                thread.join(60)
        assert store.holder("r") is None, turns


async def leave(store: MemoryStore, turns: int, is_cancelled: bool) -> None:
    """Be cancelled, or not, and end the loop some turns later."""
    entered = asyncio.Event()

    @function_tool
    async def tidy() -> str:
        """Takes its time to stop."""
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
        return "never"

    model = ScriptedModel([calls(("tidy", {}))])
    mine = Agentor("A", model=model, tools=[tidy], store=store)
    task = asyncio.create_task(mine.arun("go", run_id="r"))
    if is_cancelled:
        await entered.wait()
        task.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
