"""The only door to time, sleep, ids and randomness.

Everything else asks here, so that a test or a simulation can own all of it by installing a clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Iterator
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; only differences mean anything."""

    async def sleep(self, seconds: float) -> None: ...

    def new_id(self) -> str:
        """32 hexadecimal digits that no other call returns."""

    def random(self) -> float:
        """A number in [0, 1)."""


class SystemClock:
    """Real time, real randomness."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def new_id(self) -> str:
        return uuid.uuid4().hex

    def random(self) -> float:
        return random.random()


_clock: Clock = SystemClock()


@contextlib.contextmanager
def installed(clock: Clock) -> Iterator[Clock]:
    """Let the whole process live by `clock` inside the block."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield clock
    finally:
        _clock = before


def now() -> float:
    return _clock.now()


def monotonic() -> float:
    return _clock.monotonic()


async def sleep(seconds: float) -> None:
    await _clock.sleep(seconds)


def pause(seconds: float) -> None:
    """Hold up this thread, by real time whatever clock is installed: what another process does knows no other."""
    time.sleep(seconds)


def new_id() -> str:
    return _clock.new_id()


def new_nonce() -> str:
    """12 hexadecimal digits, enough to tell runs of the same id from each other."""
    return _clock.new_id()[:12]


def uniform() -> float:
    return _clock.random()
