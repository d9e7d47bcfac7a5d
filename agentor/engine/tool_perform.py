"""Perform one tool call and never be harmed by it.

The tool runs in a task of its own, a sync tool in a thread of its own. So whatever it raises, also its own
CancelledError or SystemExit, is its own; and a CancelledError seen here can only be meant for us. What the tool has
given by then is not lost: it goes along with the cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agentor.engine import clock
from agentor.engine.result_text import error_text
from agentor.engine.run_context import RunContext

if TYPE_CHECKING:
    from agentor.engine.tools import Tool

_logger = logging.getLogger("agentor.tools")

GRACE_S: Final = 2.0  # how long a cancelled tool may take to clean up before it is abandoned


OnThread = Callable[[threading.Thread], None]

# Not an argument of `Tool.call`: whoever wraps a tool's call need not know of it.
ON_THREAD: Final[ContextVar[OnThread | None]] = ContextVar("agentor_on_thread", default=None)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How one call went: the text for the model, and the error if it failed. Times in seconds since the epoch."""

    text: str
    error: str | None
    started_at: float
    ended_at: float


class CancelledWithOutcomeError(asyncio.CancelledError):
    """The caller of a tool was cancelled, and the call has an outcome all the same."""

    def __init__(self, cancelled: asyncio.CancelledError, outcome: ToolOutcome) -> None:
        super().__init__(*cancelled.args)
        self.outcome = outcome


async def perform(
    tool: Tool,
    args: Any,
    context: RunContext,
    timeout_s: float | None = None,
    on_thread: OnThread = lambda _: None,
) -> ToolOutcome:
    """Call the tool and tell how it went. Only a cancellation of the caller's own task is raised.

    It is a `CancelledWithOutcomeError` if the tool returns all the same, or had exceeded its timeout before. What the tool
    raises once it is being stopped is no outcome: it may be the stopping's doing.

    `timeout_s` is for a tool that has none of its own. A tool past its timeout, or whose caller is cancelled, is
    cancelled and has GRACE_S to clean up. A thread cannot be cancelled: a sync tool is left to itself, unheard.
    `on_thread` is given the thread of a sync tool when it begins.
    """
    token = ON_THREAD.set(on_thread)
    try:
        attempt = _Attempt(partial(tool.call, args, context))
    finally:
        ON_THREAD.reset(token)
    limit_s = timeout_s if tool.timeout_s is None else tool.timeout_s
    is_late, cancelled = False, None
    try:
        is_late = not await attempt.ends_within(limit_s)
    except asyncio.CancelledError as error:
        cancelled = error
    if is_late or cancelled is not None:
        cancelled = await attempt.stop(tool.name) or cancelled
    if cancelled is None:
        return _outcome(tool, attempt, limit_s if is_late else None)
    if is_late or attempt.text is not None:
        outcome = _outcome(tool, attempt, limit_s)
        raise CancelledWithOutcomeError(cancelled, outcome) from cancelled
    raise cancelled


def _outcome(tool: Tool, attempt: _Attempt, exceeded_s: float | None) -> ToolOutcome:
    """How a call went that has ended, or that has exceeded its limit."""
    if (
        attempt.text is not None
    ):  # also one that came while it was being stopped: what was done is done
        return ToolOutcome(attempt.text, None, attempt.started_at, clock.now())
    if exceeded_s is None:
        error = "CancelledError" if attempt.error is None else error_text(attempt.error)
        _logger.info("tool %s failed: %s", tool.name, error, exc_info=attempt.error)
    else:
        is_undone = tool.effect == "transactional"
        known = (
            "what it wrote was rolled back" if is_undone else "whether it took effect is not known"
        )
        error = f"TimeoutError: no result within {exceeded_s:g} s; {known}"
    return ToolOutcome(f"Error: {error}", error, attempt.started_at, clock.now())


class _Attempt:
    """One running call. Its end is kept here and not in the task, whose own result a stray cancel can overwrite."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        self.text: str | None = None
        self.error: BaseException | None = None
        self.started_at = clock.now()
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._steps = self._run(call)
        self.task = loop.create_task(self._steps)

    async def _run(self, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        if (task := asyncio.current_task()) is not None:
            task.remove_done_callback(self._tell_ended)  # it has begun, so its last step tells
        try:
            self.text = await call()
        except BaseException as error:  # SystemExit in a task would end the event loop
            self.error = error
        self._tell_ended()

    def _tell_ended(self, _: object = None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def ends_within(self, limit_s: float | None) -> bool:
        """Wait for it, by the installed clock. Neither the limit nor our own cancellation touches it."""
        if limit_s is not None:
            return await _ends_within(self.task, limit_s)
        self.task.add_done_callback(self._tell_ended)  # it may be cancelled before it begins
        await self._ended  # told by its last step, which is sooner than a callback
        return True

    async def stop(self, name: str) -> asyncio.CancelledError | None:
        """Cancel the tool and see it end, or abandon it; the cancellation of the caller that came meanwhile."""
        self.task.cancel()
        deadline = clock.monotonic() + GRACE_S
        cancelled: asyncio.CancelledError | None = None
        while not self.task.done() and (left_s := deadline - clock.monotonic()) > 0:
            try:
                await _ends_within(self.task, left_s)
            except asyncio.CancelledError as error:
                cancelled = error
        if not self.task.done():
            self._abandon(name)
        return cancelled

    def _abandon(self, name: str) -> None:
        """Close the coroutine under the task, so that a tool which ignores cancellation holds up no exit."""
        _logger.warning("tool %s did not stop within %g s of being cancelled", name, GRACE_S)
        with contextlib.suppress(RuntimeError):  # it ignores even that
            self._steps.close()
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.task.cancel()  # wakes the task, which finds its coroutine closed and ends


async def _ends_within(task: asyncio.Task[None], limit_s: float) -> bool:
    timer = asyncio.ensure_future(clock.sleep(limit_s))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return task.done()
