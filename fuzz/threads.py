"""Threads of simulated processes: exactly one runs, and it gives its turn back only where it would wait.

A real thread blocks on a future or a queue until another thread or the event loop has done its part. A thread of the
simulation is a greenlet that hands the turn back to the event loops instead, and goes on in a later iteration of its
own process. So the store's writer, and a tool inside a transaction, run as they are, in an order that a seed decides.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from fuzz.loop import ProcessLoop

T = TypeVar("T")

_UNWINDINGS_MAX: Final = 20  # waits that a thread of a dead process may try while it unwinds
_result = Future.result


class ProcessEnded(BaseException):
    """The process is killed here; nothing in it may catch this and live on."""


class Thread(greenlet):  # type: ignore[misc]
    """One thread of a process. It begins, and goes on, when the process's loop calls `go_on`."""

    def __init__(self, process: ProcessLoop, work: Callable[[], object]) -> None:
        super().__init__(work, _outside())
        self.process = process
        process.threads.append(self)

    def go_on(self) -> None:
        """Run until it waits or ends. Being called once too often does no harm: every wait looks again."""
        if not self.dead:
            self._enter(self.switch)

    def end(self) -> None:
        """Unwind it, as far as it has begun."""
        for _ in range(_UNWINDINGS_MAX):
            if self.dead:
                return
            try:
                self._enter(lambda: self.throw(ProcessEnded))
            except ProcessEnded:
                return
        raise RuntimeError(f"a thread of {self.process.name} outlives its process")

    def _enter(self, switch: Callable[[], object]) -> None:
        loop, process = asyncio._get_running_loop(), self.process
        asyncio._set_running_loop(None)  # a thread has none
        process.in_thread = True
        try:
            switch()
        finally:
            process.in_thread = False
            asyncio._set_running_loop(loop)
            if self.dead:
                process.threads.remove(self)

    def wait_until(self, is_so: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Give the turn back until something is so; whoever makes it so calls `wake`. False: the time was over first."""
        if is_so():
            return True
        timeline = self.process.timeline
        timer = None if limit_s is None else self.process.call_later(limit_s, self.go_on)
        deadline = float("inf") if limit_s is None else timeline.now + limit_s
        while not is_so() and timeline.now < deadline:
            assert self.parent is not None
            self.parent.switch()
        if timer is not None:
            timer.cancel()
        return is_so()

    def wake(self) -> None:
        self.process.call_soon(self.go_on)


def _outside() -> greenlet:
    """Where no simulated thread is: the loops run there."""
    found = getcurrent()
    while found.parent is not None:
        found = found.parent
    return found


def current() -> Thread | None:
    """The simulated thread that is running; None on an event loop and outside of all processes."""
    running = getcurrent()
    return running if isinstance(running, Thread) else None


def sleep(seconds: float) -> None:
    """`time.sleep`, for a simulated thread."""
    thread = current()
    assert thread is not None
    thread.wait_until(lambda: False, seconds)


def ended(future: Future[Any], timeout_s: float = float("inf")) -> bool:
    """In place of `interrupts.ended`."""
    thread = current()
    if thread is not None and not future.done():
        future.add_done_callback(lambda _: thread.wake())
        thread.wait_until(future.done, None if timeout_s == float("inf") else timeout_s)
    assert future.done() or timeout_s < float("inf"), "waiting here would stop every process"
    return future.done()


def result(future: Future[T], timeout: float | None = None) -> T:
    """In place of `Future.result`."""
    thread = current()
    if thread is not None and not future.done():
        future.add_done_callback(lambda _: thread.wake())
        thread.wait_until(future.done, timeout)
    assert future.done() or timeout is not None, "waiting here would stop every process"
    return _result(future, 0)


class SimpleQueue(Generic[T]):
    """In place of `queue.SimpleQueue`, for one reading thread."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader: Thread | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._reader.wake()

    def get(self, timeout: float | None = None) -> T:
        self._reader = current()
        assert self._reader is not None
        try:
            if not self._reader.wait_until(lambda: bool(self._items), timeout):
                raise queue.Empty
            return self._items.popleft()
        finally:
            self._reader = None

    def get_nowait(self) -> T:
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


QUEUES: Final = SimpleNamespace(
    SimpleQueue=SimpleQueue, Empty=queue.Empty
)  # for the module `queue`


class SteppedThread:
    """In place of `threading.Thread`: a thread of the process whose event loop starts it."""

    def __init__(
        self, *, target: Callable[..., object], name: str, daemon: bool, args: tuple[Any, ...] = ()
    ) -> None:
        self.name = name
        self._target = partial(target, *args)
        self._is_stores = "store" in name  # what it does first is to wait for the disk
        self._thread: Thread | None = None

    def start(self) -> None:
        thread = current()
        running = cast(Any, asyncio.get_running_loop()) if thread is None else thread.process
        self._thread = running.run_as_thread(self._target, None if self._is_stores else 0.0)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.dead

    def join(self, timeout: float | None = None) -> None:
        waiting = current()
        assert waiting is not None
        waiting.wait_until(lambda: not self.is_alive(), timeout)
