"""The one writer of a store: a thread that commits whatever is waiting as one transaction.

Everything that changes the file is an *operation*, a function of the connection. While a commit is on its way
to the disk, operations of other runs and threads gather; the next commit takes them all. Each has a savepoint
of its own, so that one refusal fails one caller. A caller's future is done when its commit is on disk.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import apsw

from agentor.engine.store.sqlite_file import explained
from agentor.errors import AgentorError, StoreError

T = TypeVar("T")

# Beyond this many waiting operations `submit` blocks its caller. Far above what runs that wait for their own
# commits can reach; it stops a program that submits without ever waiting before it fills the memory.
MAX_WAITING = 10_000


@dataclass(slots=True)
class _Submission(Generic[T]):
    operation: Callable[[apsw.Connection], T]
    future: Future[T] = field(default_factory=Future)
    value: Any = None
    refusal: BaseException | None = None


class Writer:
    """Owns the writing connection. The thread starts with the first operation and ends with `close`."""

    def __init__(
        self, connection: apsw.Connection, path: str, check_file: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._path = path
        self._check_file = check_file
        self._waiting: collections.deque[_Submission[Any]] = collections.deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.commits = 0
        self.committing = threading.Lock()  # held while a transaction is open

    def submit(self, operation: Callable[[apsw.Connection], T]) -> Future[T]:
        """Queue an operation. Blocks only while MAX_WAITING others wait."""
        submission = _Submission(operation)
        with self._changed:
            while len(self._waiting) >= MAX_WAITING and not self._closed:
                self._changed.wait()
            if self._closed:
                raise StoreError(f"{self._path}: this store is closed; open a new one")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="agentor-store-writer", daemon=True
                )
                self._thread.start()
            self._waiting.append(submission)
            self._changed.notify_all()
        return submission.future

    def close(self) -> None:
        """Commit what is waiting, end the thread, fold the WAL into the file."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(apsw.Error):  # busy: whoever closes last does it
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._connection.close()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                with self.committing:
                    self._commit(batch)
            except BaseException as error:  # whatever it is, nobody may wait for ever
                self._roll_back()
                _fail_all(batch, error if isinstance(error, AgentorError) else self._told(error))
            else:
                for submission in batch:
                    _settle(submission)

    def _next_batch(self) -> list[_Submission[Any]]:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            batch = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        return [each for each in batch if each.future.set_running_or_notify_cancel()] or (
            self._next_batch() if batch else []
        )

    def _commit(self, batch: list[_Submission[Any]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for submission in batch:
            self._perform(submission)
        self._connection.execute("COMMIT")
        self.commits += 1
        self._check_file()

    def _perform(self, submission: _Submission[Any]) -> None:
        self._connection.execute("SAVEPOINT one")
        try:
            submission.value = submission.operation(self._connection)
        except Exception as error:
            if not self._connection.in_transaction:  # SQLite gave up the whole transaction
                raise
            submission.refusal = self._told(error) if isinstance(error, apsw.Error) else error
            self._connection.execute("ROLLBACK TO one")
        self._connection.execute("RELEASE one")

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # the commit has failed already, and says so to everyone in it

    def _told(self, error: BaseException) -> StoreError:
        told = explained(error, self._path)
        told.__cause__ = error
        return told


def _settle(submission: _Submission[Any]) -> None:
    if submission.refusal is not None:
        submission.future.set_exception(submission.refusal)
    else:
        submission.future.set_result(submission.value)


def _fail_all(batch: list[_Submission[Any]], error: BaseException) -> None:
    for submission in batch:
        submission.future.set_exception(error)
