"""Time for these tests: it stands still until a test moves it."""

from __future__ import annotations

import asyncio

from agentor.engine import clock


class StandingClock(clock.SystemClock):
    """`advance` wakes whoever slept until then."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.time + seconds, woken))
        await woken

    async def advance(self, seconds: float) -> None:
        self.time += seconds
        for due, woken in self.sleepers:
            if due <= self.time and not woken.done():
                woken.set_result(None)
        await settled()


async def settled() -> None:
    """Let every task go as far as it can without time or threads."""
    for _ in range(20):
        await asyncio.sleep(0)
