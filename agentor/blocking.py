"""The synchronous face: one event loop for the whole process, on a thread of its own.

It works in a plain script, many times in a row, inside a running event loop (a notebook), and from any thread, and
network clients stay bound to one loop. The thread is a daemon, so it never keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from agentor.engine.interrupts import Answer, deferred, ended

_Self = TypeVar("_Self")
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class LoopThread:
    """An event loop on a thread, until it is stopped or the process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="agentor-loop", daemon=True)
        self.thread.start()

    def start(self, make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Started[_Result]:
        """Run what `make` makes, in the caller's context."""
        started: _Started[_Result] = _Started(self.loop)
        context = contextvars.copy_context()
        self.loop.call_soon_threadsafe(lambda: context.run(started.begin, make))
        return started

    def stop(self) -> None:
        """End the loop and its thread, and close what was bound to it."""
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    _stopping = False

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        _this_thread.is_loop = True
        while not self._stopping:
            # asyncio lets these two out of the loop. The task that raised them holds them as its own exception, and
            # the others still need the loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class _Started(Answer[_Result]):
    """A future that another thread can wait for, and whose work it can cancel in an orderly way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._task: asyncio.Task[_Result] | None = None

    def begin(self, make: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        self._task = self._loop.create_task(_made(make))
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[_Result]) -> None:
        try:
            result = task.result()
        except BaseException as error:  # a cancellation with its notes, too
            self.set_exception(error)
        else:
            self.set_result(result)

    def stop(self) -> None:
        """Cancel the work and return when it has ended, so that all it leaves behind is on disk; or at an interrupt."""
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        with contextlib.suppress(BaseException):
            ended(self)


async def _made(make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Also the making happens inside the task, so that a wrong argument reaches the caller."""
    return await make()


_this_thread = threading.local()  # is_loop: it serves a loop of ours
_lock = threading.Lock()
_shared: LoopThread | None = None


def _shared_loop() -> LoopThread:
    """The process's loop; a new one in a child after a fork, where the parent's thread does not run."""
    global _shared
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = LoopThread()
        return _shared


def wait_for(make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a coroutine to its end from synchronous code. Ctrl-C cancels it in an orderly way first."""
    if not getattr(_this_thread, "is_loop", False):
        return _outcome(_shared_loop, make)
    nested = LoopThread()  # we are on a loop of ours, so nobody would serve what we wait for
    try:
        return _outcome(lambda: nested, make)
    finally:
        nested.stop()


def _outcome(
    loop: Callable[[], LoopThread], make: Callable[[], Coroutine[Any, Any, _Result]]
) -> _Result:
    """What comes of it. Whatever is raised here, also at the very end, is that or tells it."""
    work: _Started[_Result] | None = None
    try:
        with deferred():
            work = loop().start(make)
            _wait(work)
            return work.result()
    except BaseException as interrupt:
        if work is not None:
            _tell_what_there_is(interrupt, work)
        raise


def _wait(work: _Started[Any]) -> None:
    try:
        ended(work)
    except BaseException:  # whatever handler raised it: nothing goes on behind the caller's back
        if not work.done():
            work.stop()
        raise


@deferred()
def _tell_what_there_is(interrupt: BaseException, work: Answer[Any]) -> None:
    """The interrupt is all that the caller hears of, so it names the run that is there now."""
    if not work.done():
        interrupt.add_note("It was interrupted again before it had ended, and ends by itself.")
        return
    error = work.exception()
    if error is None:
        if run_id := getattr(work.result(), "run_id", None):
            interrupt.add_note(f"It had ended by then, as run {run_id!r}.")
    elif error is not interrupt:
        for note in getattr(error, "__notes__", ()):
            interrupt.add_note(note)


def twin(
    method: Callable[Concatenate[_Self, _Args], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Self, _Args], _Result]:
    """The synchronous form of the async method `a<name>`: the same arguments, and what it returns or raises."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: _Self, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        made: Callable[..., Coroutine[Any, Any, _Result]] = getattr(
            self, name
        )  # perhaps overridden

        def make() -> Coroutine[Any, Any, _Result]:
            try:
                return made(*args, **kwargs)
            except TypeError as error:
                if f"{name}()" not in str(error):
                    raise
                raise TypeError(str(error).replace(f"{name}()", f"{call.__name__}()")) from None

        return wait_for(make)

    call.__name__ = name.removeprefix("a")
    call.__qualname__ = method.__qualname__.replace(name, call.__name__)
    told = inspect.cleandoc(method.__doc__ or "")
    call.__doc__ = (
        f"`{name}` from synchronous code: a script, a notebook, a thread. "
        f"Ctrl-C ends it in an orderly way.\n\n{told}"
    )
    return call
