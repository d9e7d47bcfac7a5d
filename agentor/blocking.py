"""The synchronous face: one event loop for the whole process, on a thread of its own.

It works in a plain script, many times in a row, inside a running event loop (a notebook), and from any thread, and
network clients stay bound to one loop. The thread is a daemon, so it never keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class LoopThread:
    """An event loop that runs until the process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="agentor-loop", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self, make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Started[_Result]:
        """Run what `make` makes, in the caller's context."""
        started: _Started[_Result] = _Started(self.loop)
        context = contextvars.copy_context()
        self.loop.call_soon_threadsafe(lambda: context.run(started.begin, make))
        return started


class _Started(Future[_Result]):
    """A future that another thread can wait for, and whose work it can cancel in an orderly way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._task: asyncio.Task[_Result] | None = None

    def begin(self, make: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        self._task = self._loop.create_task(make())
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[_Result]) -> None:
        if task.cancelled():
            self.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def stop(self) -> None:
        """Cancel the work and return when it has ended, so that all it leaves behind is on disk."""
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        with contextlib.suppress(BaseException):
            self.exception()


_lock = threading.Lock()
_shared: LoopThread | None = None


def _loop_thread() -> LoopThread:
    """The process's loop; a new one in a child after a fork, where the parent's thread does not run.

    A caller that is on that loop already cannot wait for it, so it gets one of its own.
    """
    global _shared
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = LoopThread()
        if threading.current_thread() is _shared.thread:
            return LoopThread()
        return _shared


def wait_for(make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a coroutine to its end from synchronous code. Ctrl-C cancels it in an orderly way first."""
    work = _loop_thread().start(make)
    try:
        return work.result()
    except (KeyboardInterrupt, SystemExit):
        work.stop()
        raise
