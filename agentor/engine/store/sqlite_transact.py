"""A transaction that a tool's thread feeds, on the writer's connection and on the writer's thread.

The writer serves one open transaction at a time: it takes requests from a queue, one statement each, until it is told
to commit or to abort, or the time is over. So foreign code never runs on the writer's thread, and what it asks for is
in the very transaction that appends the events.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.interrupts import Answer
from agentor.engine.store import sqlite_leases as leases
from agentor.engine.store import sqlite_log as log
from agentor.engine.store import sqlite_outbox as outbox
from agentor.engine.store.protocol import Lease
from agentor.engine.store.sqlite_confined import Confinement, confined, explained
from agentor.engine.store.transacting import Params, Row
from agentor.errors import StatementError

_COMMITTED: Final = "the call has its result: nothing more is written for it"
_ABORTED: Final = "the call was given up, and what it wrote was rolled back"


@dataclass(slots=True)
class _Request:
    act: Callable[[apsw.Connection], Any]
    is_foreign: bool = True  # SQL that is not ours
    reply: Future[Any] = field(default_factory=Answer)


@dataclass(slots=True)
class _Commit:
    events: Sequence[Event]


class SQLiteTransaction:
    """See `agentor.engine.store.transacting.Transaction`. `serve` is the operation that the writer performs."""

    def __init__(
        self, run_id: str, lease: Lease | None, limit_s: float, reads_runs: bool = False
    ) -> None:
        self.begun: Future[None] = Answer()
        self.begun.set_running_or_notify_cancel()  # whoever gives up waiting for it cannot cancel it
        self._run_id, self._lease, self._limit_s = run_id, lease, limit_s
        self._reads_runs = reads_runs
        self._requests: queue.SimpleQueue[_Request | _Commit | None] = queue.SimpleQueue()
        self._entry = threading.Lock()  # so that nothing is queued that nobody will answer
        self._over: str | None = None  # why it takes no more requests
        self._aborted = False
        self._deadline = float("inf")  # on the monotonic clock, once it has begun
        self._failure: BaseException | None = None  # of ours, as it is to be told
        self._outcome: Future[None] = Answer()
        self._outcome.set_running_or_notify_cancel()
        self._submission: Future[None] | None = None

    # For the tool's thread, and whoever commits -----------------------------------------------------------------------

    def execute(self, sql: str, params: Params) -> list[Row]:
        # Never from the cache of prepared statements: those in it were prepared without the authorizer.
        rows: list[Row] = self._ask(
            _Request(lambda c: apsw.Cursor(c).execute(sql, params, can_cache=False).fetchall())
        )
        return rows

    def execute_many(self, sql: str, params: Sequence[Params]) -> None:
        self._ask(_Request(lambda c: c.executemany(sql, params, can_cache=False).fetchall()))

    def put(self, kind: str, payload: str, key: str) -> None:
        letter = (self._run_id, key, kind, payload)
        self._ask(_Request(lambda c: outbox.put(c, *letter), is_foreign=False))

    def commit(self, events: Sequence[Event]) -> Future[None]:
        with self._entry:
            if self._over is None:
                self._over = _COMMITTED
                self._requests.put(_Commit(events))
        return self._outcome

    def abort(self) -> None:
        with self._entry:
            if self._over is None:
                self._over, self._aborted = _ABORTED, True
                self._requests.put(None)
        if self._aborted and self._submission is not None:
            self._submission.cancel()  # if it has not begun

    def _ask(self, request: _Request) -> Any:
        with self._entry:
            if self._over is not None:
                raise StatementError(self._over, "ended")
            self._requests.put(request)
        return request.reply.result()

    # For the writer ---------------------------------------------------------------------------------------------------

    def submitted(self, submission: Future[None]) -> None:
        """Learn how the writer's operation ends."""
        self._submission = submission
        submission.add_done_callback(self._ended)

    def serve(self, connection: apsw.Connection) -> None:
        leases.check(connection, self._run_id, self._lease)
        try:
            with confined(connection, self._is_over, self._reads_runs) as confinement:
                self._deadline = clock.monotonic() + self._limit_s
                self.begun.set_result(None)
                events = self._serve_until_commit(connection, confinement)
            log.append(connection, self._run_id, events)
        except StatementError as failure:
            self._failure = failure
            raise

    def _serve_until_commit(
        self, connection: apsw.Connection, confinement: Confinement
    ) -> Sequence[Event]:
        while True:
            match self._next():
                case _Commit(events):
                    return events
                case _Request() as request:
                    self._answer(connection, confinement, request)
                case None:
                    raise StatementError(_ABORTED, "ended")

    def _next(self) -> _Request | _Commit | None:
        try:
            return self._requests.get(timeout=max(self._deadline - clock.monotonic(), 0))
        except queue.Empty:
            raise self._too_late() from None

    def _answer(
        self, connection: apsw.Connection, confinement: Confinement, request: _Request
    ) -> None:
        try:
            value = _performed(connection, confinement, request)
        except Exception as error:
            told = self._too_late() if self._is_over() else explained(error, confinement.denied)
            if not connection.in_transaction or self._is_over():
                # SQLite has given up the whole of it: ON CONFLICT ROLLBACK, a full disk, an interrupt.
                told = StatementError(f"the transaction was rolled back: {told}", "ended")
                self._fail_all(told, request)
                raise told from error
            told.__cause__ = error
            request.reply.set_exception(told)
        else:
            request.reply.set_result(value)

    def _is_over(self) -> bool:
        return self._aborted or clock.monotonic() >= self._deadline

    def _too_late(self) -> StatementError:
        if self._aborted:
            return StatementError(_ABORTED, "ended")
        return StatementError(
            f"it was open for {self._limit_s:g} s, and everything else that writes waits for it. "
            "Do what is slow in another tool, or allow more (timeout_s, transaction_limit_s)",
            "ended",
        )

    def _fail_all(self, told: StatementError, *requests: _Request) -> None:
        """Answer everybody who still waits, and take nothing more."""
        with self._entry:
            if self._over in (None, _COMMITTED):
                self._over = str(told)
            waiting = list(requests)
            while not self._requests.empty():
                if isinstance(request := self._requests.get_nowait(), _Request):
                    waiting.append(request)
        for request in waiting:
            request.reply.set_exception(StatementError(str(told), told.kind))

    def _ended(self, submission: Future[None]) -> None:
        error: BaseException | None
        if submission.cancelled():
            error = StatementError(_ABORTED, "ended")
        else:
            error = self._failure or submission.exception()
        if error is None:
            self._outcome.set_result(None)
            return
        self._fail_all(StatementError(str(error), "ended"))
        if not self.begun.done():
            self.begun.set_exception(error)
        self._outcome.set_exception(error)


def _performed(connection: apsw.Connection, confinement: Confinement, request: _Request) -> Any:
    """The request's answer. One that fails is undone as a whole, also when it is several statements."""
    if not request.is_foreign:
        with confinement.lifted():
            return request.act(connection)
    with confinement.lifted():
        connection.execute("SAVEPOINT request")
    try:
        return request.act(connection)
    except BaseException:
        if connection.in_transaction:
            with confinement.lifted():
                connection.execute("ROLLBACK TO request")
        raise
    finally:
        if connection.in_transaction:
            with confinement.lifted():
                connection.execute("RELEASE request")
