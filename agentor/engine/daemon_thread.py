"""Blocking work beside the event loop, in threads that never hold up the interpreter's exit.

Not in a pool: a pool's threads are joined at exit, and a stuck call would take a place in it for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MORE_THREADS: Final = "End what else has threads, or raise the limit (ulimit -u), and try again."


class NoThreadError(RuntimeError):
    """The system gives no thread now; nothing has begun."""


async def in_thread(
    work: Callable[[], T], name: str, began: Callable[[threading.Thread], None] | None = None
) -> T:
    """Run `work` in a daemon thread of its own, with the caller's context variables.

    A caller who is cancelled leaves the thread running. `began` is given the thread before anything can be cancelled.
    `NoThreadError` if there is none.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not done.done():  # else nobody waits for it any more
            done.set_result(outcome)
        elif inspect.iscoroutine(outcome[0]):
            outcome[0].close()

    def run() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (context.run(work), None)
        except BaseException as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, the run long over
            loop.call_soon_threadsafe(tell, outcome)

    thread = threading.Thread(target=run, name=f"agentor-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as refusal:
        raise NoThreadError(str(refusal)) from refusal
    if began is not None:
        began(thread)
    value, error = await done
    if error is not None:
        raise error
    result: T = value
    return result
