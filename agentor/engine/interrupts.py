"""Ctrl-C, held back while something must not be left half done.

Python runs the handlers of signals in the main thread, between any two steps of what stands there, and what a handler raises
may so come between taking a lock and the block that gives it back. Within `deferred()` no handler of the program's runs:
signals are remembered, and told at the end. What may take long, such as waiting for somebody else, is called by `allowed(...)`
inside of it: handlers run at once there, and raise nowhere else. So a section is written as if nothing but a call by
`allowed` could raise an interrupt, and other threads, to which all this does not happen, pay nothing.

What is relied on: CPython looks for signals at the begin of a function, after a call and when a loop goes back, never between
two plain assignments.
"""

from __future__ import annotations

# What is under `signal`, which makes names of the numbers: that would cost more than all the rest.
import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED
from types import FrameType
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_Args = ParamSpec("_Args")
T = TypeVar("T")

# The system may hand a signal to any thread, and then nothing wakes the main thread, which alone runs Python's handlers:
# whoever waits there has to come back by itself.
LOOK_S: Final = 0.25  # how late a signal may be noticed

# Whose handlers may raise, by the custom of the trade: what asks a program to stop, and timers. To look at all 64 for each
# section would cost as much as a small read.
_SIGNALS: Final = tuple(
    int(number)
    for number in signal.Signals
    if number.name
    in (
        *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF"),
    )
)
_get_handler: Final[Callable[[int], Any]] = _signal.getsignal
_set_handler: Final[Callable[[int, Any], Any]] = _signal.signal


class _MainThread:
    """What is held back there. Assigned to by nobody but the main thread."""

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self.is_in_section = False
        self.is_open = True  # a handler may run at once
        self.came: dict[int, tuple[_Handler, FrameType | None]] = {}  # signals not told yet
        self.handlers: dict[int, _Handler] = {}  # in whose place `_remember` is, or was last


_main = _MainThread()


class deferred:
    """A block, or a function, in the main thread of which no signal's handler runs until its end.

    May be nested, and be in what is called by `allowed`. Whatever the handlers raise comes from the end of the outermost
    block, when all is done. Does nothing in other threads.
    """

    def __enter__(self) -> None:
        self._is_here = threading.get_ident() == _main.thread
        if self._is_here:
            self._is_outermost = not _main.is_in_section
            if self._is_outermost:
                _take_over()
            self._was_open = _main.is_open
            _main.is_in_section, _main.is_open = True, False

    def __exit__(self, *_: object) -> None:
        if not self._is_here:
            return
        try:
            if self._is_outermost:
                _give_back()
        finally:
            try:
                while self._was_open and _main.came:
                    _tell()
            finally:
                if self._is_outermost:
                    _main.is_in_section = False
                _main.is_open = self._was_open

    def __call__(self, call: Callable[_Args, T]) -> Callable[_Args, T]:
        @functools.wraps(call)
        def whole(*args: _Args.args, **kwargs: _Args.kwargs) -> T:
            if not _main.is_open and threading.get_ident() == _main.thread:
                return call(*args, **kwargs)
            with deferred():
                return call(*args, **kwargs)

        return whole


def allowed(call: Callable[_Args, T], *args: _Args.args, **kwargs: _Args.kwargs) -> T:
    """`call(...)`, in which handlers run at once, also within `deferred`. What has come until now is told first."""
    if _main.is_open or threading.get_ident() != _main.thread:
        return call(*args, **kwargs)
    while _main.came:
        _tell()
    # Not by a context manager: its __exit__ could be interrupted before its first line.
    _main.is_open = True
    try:
        return call(*args, **kwargs)
    finally:
        _main.is_open = False


def _take_over() -> None:
    try:
        for number in _SIGNALS:
            handler = _get_handler(number)
            if callable(handler) and handler is not _remember:
                _main.handlers[number] = handler
                _set_handler(number, _remember)
    except ValueError:  # a subinterpreter, in which no handlers run
        pass
    except BaseException:  # of a handler that is not replaced yet
        _give_back()
        raise


def _give_back() -> None:
    """A handler that the program has set meanwhile stays. Interrupted here, `_remember` stays too, and passes on."""
    for number, handler in list(_main.handlers.items()):
        if _get_handler(number) is _remember:
            _set_handler(number, handler)


def _remember(number: int, frame: FrameType | None) -> None:
    handler = _main.handlers[number]
    if _main.is_open:
        handler(number, frame)
    else:
        _main.came[number] = handler, frame


