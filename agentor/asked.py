"""Whether something is asked of a run, found out for all runs of an event loop by one look at their store.

Each run looks twice a second. In a process with hundreds of runs the looks would cost more than the runs.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Final

from agentor.engine import clock
from agentor.engine.recorder import off_loop
from agentor.engine.store.protocol import Signals, TellsAsked

FRESH_S: Final = 0.25  # how old another run's look may be to serve for ours

_Boards = weakref.WeakKeyDictionary[Any, "_Board"]  # by store
_boards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Boards] = weakref.WeakKeyDictionary()


async def is_asked(store: Signals, run_id: str, kind: str) -> bool:
    """Whether the run is asked this, as of at most FRESH_S ago."""
    if not isinstance(store, TellsAsked):
        return kind in await off_loop(store, store.asked, run_id)
    boards = _boards.setdefault(asyncio.get_running_loop(), weakref.WeakKeyDictionary())
    return run_id in await boards.setdefault(store, _Board()).asked(store, kind)


class _Board:
    """What one store was last seen to ask."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._seen: dict[str, tuple[float, frozenset[str]]] = {}  # kind -> when, which runs

    async def asked(self, store: TellsAsked, kind: str) -> frozenset[str]:
        async with self._looking:  # whoever comes meanwhile is served by this look
            now = clock.monotonic()
            seen = self._seen.get(kind)
            if seen is None or now - seen[0] >= FRESH_S:
                seen = now, frozenset(await off_loop(store, store.runs_asked, kind))
                self._seen[kind] = seen
            return seen[1]
