"""Several processes in one thread: an event loop for each, under one virtual time.

Nothing waits: when no process has anything to do, time jumps to the next timer. A process can be suspended (its timers
come due, but nothing of it runs until it is woken, as with SIGSTOP) or ended. A program in which everybody waits for
somebody shows as a `Deadlock` instead of hanging.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from fuzz.threads import Thread

T = TypeVar("T")

STEPS_PER_CLEANUP = 10_000  # loop iterations within which cancelled tasks must have ended


class Deadlock(Exception):
    """Everybody waits, and no timer will ever wake anybody."""


class Timeline:
    """Virtual time, and the processes that live in it. `random` decides who of several runs next."""

    def __init__(self, chooser: random.Random, start: float = 1_000_000_000.0) -> None:
        self.now = start  # seconds
        self.steps = 0  # loop iterations of all processes
        self.processes: list[ProcessLoop] = []
        self.current: ProcessLoop | None = None  # whose iteration it is
        self.chooser = chooser

    def step(self, until: float = float("inf")) -> bool:
        """Let one process run one iteration, or jump to the next timer. False: nothing to do before `until`."""
        ready = self._ready()
        if not ready:
            first = min(
                [
                    when
                    for each in self.processes
                    if not each.suspended and (when := each.next_timer()) is not None
                ],
                default=None,
            )
            if first is None or first > until:
                return False
            if first > self.now:
                self.now = first
            ready = self._ready()
        process = ready[0] if len(ready) == 1 else self.chooser.choice(ready)
        self.steps += 1
        process.iterate()
        return True

    def _ready(self) -> list[ProcessLoop]:
        now = self.now
        return [
            each
            for each in self.processes
            if not each.suspended
            and (each.callbacks or (each.timers and each.timers[0][0] <= now))  # `is_ready`
        ]

    def deadlocked(self) -> bool:
        """Nobody has anything to do, now or later."""
        return all(not p.is_ready(self.now) and p.next_timer() is None for p in self.processes)

    def run_until(self, when: float) -> None:
        while self.step(when):
            pass
        self.now = max(self.now, when)


class Handle:
    """A callback that is to be run, now or at a time. As asyncio's own, without what serves its debugging."""

    __slots__ = ("_args", "_callback", "_context", "_when", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._when = when
        self.is_cancelled = False

    def run(self, loop: ProcessLoop) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            loop.call_exception_handler({"message": "exception in callback", "exception": error})

    def cancel(self) -> None:
        """A cancelled timer stays in the heap until its time."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


class ProcessLoop:
    """The event loop of one simulated process; only what agentor and asyncio's own tasks ask of a loop.

    What is meant for a thread begins after `delay_s()` seconds, as a thread of the simulation.
    """

    def __init__(
        self,
        timeline: Timeline,
        name: str = "process",
        delay_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.timeline = timeline
        self.name = name
        self._as_loop = cast(asyncio.AbstractEventLoop, self)
        self.suspended = False
        self.in_thread = False  # the turn is a thread's and not the loop's
        self.threads: list[Thread] = []  # that have not ended
        self.skew_s = 0.0  # how wrong the wall clock of this process is
        self.iterations = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.faults: list[dict[str, Any]] = []  # what nobody else was told of
        self._delay_s = delay_s
        self.callbacks: deque[Handle] = deque()
        self.timers: list[tuple[float, int, Handle]] = []
        self._number = 0
        self._closed = False
        timeline.processes.append(self)

    # The simulation's side -------------------------------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        return bool(self.callbacks) or bool(self.timers and self.timers[0][0] <= now)

    def next_timer(self) -> float | None:
        timers = self.timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def iterate(self) -> None:
        """Run what is ready now, as one iteration of any loop does."""
        timeline, timers, callbacks = self.timeline, self.timers, self.callbacks
        while timers and timers[0][0] <= timeline.now:
            callbacks.append(heapq.heappop(timers)[2])
        self.iterations += 1
        before, timeline.current = timeline.current, self
        asyncio._set_running_loop(self._as_loop)
        try:
            for _ in range(len(callbacks)):
                handle = callbacks.popleft()
                if not handle.is_cancelled:
                    handle.run(self)
        finally:
            asyncio._set_running_loop(None)
            timeline.current = before

    def run_until_complete(self, future: Any) -> Any:
        """For tests of one process: run the whole timeline until the future is done."""
        task = future if isinstance(future, asyncio.Future) else self.create_task(future)
        while not task.done():
            if not self.timeline.step():
                raise Deadlock(f"{task!r} waits for ever")
        return task.result()

    def end(self) -> None:
        """Cancel every task and let it come to its end, whatever it does; nothing of the process runs afterwards."""
        self.suspended = True  # no longer the timeline's business
        for thread in list(self.threads):
            thread.end()
        steps = 0
        while living := [task for task in self.tasks if not task.done()]:
            for task in living:
                task.cancel()
            while self.callbacks or self.timers:
                self.callbacks.extend(handle for _, _, handle in sorted(self.timers)[:1])
                self.timers = sorted(self.timers)[1:]
                self.iterate()
                steps += 1
                if steps > STEPS_PER_CLEANUP:
                    raise Deadlock(f"cancelled tasks do not end: {living}")
                if all(task.done() for task in living):
                    break
        self.close()

    def close(self) -> None:
        self._closed = True
        self.callbacks.clear()
        self.timers.clear()
        if self in self.timeline.processes:
            self.timeline.processes.remove(self)

    # asyncio's side ---------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.timeline.now

    def call_soon(
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context)
        self.callbacks.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context, when)
        self._number += 1
        heapq.heappush(self.timers, (when, self._number, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._as_loop)

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self._as_loop, **options)
        self.tasks.append(task)
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                value = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(value)

        self.run_as_thread(work)
        return future

    def run_as_thread(self, work: Callable[[], object], after_s: float | None = None) -> Thread:
        """Begin a thread after so many seconds, or after the delay."""
        thread = Thread(self, work)
        self.call_later(self._delay_s() if after_s is None else after_s, thread.go_on)
        return thread

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed
