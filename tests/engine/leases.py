"""Leases under a clock that the test owns, and taking a run over, whatever the store keeps its leases in."""

from __future__ import annotations

import asyncio
import heapq
from typing import Any

from agentor.engine import clock
from agentor.engine.clock import SystemClock
from agentor.engine.store.protocol import Lease


class TestClock(SystemClock):
    """Time stands still until the test moves it; sleepers wake in order."""

    __test__ = False

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.seconds + seconds, id(woken), woken))
        await woken.wait()

    async def move(self, seconds: float) -> None:
        """Let time pass, and let all that wakes have its turn."""
        until = self.seconds + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, woken = heapq.heappop(self._sleepers)
            self.seconds = max(self.seconds, due)
            woken.set()
            await self.settle()
        self.seconds = max(self.seconds, until)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def stand_still(self, seconds: float) -> None:
        """The process is suspended: time passes and nobody has a turn."""
        self.seconds += seconds


class Later(SystemClock):
    """Some time from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


def force_takeover(store: Any, run_id: str) -> Lease:
    """The lease as somebody gets it who finds the present one expired."""
    with clock.installed(Later(3600)):
        lease: Lease = store.acquire(run_id, "rival", 30.0)
    return lease
