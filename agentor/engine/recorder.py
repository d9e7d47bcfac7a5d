"""Saving a live run: in order, as a prefix, and loudly when it fails.

What could not be saved waits and goes first the next time, so the log never has a hole. A run may go on with events
unsaved (best effort) or end (strict). A conflict or a lost lease is never a failed save: it means that another worker
has the run, and ends this one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from agentor.engine.events import Event
from agentor.engine.store.protocol import AppendsMany, Lease, Store, Submits
from agentor.errors import LeaseError, SequenceConflictError, StoreError

logger = logging.getLogger("agentor")

Durability: TypeAlias = Literal["best_effort", "strict"]
_Result = TypeVar("_Result")


class Recorder:
    """Writes one run's events to its store. Without a store there is nothing to write and nothing to lose."""

    def __init__(
        self,
        store: Store | None,
        run_id: str,
        durability: Durability = "best_effort",
        lease: Callable[[], Lease | None] = lambda: None,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._strict = durability == "strict"
        self._lease = lease
        self.unsaved: list[Event] = []

    async def save(self, events: Sequence[Event]) -> None:
        """Return when the events are on disk; with best effort also when they could not be saved.

        `SequenceConflictError` and `LeaseError`: another worker has the run. `StoreError`: strict, and not saved.
        """
        if self._store is None:
            return
        self.unsaved.extend(events)
        try:
            await uninterrupted(self._write())
        except SequenceConflictError:
            if len(self.unsaved) == len(events) or not await self._are_ours():
                raise
            self.unsaved.clear()  # an earlier save had reached the disk although it seemed to fail
        except LeaseError:
            raise
        except Exception as error:
            self._failed(error)

    async def _write(self) -> None:
        store: object = self._store  # what it offers beyond the protocol is found by asking
        events = list(self.unsaved)
        if isinstance(store, Submits):
            await asyncio.wrap_future(store.submit(self._run_id, events, self._lease()))
            self.unsaved.clear()
        elif isinstance(store, AppendsMany):
            await off_loop(store, store.append_many, self._run_id, events, self._lease())
            self.unsaved.clear()
        elif isinstance(store, Store):
            for event in events:
                await off_loop(store, store.append, self._run_id, event)
                del self.unsaved[0]

    async def _are_ours(self) -> bool:
        """Whether the log already holds, at their seqs, the very events that wait to be saved."""
        assert self._store is not None
        log = await off_loop(self._store, self._store.load, self._run_id)
        stored = {event.seq: event for event in log}
        return all(stored.get(event.seq) == event for event in self.unsaved)

    def _failed(self, error: Exception) -> None:
        first = self.unsaved[0].seq
        if self._strict:
            raise StoreError(
                f"run {self._run_id!r}: the events from seq {first} on could not be saved ({error}); "
                "the run has stopped. Resume it when the store is well again."
            ) from error
        logger.error(
            "run %s: %d events from seq %s on are not saved (%s: %s); they are tried again with the next",
            self._run_id,
            len(self.unsaved),
            first,
            type(error).__name__,
            error,
        )


async def off_loop(store: Any, call: Callable[..., _Result], *args: Any) -> _Result:
    """Call a store without holding up the event loop; at once if the store says that it never blocks."""
    if getattr(store, "blocking", True):
        return await asyncio.to_thread(call, *args)
    return call(*args)


async def uninterrupted(work: Awaitable[_Result]) -> _Result:
    """Await to the end even if cancelled meanwhile, then let the cancellation go on.

    A write that has begun ends before its worker does, so that what follows (a release, a report) knows of it.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller hears of
        raise
