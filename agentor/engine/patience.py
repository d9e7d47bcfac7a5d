"""How long, and how many times more, one call to a model may still try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from agentor.engine import clock
from agentor.engine.failure import wait_before_retry

T = TypeVar("T")


class Patience:
    """One budget of retries and one deadline, for all attempts of a call together."""

    def __init__(self, retries: int, timeout_s: float) -> None:
        self.retries = retries
        self.timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._tried = 0

    def alarm(self) -> Alarm:
        """An alarm that rings when the call has taken too long."""
        alarm = Alarm()
        alarm.set(self._deadline)
        return alarm

    def spend(self, retries: int) -> None:
        self.retries = max(self.retries - retries, 0)

    async def wait(self, headers: Mapping[str, str]) -> bool:
        """Wait before the next attempt, as `headers` of the last answer ask; False if there is to be none."""
        wait_s = wait_before_retry(headers, self._tried)
        if self.retries <= 0 or wait_s is None:
            return False
        if asyncio.get_running_loop().time() + wait_s >= self._deadline:
            return False
        self.spend(1)
        self._tried += 1
        await clock.sleep(wait_s)
        return True


class Alarm:
    """Ends a wait at a set time with `TimeoutError`. What `asyncio.timeout` does, set once for many waits: the
    pieces of a stream come by the ten thousand, and nothing is limited while the reader of a piece is at work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[object] | None = None
        self._rang = False
        self._cancelled = False

    def set(self, when: float) -> None:
        """Ring at this time of the event loop, or at the time set before if that is earlier."""
        if self._timer is not None:
            when = min(when, self._timer.when())
        self.stop()
        self._timer = self._loop.call_at(when, self._ring)

    def set_in(self, seconds: float) -> None:
        self.set(self._loop.time() + seconds)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._rang = True
        if self._waiting is not None and not self._cancelled:
            self._cancelled = True
            self._waiting.cancel()

    async def limit(self, step: Awaitable[T]) -> T:
        """The result of `step`, or `TimeoutError`. Cancelling from outside wins over the alarm."""
        task = asyncio.current_task()
        assert task is not None
        before, self._waiting = task.cancelling(), task
        if self._rang:
            self._loop.call_soon(self._ring)  # what is there already is still taken
        try:
            return await step
        except asyncio.CancelledError:
            if self._cancelled and task.cancelling() - 1 <= before:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None
            if self._cancelled:
                self._cancelled = False
                task.uncancel()
