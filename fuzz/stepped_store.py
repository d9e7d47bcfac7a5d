"""The real SQLite store with its writer's thread taken out: it commits when the simulation says so.

Nothing of the store's own code is replaced but the waiting: batches are gathered, and each is committed by the writer's
own method, on the process's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import apsw

from agentor.engine.events import Event
from agentor.engine.store import sqlite_guard as guard
from agentor.engine.store.protocol import Lease
from agentor.engine.store.sqlite import SQLiteStore
from agentor.engine.store.sqlite_writer import Writer, _Submission
from agentor.errors import StoreError
from fuzz.loop import ProcessLoop

T = TypeVar("T")

CommitPoint: TypeAlias = Literal["before a commit", "after a commit"]


class ProcessEnded(BaseException):
    """The process is killed here; nothing in it may catch this and live on."""


class Observer(Protocol):
    """Who is told what the store has promised."""

    def appended(self, run_id: str, events: Sequence[Event], lease: Lease | None) -> None: ...

    def not_appended(self, run_id: str, error: BaseException) -> None: ...

    def granted(self, lease: Lease) -> None: ...

    def forked(self, src_run_id: str, dst_run_id: str, at: int | None) -> None: ...

    def at_commit(self, point: CommitPoint) -> None:
        """May raise `ProcessEnded`."""


class SteppedWriter(Writer):
    """Commits what is waiting after `delay_s()`; at once when a thread of the process waits for it."""

    def __init__(
        self, real: Writer, process: ProcessLoop, delay_s: Callable[[], float], observer: Observer
    ) -> None:
        super().__init__(real._connection, real._path, real._check_file)
        self._process = process
        self._delay_s = delay_s
        self._observer = observer
        self._gathered: list[_Submission[Any]] = []

    def submit(self, operation: Callable[[apsw.Connection], T]) -> Future[T]:
        if self._closed:
            raise StoreError(f"{self._path}: this store is closed")
        submission = _Submission(operation)
        self._gathered.append(submission)
        if self._process.in_thread or self._process.timeline.current is None:
            self._drain()
        elif len(self._gathered) == 1:
            self._process.call_later(self._delay_s(), self._drain)
        return submission.future

    def close(self) -> None:
        if not self._closed:
            self._drain()
            self._closed = True
            self._close_connection()

    def kill(self) -> None:
        """The process is gone: what was waiting was never done."""
        self._closed = True
        self._gathered.clear()
        guard.let_go(self._connection)

    def _drain(self) -> None:
        batch, self._gathered = self._gathered, []
        if wanted := [each for each in batch if each.future.set_running_or_notify_cancel()]:
            self._answer(wanted)

    def _commit(self, batch: list[_Submission[Any]]) -> None:
        self._observer.at_commit("before a commit")
        super()._commit(batch)
        self._observer.at_commit("after a commit")


class SteppedStore(SQLiteStore):
    """An `SQLiteStore` in a simulated process, under observation."""

    def __init__(
        self,
        path: str,
        process: ProcessLoop,
        delay_s: Callable[[], float],
        observer: Observer,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self._observer = observer
        self._finalizer.detach()
        self._writer: SteppedWriter = SteppedWriter(self._writer, process, delay_s, observer)

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        future = super().submit(run_id, events, lease)

        def tell(done: Future[None]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is None:
                self._observer.appended(run_id, events, lease)
            else:
                self._observer.not_appended(run_id, error)

        future.add_done_callback(tell)
        return future

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        try:
            lease = super().acquire(run_id, owner, ttl_s)
        except StoreError as error:  # a run that is new goes on unsaved
            self._observer.not_appended(run_id, error)
            raise
        self._observer.granted(lease)
        return lease

    def fork(
        self, src_run_id: str, dst_run_id: str, *, at: int | None = None, event: Event | None = None
    ) -> None:
        super().fork(src_run_id, dst_run_id, at=at, event=event)
        self._observer.forked(src_run_id, dst_run_id, at)

    @property
    def connections(self) -> list[apsw.Connection]:
        """Those that are open."""
        return [self._writer._connection, *self._readers._idle]

    def close(self) -> None:
        self._readers.close()
        self._writer.close()
        self._forget()

    def kill(self) -> None:
        """Let go of the file as a killed process does: no checkpoint, no commit, no release."""
        self._readers._closed = True
        self._readers.abandon()
        self._writer.kill()
        self._forget()

    def _forget(self) -> None:
        if self._identity is not None:
            guard.closed(self._identity)
            self._identity = None  # type: ignore[assignment]
