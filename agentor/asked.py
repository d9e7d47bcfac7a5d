"""Whether something is asked of a run, found out for all runs of an event loop by one look at their store.

Each run looks twice a second. In a process with hundreds of runs the looks would cost more than the runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Container
from typing import Any, Final

from agentor.engine import clock
from agentor.engine.recorder import off_loop
from agentor.engine.store.protocol import Signals, TellsAsked

FRESH_S: Final = 0.25  # how old another run's look may be to serve for ours

_Boards = weakref.WeakKeyDictionary[Any, "_Board"]  # by store
_boards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Boards] = weakref.WeakKeyDictionary()


async def is_asked(store: Signals, run_id: str, kind: str) -> bool:
    """Whether the run is asked this. A "no" may be FRESH_S old; a "yes" is as of now, for it may have been answered."""
    if isinstance(store, TellsAsked) and (board := _board_of(store)) is not None:
        seen = await board.asked(store, kind)
        if run_id not in seen:
            return False
    return kind in await off_loop(store, store.asked, run_id)


def _board_of(store: Any) -> _Board | None:
    """None for a store that cannot be the key of a dict: then each run looks for itself."""
    boards = _boards.setdefault(asyncio.get_running_loop(), weakref.WeakKeyDictionary())
    try:
        return boards.setdefault(store, _Board())
    except TypeError:
        return None


class _Board:
    """What one store was last seen to ask."""

    def __init__(self) -> None:
        # A future and not a lock: a lock would keep its event loop for as long as the board is kept for the loop.
        self._looking: asyncio.Future[None] | None = None
        self._seen: dict[str, tuple[float, frozenset[str]]] = {}  # kind -> when, which runs

    async def asked(self, store: TellsAsked, kind: str) -> Container[str]:
        while self._looking is not None:  # whoever comes meanwhile is served by this look
            await asyncio.shield(self._looking)
        now = clock.monotonic()
        seen = self._seen.get(kind)
        if seen is None or now - seen[0] >= FRESH_S:
            seen = self._seen[kind] = now, await self._look(store, kind)
        return seen[1]

    async def _look(self, store: TellsAsked, kind: str) -> frozenset[str]:
        self._looking = looking = asyncio.get_running_loop().create_future()
        try:
            return frozenset(await off_loop(store, store.runs_asked, kind))
        finally:
            self._looking = None
            with contextlib.suppress(
                RuntimeError
            ):  # the loop has ended, and whoever waited with it
                looking.set_result(None)
