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
    if cancelled is not None:
        raise cancelled
    return future.result()


class _Waiting:
    """One who waits in an event loop for what another thread does."""

    __slots__ = ("_loop", "_waiter")

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


class _Bell:
    """Wakes those who wait in one event loop, together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waking: deque[_Waiting] = deque()
        self._is_rung = False

    def ring(self, waiting: _Waiting) -> None:
        # Appended before the question, as `_answer` takes the ring back before it looks: no waiter is overlooked.
        self._waking.append(waiting)
        if not self._is_rung:
            self._is_rung = True
            if (loop := self._loop()) is not None:
                with contextlib.suppress(RuntimeError):  # it has ended, and whoever waited with it
                    loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._is_rung = False
        while self._waking:
            self._waking.popleft().wake()


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()
