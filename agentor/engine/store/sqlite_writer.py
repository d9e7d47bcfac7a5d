"""The one writer of a store: a thread that commits whatever is waiting as one transaction.

Everything that changes the file is an *operation*, a function of the connection. While a commit is on its way
to the disk, operations of other runs and threads gather; the next commit takes them all. Each has a savepoint
of its own, so that one refusal fails one caller. A caller's future is done when its commit is on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import apsw

from agentor.engine import clock
from agentor.engine.daemon_thread import MORE_THREADS
from agentor.engine.interrupts import Answer, Waiters, deferred, ended
from agentor.engine.store.sqlite_file import check_version, explained
from agentor.engine.store.sqlite_forks import watch_forks
from agentor.engine.store.sqlite_guard import let_go
from agentor.engine.store.sqlite_watch import Watch
from agentor.errors import StoreClosedError, StoreError

logger = logging.getLogger("agentor.store")

T = TypeVar("T")

# Beyond this many waiting operations `submit` blocks its caller. Far above what runs that wait for their own
# commits can reach; it stops a program that submits without ever waiting before it fills the memory.
MAX_WAITING = 10_000
PAUSE_S = 0.001  # about, between two tries to begin while another process writes
IDLE_S = 1.0  # without work, after which the WAL is folded into the file


@dataclass(slots=True)
class _Submission(Generic[T]):
    operation: Callable[[apsw.Connection], T]
    is_alone: bool = False
    future: Future[T] = field(default_factory=Answer)
    value: Any = None
    refusal: BaseException | None = None


class Writer:
    """Owns the writing connection. The thread starts with the first operation and ends with `close`."""

    def __init__(self, connection: apsw.Connection, path: str, watch: Watch) -> None:
        self._connection = connection
        self._path = path
        self._watch = watch
        self._waiting: queue.SimpleQueue[_Submission[Any] | None] = queue.SimpleQueue()
        self._room = Waiters()  # told when a batch has been taken
        self._entry = threading.Lock()  # so that nothing is queued behind the None of `close`
        self._thread: threading.Thread | None = None
        self._over: Future[None] = Future()  # when the thread has done all it will
        self._closed = False
        self._committing = threading.Lock()  # held while a transaction is open
        self._patience_s = connection.pragma("busy_timeout") / 1000
        connection.set_busy_timeout(0)  # `_begin` waits, and nothing else
        self._commits_in_wal = 0  # since it was folded into the file
        self.commits = 0
        watch_forks(self)

    def submit(self, operation: Callable[[apsw.Connection], T]) -> Future[T]:
        """Queue an operation. Blocks only while MAX_WAITING others wait.

        `StoreClosedError`; `StoreError`: there is no thread for it, and nothing was queued.
        """
        return self._queue(_Submission(operation))

    def submit_alone(self, operation: Callable[[apsw.Connection], T]) -> Future[T]:
        """`submit`, for a commit of its own: nobody else is harmed if SQLite gives up its transaction."""
        return self._queue(_Submission(operation, is_alone=True))

    @deferred()
    def _queue(self, submission: _Submission[T]) -> Future[T]:
        self._room.wait_until(lambda: self._waiting.qsize() < MAX_WAITING)
        with self._entry:
            if self._closed:
                raise StoreClosedError(self._path)
            self.awake()
            self._waiting.put(submission)
        return submission.future

    def awake(self) -> None:
        """See to it that `step` is called soon, as something is about to wait: here by a thread that does nothing else."""
        if self._thread is not None and self._thread.is_alive():
            return
        # Within `deferred`: until the thread runs it does not count as alive, and there can be but one.
        self._thread = threading.Thread(target=self._work, name="agentor-store-writer", daemon=True)
        try:
            self._thread.start()
        except Exception as error:  # the system has no more
            self._thread = None
            raise StoreError(
                f"{self._path}: no thread can be started that writes ({error}); nothing of this was saved. {MORE_THREADS}"
            ) from error

    def step(self) -> bool:
        """Commit everything that waits, as soon as something does; False if that was the last."""
        batch, open_for_more = self._next_batch()
        for group in _groups(batch):
            if wanted := [each for each in group if each.future.set_running_or_notify_cancel()]:
                self._answer(wanted)
        return open_for_more

    @deferred()
    def close(self) -> None:
        """Commit what is waiting, end the thread, fold the WAL into the file. An interrupt ends the waiting only."""
        with self._entry:
            is_open, self._closed = not self._closed, True
            if is_open:
                self._waiting.put(None)
        if self._thread is None:
            if is_open:
                self._close_connection()
        elif self._thread is not threading.current_thread():
            ended(self._over)
            self._thread.join()

    def pause(self, timeout_s: float = -1) -> bool:
        """Return when no transaction is open; none begins before `go_on`. False if one is open for longer."""
        return self._committing.acquire(timeout=timeout_s)

    def go_on(self) -> None:
        self._committing.release()

    def abandon(self) -> None:
        """Let go of the file as it is, as a process does that is killed."""
        let_go(self._connection)

    def connections(self) -> list[apsw.Connection]:
        return [self._connection]

    def _work(self) -> None:
        try:
            while self.step():
                pass
            self._close_connection()
        finally:
            self._over.set_result(None)

    def _next_batch(self) -> tuple[list[_Submission[Any]], bool]:
        """Everything that waits, as soon as something does; and whether more may come."""
        batch = []
        submission = self._first()
        while submission is not None:
            batch.append(submission)
            try:
                submission = self._waiting.get_nowait()
            except queue.Empty:
                break
        self._room.tell()
        return batch, submission is not None

    def _first(self) -> _Submission[Any] | None:
        """What comes next; when nothing has come for a while, the WAL is folded into the file meanwhile."""
        if self._commits_in_wal:
            try:
                return self._waiting.get(timeout=IDLE_S)
            except queue.Empty:
                with self._committing:
                    self._fold_wal()
        return self._waiting.get()

    def _fold_wal(self) -> None:
        """Without waiting for anybody: who reads or writes now has its turn, and the next idle moment will do."""
        self._commits_in_wal = 0
        if self._watch.is_lost:
            return
        with contextlib.suppress(apsw.Error):  # a full disk, too: nothing is lost by not folding
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _answer(self, batch: list[_Submission[Any]]) -> None:
        try:
            with self._committing:
                self._commit(batch)
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self._roll_back()
            self._watch.rescue()
            for submission in batch:
                submission.refusal = self._told(error)
        for submission in batch:
            _settle(submission)

    def _close_connection(self) -> None:
        self._fold_wal()  # if that is busy, whoever closes last does it
        self._watch.rescue()
        with contextlib.suppress(apsw.Error):  # what was acknowledged is in the WAL already
            self._connection.close()

    def _commit(self, batch: list[_Submission[Any]]) -> None:
        self._begin()
        self._watch.check()  # before as well: others may use what is at the path by now
        check_version(self._connection, self._path)
        perform = self._perform_only if len(batch) == 1 else self._perform
        for submission in batch:
            perform(submission)
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
            self.commits += 1
            self._commits_in_wal += 1
        self._watch.check_commit()

    def _begin(self) -> None:
        """Take the write lock. SQLite's own waiting backs off to a tenth of a second, many times what a commit takes."""
        until = clock.monotonic() + self._patience_s
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except apsw.BusyError:
                if clock.monotonic() >= until:
                    raise
            clock.pause(PAUSE_S * (0.5 + clock.uniform()))

    def _perform(self, submission: _Submission[Any]) -> None:
        self._connection.execute("SAVEPOINT one")
        try:
            submission.value = submission.operation(self._connection)
        except Exception as error:
            self._refuse(submission, error)
            self._connection.execute("ROLLBACK TO one")
        self._connection.execute("RELEASE one")

    def _perform_only(self, submission: _Submission[Any]) -> None:
        """With nobody else in the commit, a refusal takes back all of it."""
        try:
            submission.value = submission.operation(self._connection)
        except Exception as error:
            self._refuse(submission, error)
            self._connection.execute("ROLLBACK")

    def _refuse(self, submission: _Submission[Any], error: Exception) -> None:
        if not self._connection.in_transaction:  # SQLite gave up the whole transaction
            raise error
        submission.refusal = self._told(error) if isinstance(error, apsw.Error) else error

    def _roll_back(self) -> None:
        with contextlib.suppress(apsw.Error):  # the failure that led here is told to everyone
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _told(self, error: BaseException) -> StoreError:
        """A new exception for each caller: one object raised in several threads would mix their tracebacks."""
        told = error if isinstance(error, StoreError) else None
        told = StoreError(*told.args) if told is not None else explained(error, self._path)
        told.__cause__ = error
        return told


def _settle(submission: _Submission[Any]) -> None:
    try:
        if submission.refusal is not None:
            submission.future.set_exception(submission.refusal)
        else:
            submission.future.set_result(submission.value)
    except BaseException:  # of somebody's callback, and others wait for their futures
        logger.exception("a callback on a future of this store has failed")


def _groups(batch: list[_Submission[Any]]) -> Iterator[list[_Submission[Any]]]:
    """What is committed together, in order."""
    for is_alone, group in itertools.groupby(batch, lambda submission: submission.is_alone):
        if is_alone:
            yield from ([submission] for submission in group)
        else:
            yield list(group)
