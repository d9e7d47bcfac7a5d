"""Follow logs while others write to them.

What this process appends wakes its followers at once. What other processes append is found by looking, at first
often, then four times a second: one look is one short indexed read, and a follower that is behind never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeAlias, overload

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store.over_fork import new_lock
from agentor.engine.store.protocol import check_number, check_run_id, check_seq
from agentor.errors import ConfigError, RunNotFoundError, StoreError

Found: TypeAlias = tuple[int, str, Event]  # position, run id, event
News: TypeAlias = Callable[
    [], list[Any]
]  # what has come since it was asked last, some of it at least

_SHORTEST_S: Final = 0.01
_LONGEST_S: Final = 0.25


class Bell:
    """Wakes those who wait for a run, or for any run, of this process."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._listeners: dict[str | None, list[tuple[int, Callable[[], None]]]] = {}
        self.is_closed = False

    def ring(self, run_id: str) -> None:
        """Something was appended to the run, or it was deleted."""
        if self._listeners:
            with self._lock:
                waking = [*self._listeners.get(run_id, ()), *self._listeners.get(None, ())]
            _wake(waking)

    def close(self) -> None:
        """Nothing more will come."""
        with self._lock:
            self.is_closed = True
            waking = [listener for some in self._listeners.values() for listener in some]
        _wake(waking)

    @contextlib.contextmanager
    def waking(self, run_id: str | None, wake: Callable[[], None]) -> Iterator[None]:
        listener = os.getpid(), wake
        with self._lock:
            self._listeners.setdefault(run_id, []).append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners[run_id].remove(listener)
                if not self._listeners[run_id]:
                    del self._listeners[run_id]


def _wake(listeners: list[tuple[int, Callable[[], None]]]) -> None:
    here = os.getpid()
    for process, wake in listeners:
        if process == here:  # else it waits in the process that we were forked from
            wake()


class _Woken:
    """A `threading.Event` for one who waits. An interrupt of his leaves no lock held that those who ring would wait for."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._rings.put(None)

    def clear(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._rings.get_nowait()

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._rings.get(timeout=seconds)


class _Patience:
    """How long to wait before the next look, and when to give up."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.heard()

    def heard(self) -> None:
        self._since = clock.monotonic()
        self._pause_s = _SHORTEST_S

    def pause_s(self) -> float | None:
        """Seconds to the next look; None when the timeout is over."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _LONGEST_S)
        if self._timeout is None:
            return pause_s
        left = self._since + self._timeout - clock.monotonic()
        return min(pause_s, left) if left > 0 else None


class Tailing:
    """`tail` and `atail` for a store that can say what is new."""

    blocking = True
    _bell: Bell

    def _news(self, run_id: str | None, after: int) -> News:
        """A function that gives what has come after `after`, and goes on from there the next time."""
        raise NotImplementedError

    def last_position(self) -> int:
        """The position of what was saved last, in any run; 0 if nothing was. `tail` goes on from there."""
        raise NotImplementedError

    @overload
    def tail(
        self,
        run_id: str,
        *,
        after: int = 0,
        stop: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Iterator[Event]: ...

    @overload
    def tail(
        self,
        run_id: None = None,
        *,
        after: int = 0,
        stop: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Iterator[Found]: ...

    def tail(
        self,
        run_id: str | None = None,
        *,
        after: int = 0,
        stop: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """The events of a run with a seq above `after`, then each further one when it is on disk.

        Without `run_id` those of all runs as `(position, run_id, event)`, in the order in which they were saved and
        with a position above `after`. What a fork shares with its parent comes once, with the parent.

        It ends when `stop` is set, when nothing has come for `timeout` seconds (0: when it has caught up), and
        when the store is closed; a `run_end` does not end it, since a run may be resumed. The run need not exist yet; if it
        is deleted after it was seen, `RunNotFoundError` ends the tail, whether or not another run has its id by then.
        """
        news = self._news(run_id, _checked(run_id, after, timeout))
        return self._tail(run_id, self._unless_closed(news), stop, timeout)

    @overload
    def atail(
        self, run_id: str, *, after: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Event]: ...

    @overload
    def atail(
        self, run_id: None = None, *, after: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Found]: ...

    def atail(
        self, run_id: str | None = None, *, after: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Any]:
        """`tail` that does not hold up the event loop. To stop it, leave the loop over it or cancel."""
        news = self._news(run_id, _checked(run_id, after, timeout))
        return self._atail(run_id, self._unless_closed(news), timeout)

    def _unless_closed(self, news: News) -> News:
        def look() -> list[Any]:
            try:
                return news()
            except StoreError:
                if self._bell.is_closed:  # while we looked
                    return []
                raise

        return look

    def _tail(
        self, run_id: str | None, news: News, stop: threading.Event | None, timeout: float | None
    ) -> Iterator[Any]:
        patience, woken = _Patience(timeout), _Woken()
        with self._bell.waking(run_id, woken.set):
            while not self._bell.is_closed:
                woken.clear()
                is_last_look = stop is not None and stop.is_set()
                found = news()
                yield from found
                if found:
                    patience.heard()
                if is_last_look:
                    return
                if not found:
                    pause_s = patience.pause_s()
                    if pause_s is None:
                        return
                    woken.wait(pause_s)

    async def _atail(
        self, run_id: str | None, news: News, timeout: float | None
    ) -> AsyncIterator[Any]:
        patience, woken = _Patience(timeout), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                loop.call_soon_threadsafe(woken.set)

        with self._bell.waking(run_id, wake):
            while not self._bell.is_closed:
                woken.clear()
                found = await asyncio.to_thread(news) if self.blocking else news()
                for each in found:
                    yield each
                if found:
                    patience.heard()
                    continue
                pause_s = patience.pause_s()
                if pause_s is None:
                    return
                await _either(woken, pause_s)


async def _either(woken: asyncio.Event, pause_s: float) -> None:
    tasks = [asyncio.ensure_future(woken.wait()), asyncio.ensure_future(clock.sleep(pause_s))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def deleted_meanwhile(run_id: str) -> RunNotFoundError:
    """What a tail ends with when its run is gone: the next run of that id is another, with seqs of its own."""
    error = RunNotFoundError(run_id)
    error.add_note(f"run {run_id} was deleted while it was followed")
    return error


def _checked(run_id: str | None, after: int, timeout: float | None) -> int:
    if run_id is not None:
        check_run_id(run_id)
    if check_seq("after", after) < 0:
        raise ConfigError(f"after={after!r}: give the last seq or position you have, 0 for none")
    if timeout is not None and not check_number("timeout", timeout, "seconds, 0 or more") >= 0:
        raise ConfigError(f"timeout={timeout!r}: give seconds, 0 or more")
    return after
