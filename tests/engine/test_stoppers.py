"""Who is told when a run of this process is to end."""

from __future__ import annotations

import asyncio

from agentor import MemoryStore
from agentor.stopping import Stop, Stopper, tell


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