def _tell() -> None:
    number, (handler, frame) = _main.came.popitem()
    try:
        handler(number, frame)
    finally:
        if _main.came:
            _tell()


def _begin_anew() -> None:
    """In a forked child: the thread that was in a section may be one that is not here."""
    before, _main.thread = _main.thread, threading.get_ident()
    if before != _main.thread and _main.is_in_section:
        _main.is_in_section, _main.is_open = False, True
        _main.came.clear()
        _give_back()


os.register_at_fork(after_in_child=_begin_anew)


# Waiting --------------------------------------------------------------------------------------------------------------


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1, /) -> bool: ...

    def release(self) -> None: ...


@contextlib.contextmanager
def held(lock: _Lock) -> Iterator[None]:
    """`with lock`, for one that others may hold for long: an interrupt ends the waiting, and does not come into the block."""
    with deferred():
        while not lock.acquire(True, LOOK_S):
            # Not the acquire itself: an interrupt right after it would leave the lock taken.
            allowed(bool)
        try:
            yield
        finally:
            lock.release()


class Waiters:
    """Those who wait for a change: like a `threading.Condition`, but an interrupt leaves no lock held."""

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
        """False if it was not so in time. `is_so` may be asked by several threads at once."""
        if is_so():
            return True
        left_s, is_told = timeout_s, True
        with deferred():
            while left_s > 0:
                if is_told:
                    told = self._told()
                if is_so():  # once more, so that no change is missed
                    return True
                pause_s = min(LOOK_S, left_s)
                is_told = allowed(told.acquire, True, pause_s)
                left_s -= 0.0 if is_told else pause_s
        return is_so()

    def _told(self) -> threading.Lock:
        told = threading.Lock()
        told.acquire()
        self._locks.append(told)
        return told

    def tell(self) -> None:
        """Something has changed."""
        while self._locks:
            with contextlib.suppress(IndexError):  # another thread tells, too
                self._locks.popleft().release()


def ended(future: Future[Any], timeout_s: float = float("inf")) -> bool:
    """Wait until a future is done, in a way that an interrupt leaves nothing of it held; False if it was not in time."""
    left_s, over = timeout_s, threading.Lock()
    with deferred():
        over.acquire()
        Future.add_done_callback(future, lambda _: over.release())
        while left_s > 0:
            pause_s = min(LOOK_S, left_s)
            if allowed(over.acquire, True, pause_s):
                return True
            left_s -= pause_s
        return future.done()


def result_of(start: Callable[[], Future[T]], undo: Callable[[T], object] | None = None) -> T:
    """What the future gives that `start` returns. Who is interrupted as he waits withdraws it, or sees it through: it does not
    go on without him, unless a second interrupt ends that waiting, too. What he does not get by then, `undo` is told.
    """
    future: Future[T] | None = None
    try:
        with deferred():
            future = start()
            _see_through(future)
            return Future.result(future)  # done, so that nothing waits
    except BaseException:
        if future is not None and undo is not None:
            _undo(future, undo)
        raise


def _see_through(future: Future[Any]) -> None:
    try:
        ended(future)
    except BaseException:
        if not future.cancel():
            with contextlib.suppress(BaseException):
                ended(future)
        raise


@deferred()
def _undo(future: Future[T], undo: Callable[[T], object]) -> None:
    if future.done() and not future.cancelled() and future.exception() is None:
        undo(future.result())


def kept(get: Callable[[], T], undo: Callable[[T], object]) -> T:
    """What `get` returns; if an interrupt comes before the caller has it, `undo` is told."""

    def done() -> Future[T]:
        future: Future[T] = Future()
        future.set_result(get())
        return future

    return result_of(done, undo)


_DONE: Final = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)


class Answer(Future[T]):
    """A future whose lock no interrupt of those who ask leaves held, so that whoever answers never waits for it."""

    def result(self, timeout: float | None = None) -> T:
        self._in_time(timeout)
        with deferred():
            return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._in_time(timeout)
        with deferred():
            return super().exception()

    def _in_time(self, timeout: float | None) -> None:
        if not (self.done() or ended(self, float("inf") if timeout is None else timeout)):
            raise TimeoutError

    @deferred()
    def cancel(self) -> bool:
        return super().cancel()

    @deferred()
    def cancelled(self) -> bool:
        return super().cancelled()

    @deferred()
    def running(self) -> bool:
        return super().running()

    def done(self) -> bool:
        """Without the lock: it never changes back, and a run asks several times for each commit."""
        return self._state in _DONE

    @deferred()
    def add_done_callback(self, call: Callable[[Future[T]], object]) -> None:
        super().add_done_callback(call)
