"""Who is told when a run of this process is to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentor import MemoryStore, SQLiteStore
from agentor.engine.events import Event
from agentor.stopping import Stop, Stopper, tell
from tests.engine.leases import TestClock


async def test_whoever_has_taken_a_run_over_in_the_same_process_is_told_when_the_other_has_left() -> (
    None
):
    store, stop = MemoryStore(), Stop("cancelled", "Cancelled.", "Ada")
    waits = []
    for _ in range(2):  # the first has lost its lease to the second, and has not noticed yet
        waits.append(asyncio.ensure_future(Stopper(store, "run").wait()))
        await asyncio.sleep(0)
    first, second = waits
    first.cancel()
    await asyncio.wait({first})
    assert tell(store, "run", stop)
    assert await asyncio.wait_for(second, 10) == stop
    assert not tell(store, "run", stop)


async def test_whoever_looks_into_a_store_that_is_closed_says_nothing_and_can_be_told_all_the_same(
    tmp_path: Path, time: TestClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As at the exit of a program whose runs are in threads that it does not wait for."""
    stop = Stop("cancelled", "Cancelled.", "Ada")
    store = SQLiteStore(tmp_path / "runs.db")
    store.append("run", Event("message", text="there is a file"))
    store.close()
    waiting = asyncio.ensure_future(Stopper(store, "run").wait())
    await time.move(5)
    assert caplog.text == ""
    assert tell(store, "run", stop)
    assert await asyncio.wait_for(waiting, 10) == stop
