"""A client for each event loop, closed by the loop that its connections belong to.

A network client works only on the loop it was first used on, and only that loop can close it. So a client is closed
when its loop shuts down, when it is asked to be, and when nobody has the model any more, whichever comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class _Kept:
    client: Any  # has `async close()`
    guard: AsyncGenerator[None, None]  # closing it closes the client


_Clients = dict[asyncio.AbstractEventLoop, _Kept]


class LoopClients:
    """The clients of one model. Forgetting this object closes them."""

    def __init__(self) -> None:
        self._kept: _Clients = {}
        weakref.finalize(self, _let_go, self._kept).atexit = False

    def get(self) -> Any:
        """The client of the running event loop, or None."""
        kept = self._kept.get(asyncio.get_running_loop())
        return kept and kept.client

    async def keep(self, client: Any) -> Any:
        """Make this the client of the running event loop, unless another call was faster; the one that is."""
        if (kept := self.get()) is not None:
            return kept
        self._forget_ended()
        await _keep(client, self._kept)
        return client

    async def aclose(self) -> None:
        """Close the client of the running event loop."""
        if (kept := self._kept.get(asyncio.get_running_loop())) is not None:
            await kept.guard.aclose()
        self._forget_ended()

    def _forget_ended(self) -> None:
        for loop in list(self._kept):
            if loop.is_closed():
                self._kept.pop(loop, None)


async def _keep(client: Any, clients: _Clients) -> None:
    """Enter the client as that of the running event loop, until the loop ends.

    The guard is an async generator that waits for ever: an event loop closes those when it shuts down.
    """
    loop = asyncio.get_running_loop()

    async def closing() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            clients.pop(loop, None)
            await client.close()

    clients[loop] = _Kept(client, closing())
    await anext(clients[loop].guard)


def _let_go(clients: _Clients) -> None:
    """Nobody has the model any more: have each event loop close what is its own."""
    for loop, kept in list(clients.items()):
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_close_soon, loop, kept)


def _close_soon(loop: asyncio.AbstractEventLoop, kept: _Kept) -> None:
    task = loop.create_task(_close(kept))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(kept: _Kept) -> None:
    await kept.guard.aclose()


_closing: Final[set[asyncio.Task[None]]] = set()  # a loop holds its tasks only weakly
