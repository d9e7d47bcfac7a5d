"""Await a store's futures: what a run does most, and many runs at the same moment.

A commit answers everybody that it took along. Each event loop is called into once for all of its waiters, not once for
each: a call from another thread costs a system call and a fight for the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")


async def committed(future: Future[_Result]) -> _Result:
    """The future's result. If we are cancelled meanwhile, it is awaited all the same, and then the cancellation goes on.

    A second cancellation is heard at once: somebody loses patience with a disk that hangs.
    """
    waiting = _Waiting(asyncio.get_running_loop())
    cancelled: asyncio.CancelledError | None = None
    future.add_done_callback(waiting.done)
    while not future.done():
        try:
            await waiting.wait()
        except asyncio.CancelledError as error:
            if cancelled is not None:
                raise
            cancelled = error
            waiting.look_again()
    if cancelled is not None:
        raise cancelled
    return future.result()


class _Waiting:
    """One who waits in an event loop for what another thread does."""

    __slots__ = ("__weakref__", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] = loop.create_future()

    async def wait(self) -> None:
        if self._waiter.done():  # cancelled, or woken for nothing
            self._waiter = self._loop.create_future()
        await self._waiter

    def wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def done(self, _: object) -> None:
        """Called in whatever thread has made the result."""
        if (bell := _bells.get(self._loop)) is None:
            bell = _bells.setdefault(self._loop, _Bell(self._loop))
        bell.ring(self)

    def look_again(self) -> None:
        """An interrupt may have taken the event loop away from the bell's answer."""
        if (bell := _bells.get(self._loop)) is not None:
            bell.answer()


class _Bell:
    """Wakes those who wait in one event loop, together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weakly, all of it: what waits for a loop that has ended must not keep it.
        self._loop = weakref.ref(loop)
        self._waking: deque[weakref.ref[_Waiting]] = deque()
        self._is_rung = False

    def ring(self, waiting: _Waiting) -> None:
        # Appended before the question, as `answer` takes the ring back before it looks: no waiter is overlooked.
        self._waking.append(weakref.ref(waiting))
        if not self._is_rung:
            self._is_rung = True
            if (loop := self._loop()) is not None:
                with contextlib.suppress(RuntimeError):  # it has ended, and whoever waited with it
                    loop.call_soon_threadsafe(self.answer)

    def answer(self) -> None:
        self._is_rung = False
        while self._waking:
            if (waiting := self._waking[0]()) is not None:
                waiting.wake()
            self._waking.popleft()  # after it is woken: to wake it twice does no harm


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()
