"""agentor's clock in a simulation: time is the timeline's, ids and randomness come from a seed."""

from __future__ import annotations

import asyncio
import random

from fuzz.loop import Timeline


class VirtualClock:
    """Install with `agentor.engine.clock.installed`."""

    def __init__(self, timeline: Timeline, seed: int | str) -> None:
        self._timeline = timeline
        self._random = random.Random(seed)

    def now(self) -> float:
        process = self._timeline.current
        return self._timeline.now + (0.0 if process is None else process.skew_s)

    def monotonic(self) -> float:
        return self._timeline.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def random(self) -> float:
        return self._random.random()
