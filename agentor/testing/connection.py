"""HTTP/1.1 on one connection: requests in, replies out, every byte of them ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

from agentor.testing.completions import Request
from agentor.testing.replies import Ending, Gate, Part, Reply

_HEAD_MAX: Final = 1 << 16
_NOT_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST


class _ClientLeft(Exception):
    """The other side has closed the connection."""


class Connection(asyncio.Protocol):
    """Serves one client until it leaves. `respond` gives the reply, `finished` hears when it is over."""

    def __init__(
        self,
        respond: Callable[[Request], Reply],
        finished: Callable[[Request], None],
        connections: set[Connection],
    ) -> None:
        self._respond = respond
        self._finished = finished
        self._connections = connections
        self._buffer = bytearray()
        self._news = asyncio.Event()  # bytes have come, or the client has left
        self._left = asyncio.Event()
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # asyncio does this only for sockets made with an explicit protocol number; without it a head and
        # a body sent one after the other cost 40 ms.
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def eof_received(self) -> None:
        self._left.set()
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.eof_received()
        self._lost.set()
        self._connections.discard(self)

    async def drop(self) -> None:
        """Leave at once, whatever the client is waiting for."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._transport.abort()
        await self._lost.wait()

    async def _serve(self) -> None:
        try:
            with contextlib.suppress(_ClientLeft):
                while await self._exchange():
                    pass
        finally:
            self._transport.close()

    async def _exchange(self) -> bool:
        """One request and its reply. Whether the connection stays open for another."""
        request = await self._read()
        if request is None:
            self._transport.write(_NOT_HTTP)
            return False
        try:
            for part in self._respond(request).wire():
                if not await self._send(part):
                    return False
        except _ClientLeft:
            request.disconnected = True
            raise
        finally:
            request.finished = True
            self._finished(request)
        return request.headers.get("connection", "").lower() != "close"

    async def _send(self, part: Part) -> bool:
        if self._left.is_set():
            raise _ClientLeft
        if isinstance(part, Gate):
            await self._wait_at(part)
        elif isinstance(part, bytes):
            self._transport.write(part)
        elif part is Ending.RESET:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
        return not isinstance(part, Ending)

    async def _wait_at(self, gate: Gate) -> None:
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()

        def let_through() -> None:
            with contextlib.suppress(RuntimeError):  # the server, and with it the loop, may be gone
                loop.call_soon_threadsafe(opened.set)

        gate.on_open(let_through)
        ways_on = [asyncio.create_task(opened.wait()), asyncio.create_task(self._left.wait())]
        try:
            await asyncio.wait(ways_on, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways_on:
                way.cancel()
        if self._left.is_set():
            raise _ClientLeft

    async def _read(self) -> Request | None:
        """The next request, or None if what came is not one."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _HEAD_MAX:
                return None
            await self._more()
        head = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 4]
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        headers = {
            n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)
        }
        length = headers.get("content-length", "0")
        if len(words) != 3 or not length.isdigit() or "transfer-encoding" in headers:
            return None
        return Request(words[0], words[1], headers, await self._read_body(int(length)))

    async def _read_body(self, length: int) -> bytes:
        while len(self._buffer) < length:
            await self._more()
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    async def _more(self) -> None:
        if self._left.is_set():
            raise _ClientLeft
        self._news.clear()
        await self._news.wait()
