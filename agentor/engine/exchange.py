"""One attempt: a request is sent, and what comes back is read until the reply is whole or known to be broken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from agentor.engine.patience import Alarm, Patience
from agentor.engine.reply import BrokenReply, ReplyReader
from agentor.engine.responses import StreamChunk
from agentor.engine.transport import Incoming

_LINGER_S: Final = 5.0  # how long the usage may take once the reply has said that it is finished
_DRAIN_S: Final = (
    0.1  # how long the end of the body may take: a connection read to its end is used again
)

Piece = bytes | Mapping[str, Any]


class Exchange:
    """What one attempt has come to know."""

    def __init__(self, reader: ReplyReader, patience: Patience) -> None:
        self.reader = reader
        self.patience = patience
        self.headers: Mapping[str, str] = {}  # of the answer

    async def chunks(
        self, sending: contextlib.AbstractAsyncContextManager[Incoming]
    ) -> AsyncGenerator[StreamChunk, None]:
        """The visible text as it comes, then the final chunk. `BrokenReply` if the reply cannot be used."""
        alarm = self.patience.alarm()
        async with contextlib.AsyncExitStack() as opened:
            opened.callback(alarm.stop)
            incoming = await self._open(opened, sending, alarm)
            while (piece := await self._next(incoming, alarm)) is not None:
                for chunk in self._fed(piece):
                    yield chunk
            for chunk in self._ended():
                yield chunk

    async def _open(
        self,
        opened: contextlib.AsyncExitStack,
        sending: contextlib.AbstractAsyncContextManager[Incoming],
        alarm: Alarm,
    ) -> Incoming:
        try:
            incoming = await alarm.limit(opened.enter_async_context(sending))
        except TimeoutError:
            raise self._too_long() from None
        self.patience.spend(incoming.retries)
        self.headers = incoming.headers
        return incoming

    async def _next(self, incoming: Incoming, alarm: Alarm) -> Piece | None:
        """The next piece of the body; None when it is over, however it ended: the reader judges what there is."""
        reader = self.reader
        if reader.ended:
            await _drain(incoming.pieces)
            return None
        if reader.finished:
            alarm.set_in(_LINGER_S)
        try:
            return await alarm.limit(anext(incoming.pieces, None))
        except TimeoutError:
            if reader.finished:
                return None
            raise self._too_long() from None
        except Exception as error:
            if incoming.decoded:
                raise
            reader.broke = type(error).__name__
            return None

    def _fed(self, piece: Piece) -> list[StreamChunk]:
        return self.reader.feed(piece) if isinstance(piece, bytes) else self.reader.add(piece)

    def _ended(self) -> list[StreamChunk]:
        chunks = self.reader.end()
        response = self.reader.response()
        if self.reader.is_whole and (response.content or response.reasoning):
            chunks.append(StreamChunk(response.content, reasoning_delta=response.reasoning))
        return [*chunks, StreamChunk(final=response)]

    def _too_long(self) -> BrokenReply:
        return BrokenReply(f"the call took longer than {self.patience.timeout_s:g} s")


async def _drain(pieces: AsyncGenerator[Piece, None]) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass
