"""Whether something is asked of a run, found out for all runs of an event loop by one look at their store.

Each run looks twice a second. In a process with hundreds of runs the looks would cost more than the runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final

from agentor.engine import clock
from agentor.engine.recorder import off_loop
from agentor.engine.store.own import answer_of
from agentor.engine.store.protocol import KnowsAskers, Signals, TellsAsked

FRESH_S: Final = 0.25  # how old another run's look may be to serve for ours

_Boards = weakref.WeakKeyDictionary[Any, "_Board"]  # by store
_boards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Boards] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Asked:
    by: str | None = None  # None: not said, or the store does not remember


async def asked_of(store: Signals, run_id: str, kind: str) -> Asked | None:
    """What the run is asked of this kind. "Nothing" may be FRESH_S old; the rest is as of now: it may have been answered."""
    if not isinstance(store, TellsAsked) or (board := _board_of(store)) is None:
        return await asked_now(store, run_id, kind)
    if run_id not in await board.asked(store, kind):
        return None
    return await off_loop(store, _confirmed, store, run_id, kind)


async def asked_now(store: Signals, run_id: str, kind: str) -> Asked | None:
    """What the run is asked of this kind, "nothing" included as of now."""
    return await off_loop(store, _looked_up, store, run_id, kind)


def _looked_up(store: Signals, run_id: str, kind: str) -> Asked | None:
    return Asked(_asker(store, run_id, kind)) if kind in answer_of(store.asked, run_id) else None


def _confirmed(store: Signals, run_id: str, kind: str) -> Asked | None:
    """What is there most likely. Whoever has said who asks has asked: one read tells both."""
    by = _asker(store, run_id, kind)
    return Asked(by) if by is not None or kind in answer_of(store.asked, run_id) else None


def _asker(store: Signals, run_id: str, kind: str) -> str | None:
    return answer_of(store.asked_by, run_id, kind) if isinstance(store, KnowsAskers) else None


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
