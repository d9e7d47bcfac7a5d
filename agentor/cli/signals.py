"""Stopping a worker by SIGTERM or Ctrl-C: politely at first, and in any case soon. And what SIGTERM leaves of a resume."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from agentor import blocking
from agentor.engine import clock
from agentor.worker import Worker, WorkReport

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
TOGETHER_S: Final = 0.25  # signals that come so close to each other are one wish
LAST_S: Final = 2.0  # after the grace, until the process ends whatever holds it up


class Stops:
    """Runs a worker until a signal stops it. A second signal ends the process as if nobody had caught it, unless it
    comes along with the first: whoever stops a whole group of processes may send both."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.asked: int | None = None  # the signal that came
        self._asked_at = 0.0

    @property
    def interrupted(self) -> bool:
        return self.asked == signal.SIGINT

    def run(self, worker: Worker) -> WorkReport:
        """The worker's own report. Signals that come before it has begun stop it as well."""
        self._worker = worker
        with self._caught():
            return blocking.wait_for(self._work)

    async def _work(self) -> WorkReport:
        assert self._worker is not None
        self._loop = asyncio.get_running_loop()
        if self.asked is not None:
            self._worker.stop()
        return await self._worker.work()

    @contextmanager
    def _caught(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            yield
        finally:
            if self.asked is None:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        """On the main thread, which only waits: the loop has a thread of its own and may be stuck."""
        self.asked, self._asked_at = number, clock.monotonic()
        for caught in (
            _SIGNALS
        ):  # a function: Python complains of one that came before its handler was taken away
            signal.signal(caught, self._again)
        if hasattr(signal, "setitimer"):  # a timer, not a thread: a handler must not wait for locks
            signal.signal(signal.SIGALRM, _end_now)
            signal.setitimer(signal.ITIMER_REAL, self._grace_s + LAST_S)
        if self._loop is not None and self._worker is not None:
            self._loop.call_soon_threadsafe(self._worker.stop)

    def _again(self, number: int, _: FrameType | None) -> None:
        if clock.monotonic() - self._asked_at >= TOGETHER_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def told_at_sigterm(words: str) -> Iterator[None]:
    """Within the block SIGTERM ends the process as ever, at once, but not without `words` on standard error."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    own = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() == own:  # a child that a tool has forked knows nothing of the run
            _write_to_stderr(f"{words}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _write_to_stderr(told: bytes) -> None:
    with suppress(OSError):  # nobody reads it
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, told)


def _end_now(*_: object) -> None:
    """A thread or a loop is stuck in somebody's code. What is recorded is on disk, and a dead worker's runs are free."""
    told = b"Something did not stop in time; the worker ends without it. Its runs can be resumed.\n"
    _write_to_stderr(told)
    os._exit(1)
