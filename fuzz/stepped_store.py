"""The real SQLite store under observation, its writer in a thread of the simulation: it commits when that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import apsw

from agentor.engine.events import Event
from agentor.engine.store import sqlite_guard as guard
from agentor.engine.store.protocol import Lease
from agentor.engine.store.sqlite import SQLiteStore
from agentor.engine.store.sqlite_transact import SQLiteTransaction
from agentor.engine.store.sqlite_writer import Writer
from fuzz.loop import ProcessLoop
from fuzz.observed import Observed, Observer


class SteppedWriter(Writer):
    """Commits what is waiting after `delay_s()`, in a thread of the simulation."""

    def __init__(
        self, real: Writer, process: ProcessLoop, delay_s: Callable[[], float], observer: Observer
    ) -> None:
        super().__init__(real._connection, real._path, real._watch)
        self._process = process
        self._delay_s = delay_s
        self._observer = observer
        self._is_busy = False  # something waits or is under way

    @property
    def holds_lock(self) -> bool:
        """Whether a transaction is open between two turns: that of a tool."""
        return not self._closed and self._connection.in_transaction

    def awake(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._process.run_as_thread(self._work_off)

    def kill(self) -> None:
        """The process is gone: what was waiting was never done."""
        self._closed = True
        guard.let_go(self._connection)

    def _work_off(self) -> None:
        try:
            while self._waiting.qsize():
                self._observer.wait_for_lock()
                self.step()
        finally:
            self._is_busy = False

    def _commit(self, batch: list[Any]) -> None:
        self._observer.at_commit("before a commit")
        super()._commit(batch)
        self._observer.at_commit("after a commit")


class SteppedStore(Observed, SQLiteStore):
    """An `SQLiteStore` in a simulated process, under observation."""

    def __init__(
        self,
        path: str,
        process: ProcessLoop,
        delay_s: Callable[[], float],
        observer: Observer,
        **options: Any,
    ) -> None:
        self._observer = observer
        self._step = partial(SteppedWriter, process=process, delay_s=delay_s, observer=observer)
        self._stepped: SteppedWriter | None = None  # while the file can only be read
        super().__init__(path, **options)
        self._finalizer.detach()

    def _open(self, check: bool) -> None:
        super()._open(check)
        self._finalizer.detach()
        self._writer = self._stepped = self._step(self._writer)

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        future = super().submit(run_id, events, lease)
        future.add_done_callback(partial(self._tell, run_id, events, lease))
        return future

    def transact(
        self, run_id: str, lease: Lease | None = None, limit_s: float = 5.0
    ) -> SQLiteTransaction:
        transaction = super().transact(run_id, lease, limit_s)
        commit = transaction.commit

        def observed(events: Sequence[Event]) -> Future[None]:
            future = commit(events)
            future.add_done_callback(partial(self._tell, run_id, events, lease))
            return future

        transaction.commit = observed  # type: ignore[method-assign]
        return transaction

    def _tell(
        self, run_id: str, events: Sequence[Event], lease: Lease | None, done: Future[None]
    ) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            self._observer.appended(run_id, events, lease)
        else:
            self._observer.not_appended(run_id, error, events)

    @property
    def holds_lock(self) -> bool:
        """Whether a tool's transaction is open."""
        return self._stepped is not None and self._stepped.holds_lock

    @property
    def connections(self) -> list[apsw.Connection]:
        """Those that are open."""
        writing = [] if self._stepped is None else [self._stepped._connection]
        return [*writing, *self._readers._idle]

    def close(self) -> None:
        self._readers.close()
        if self._stepped is not None:
            self._stepped.close()
        self._forget()

    def kill(self) -> None:
        """Let go of the file as a killed process does: no checkpoint, no commit, no release."""
        self._readers._closed = True
        self._readers.abandon()
        if self._stepped is not None:
            self._stepped.kill()
        self._forget()

    def _forget(self) -> None:
        if self._identity is not None:
            guard.closed(self._identity)
            self._identity = None  # type: ignore[assignment]
