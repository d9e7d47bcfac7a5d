"""A live run as its reader sees it: small items made for showing progress, or the same as JSON text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from agentor.engine import events as ev
from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.outbox import Audience, Outbox
from agentor.engine.recorder import ended

ITEM: Final = "run_item_stream_event"


@dataclass(frozen=True, slots=True)
class ToolAction:
    name: str
    type: Literal["tool_called", "tool_output"]


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One thing to show. `chunk` is text as it arrives, `message` a whole answer or a tool's output; `seq` is None for
    a chunk, which is not recorded. The last item has a `status`, and perhaps an `error`, if the run did not complete; one
    that did ends with its answer."""

    type: str = ITEM
    message: str | None = None
    chunk: str | None = None
    tool_action: ToolAction | None = None
    reasoning: str | None = None
    run_id: str | None = None
    seq: int | None = None
    status: str | None = None
    error: str | None = None

    def to_json(self) -> str:
        """All but `status` and `error` are always there; those are in the last item alone, if the run has not completed."""
        body = asdict(self)
        if self.status is None:
            del body["status"], body["error"]
        return strict_json.dumps(body)


def item_of(event: Event, run_id: str | None) -> StreamItem | None:
    """What an event shows to a reader; None if it shows nothing."""
    match event.type:
        case ev.TEXT_DELTA:
            return StreamItem(chunk=event.text, run_id=run_id)
        case ev.MESSAGE:
            return StreamItem(message=event.text, run_id=run_id, seq=event.seq)
        case ev.GENERATION if event.reasoning:
            return StreamItem(reasoning=event.reasoning, run_id=run_id, seq=event.seq)
        case ev.TOOL_CALL:
            action = ToolAction(event.name or "", "tool_called")
            return StreamItem(tool_action=action, run_id=run_id, seq=event.seq)
        case ev.TOOL_RESULT:
            action = ToolAction(event.name or "", "tool_output")
            return StreamItem(
                message=event.result, tool_action=action, run_id=run_id, seq=event.seq
            )
        case ev.RUN_END if event.status != "completed":
            return StreamItem(status=event.status, error=event.error, run_id=run_id, seq=event.seq)
    return None


async def items(events: AsyncGenerator[Event], run_id: str | None) -> AsyncGenerator[StreamItem]:
    """What the events of a live run show. An end is shown when nothing follows it: a cancel may, if it came as the run ended."""
    end: StreamItem | None = None
    failure: Exception | None = None
    async with contextlib.aclosing(events):
        try:
            async for event in events:
                item, end = item_of(event, run_id), None
                if item is None:
                    continue
                if item.status is not None:
                    end = item
                else:
                    yield item
        except Exception as error:
            failure = error
        if end is not None:
            yield end
        if failure is not None:
            raise failure


async def live(run: Callable[[Audience], Coroutine[Any, Any, Any]]) -> AsyncGenerator[Event]:
    """The events of a run as they are recorded, text as it arrives, and at the end the run's exception, if any.

    However the reader leaves (break, aclose, garbage), the run is cancelled and has ended before this has.
    """
    outbox = Outbox()
    task = asyncio.create_task(run(outbox))
    task.add_done_callback(lambda _: outbox.close())
    try:
        while (event := await outbox.next()) is not None:
            yield event
            outbox.taken(event)
        await task
    finally:
        if not task.done():
            task.cancel()
        cancelled = await ended({task})
        if not task.cancelled():
            task.exception()  # seen, also when nobody reads on to the end
        if cancelled is not None:
            raise cancelled
