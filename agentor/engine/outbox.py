"""What a reader of a live run is shown, and how far the run may get ahead of its reader.

The loop never waits for a reader while tools run, so a slow reader cannot hold up the record. But it waits before it
asks the model or starts tools: whoever stops reading stops the spending, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from agentor.engine.events import TEXT_DELTA, Event

UNREAD_MAX: Final = 256  # pieces of text that may wait for a slow reader


class Audience(Protocol):
    """Whoever is shown a run: every event after it is durable, and text as it arrives."""

    @property
    def wants_text(self) -> bool:
        """Whether to stream replies: text is then shown as it arrives."""

    async def show(self, event: Event) -> None: ...

    async def caught_up(self) -> None:
        """Return when everything shown has been taken."""


class Nobody:
    """The audience of a run whose result is all that matters."""

    wants_text = False

    async def show(self, event: Event) -> None:
        pass

    async def caught_up(self) -> None:
        pass


class Outbox:
    """An audience that reads at its own pace."""

    wants_text = True

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(UNREAD_MAX)

    async def show(self, event: Event) -> None:
        if event.type == TEXT_DELTA:  # what is recorded never waits for a reader
            await self._room.acquire()
        self._queue.put_nowait(event)

    async def caught_up(self) -> None:
        await self._queue.join()

    def close(self) -> None:
        """Nothing more will be shown."""
        self._queue.put_nowait(None)

    async def next(self) -> Event | None:
        """The next thing shown; None after `close`. Call `taken` when done with it."""
        return await self._queue.get()

    def taken(self, event: Event) -> None:
        self._queue.task_done()
        if event.type == TEXT_DELTA:
            self._room.release()
