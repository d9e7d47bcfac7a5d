"""Saving a live run: in order, as a prefix, and loudly when it fails.

What could not be saved waits and goes first the next time, so the log never has a hole. A run may go on with events
unsaved (best effort) or end (strict). A conflict or a lost lease is never a failed save: it means that another worker
has the run, and ends this one. So does a store that was closed, for it never saves again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from agentor.engine.committed import committed
from agentor.engine.daemon_thread import MORE_THREADS, NoThreadError, in_thread
from agentor.engine.events import Event
from agentor.engine.store.own import answer_of, loaded
from agentor.engine.store.protocol import AppendsMany, Lease, Store, Submits
from agentor.engine.store.transacting import Transaction, Transacts
from agentor.errors import (
    LeaseError,
    SequenceConflictError,
    StatementError,
    StoreClosedError,
    StoreError,
)

logger = logging.getLogger("agentor")

Durability: TypeAlias = Literal["best_effort", "strict"]
_Result = TypeVar("_Result")

_ENDING = (StatementError, SequenceConflictError, LeaseError, StoreClosedError)

_NOT_BEGUN: Final = "a transactional call could not be begun ({}), so it did not happen"
_IN_THE_LOG: Final = (  # a store can fail after it has committed
    "the commit of a transactional call failed ({}), and whether it happened is in the log: it did if its result stands "
    "there, and else it did not"
)


class Recorder:
    """Writes one run's events to its store. Without a store there is nothing to write and nothing to lose."""

    def __init__(
        self,
        store: Store | None,
        run_id: str,
        durability: Durability = "best_effort",
        lease: Callable[[], Lease | None] = lambda: None,
        ensure: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._write = self._writer(store)
        quick: object = store
        self._quick = quick if isinstance(quick, Submits) else None
        self._run_id = run_id
        self._strict = durability == "strict"
        self._lease = lease
        self._ensure = ensure  # that there is a lease, if there can be one
        self._has_terms = isinstance(store, AppendsMany | Submits)
        self.unsaved: list[Event] = []

    @property
    def is_fenced(self) -> bool:
        """Whether the store itself refuses what is written after somebody else has had the run: it is told our lease."""
        return self._has_terms and self._lease() is not None

    async def save(self, events: Sequence[Event]) -> None:
        """Return when the events are on disk; with best effort also when they could not be saved.

        A cancellation is raised when that is over: then the events are on disk, or the first of `unsaved`.

        `SequenceConflictError` and `LeaseError`: another worker has the run. `StoreClosedError`: nobody can save it.
        `StoreError`: strict, and not saved.
        """
        if self._store is None:
            return
        retries = bool(self.unsaved)
        self.unsaved.extend(events)
        try:
            if self._quick is not None and not retries and self._lease() is not None:
                await self._submit(self._quick)
            else:
                await uninterrupted(self._save(retries))
        except (SequenceConflictError, LeaseError, StoreClosedError):
            raise
        except Exception as error:
            self._failed(error)

    async def begin(self, limit_s: float) -> Transaction:
        """Open a transaction on the store, which must offer them. `StoreError`, `LeaseError`: it could not be."""
        store: object = self._store
        assert isinstance(store, Transacts)
        if self.unsaved:
            await self.save(())
        if self._ensure is not None:
            await self._ensure()
        transaction = answer_of(store.transact, self._run_id, self._lease(), limit_s)
        try:
            await asyncio.wrap_future(transaction.begun)
        except asyncio.CancelledError:
            transaction.abort()
            raise
        except Exception as error:
            raise self._not_transacted(error, _NOT_BEGUN) from error
        return transaction

    async def commit(self, transaction: Transaction, events: Sequence[Event]) -> None:
        """What the transaction wrote, what is unsaved and the events: all on disk, or nothing of it."""
        try:
            await asyncio.wrap_future(transaction.commit([*self.unsaved, *events]))
        except Exception as error:
            raise self._not_transacted(error, _IN_THE_LOG) from error
        self.unsaved.clear()

    def _not_transacted(self, error: Exception, what: str) -> Exception:
        if isinstance(error, _ENDING):
            return error
        return StoreError(
            f"run {self._run_id!r}: {what.format(error)}; the run has stopped. Resume it when the store is well again."
        )

    async def _save(self, retries: bool) -> None:
        if self._ensure is not None:
            await self._ensure()
        try:
            await self._write()
        except SequenceConflictError:
            if not retries or not await self._drop_saved():
                raise
            await self._write()

    def _writer(self, store: object) -> Callable[[], Awaitable[None]]:
        """How this store takes what is unsaved, found by what it offers; once, for asking a protocol is not cheap."""
        if isinstance(store, Submits):
            return lambda: self._submit(store)
        if isinstance(store, AppendsMany):
            return lambda: self._append_many(store)
        return self._append_each

    async def _submit(self, store: Submits) -> None:
        if self.unsaved:
            events = list(self.unsaved)
            future = answer_of(store.submit, self._run_id, events, self._lease())
            try:
                await committed(future)
            finally:  # also if we were cancelled meanwhile
                if future.done() and not future.cancelled() and future.exception() is None:
                    self.unsaved.clear()

    async def _append_many(self, store: AppendsMany) -> None:
        if self.unsaved:
            events = list(self.unsaved)
            await off_loop(store, store.append_many, self._run_id, events, self._lease())
            self.unsaved.clear()

    async def _append_each(self) -> None:
        assert self._store is not None
        for event in list(self.unsaved):
            await off_loop(self._store, self._store.append, self._run_id, event)
            del self.unsaved[0]

    async def _drop_saved(self) -> bool:
        """Forget what an earlier save brought to the disk although it seemed to fail; whether there was any."""
        assert self._store is not None
        log = await off_loop(self._store, loaded, self._store, self._run_id)
        stored = {event.seq: event for event in log}
        left = [event for event in self.unsaved if stored.get(event.seq) != event]
        dropped = len(left) < len(self.unsaved)
        self.unsaved = left
        return dropped

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
    """Call a store without holding up the event loop; at once if the store says that it never blocks.

    What the call raises; `StoreError` if there is no thread for it, or it is to be awaited, and nothing was done.
    """
    if not getattr(store, "blocking", True):
        return answer_of(call, *args)
    try:
        return await in_thread(lambda: answer_of(call, *args), "store")
    except NoThreadError as error:
        raise StoreError(
            f"no thread can be started that asks {store!r} ({error}), so nothing was done. {MORE_THREADS}"
        ) from error


async def ended(tasks: Collection[asyncio.Task[Any]]) -> asyncio.CancelledError | None:
    """Wait until all of the tasks have ended, also if cancelled meanwhile; that cancellation, for the caller to raise.

    No task of its own waits here, since a loop that is torn down cancels every task, and that one too.
    """
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def is_cancelled() -> bool:
    """Whether somebody wants the running task to stop: else a CancelledError here is of what it has called."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def uninterrupted(work: Awaitable[_Result]) -> _Result:
    """Await to the end even if cancelled meanwhile, then let the cancellation go on.

    A write that has begun ends before its worker does, so that what follows (a release, a report) knows of it.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error  # ours, or the task's own: then the loop ends
        except BaseException:
            if not task.done():  # the loop was closed: nobody can wait any more
                raise
            break
    if cancelled is None or task.cancelled():
        return task.result()
    task.exception()  # seen: the cancellation is what the caller hears of
    raise cancelled
