"""Any number of runs, threads and processes on one SQLite file.

Writes go through one writer per store, which commits what is waiting together; reads have connections of their
own and see what is committed. The tables are explained at the head of schema.sql.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self

import apsw

from agentor.engine.events import Event
from agentor.engine.store import sqlite_leases as leases
from agentor.engine.store import sqlite_log as log
from agentor.engine.store.protocol import Lease, check_run_id
from agentor.engine.store.sqlite_file import (
    Settings,
    check_sqlite_version,
    create_private,
    open_connection,
    set_up_schema,
    store_errors,
)
from agentor.engine.store.sqlite_writer import Writer

_IDLE_READERS = 4


class SQLiteStore:
    """Runs in one SQLite file, created when it is missing.

    `lease_ttl_s`: seconds after which a holder that does not renew may be replaced. `busy_timeout_s`: how long a
    write waits for other processes. `synchronous`: leave it at "FULL" unless losing the last commits in a power
    cut is fine. `vfs`: the name of an SQLite VFS. `StoreError` says what is wrong with the file.

        with SQLiteStore("runs.db") as store:
            agent = Agentor(name="Weather", store=store)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_ttl_s: float = 30.0,
        busy_timeout_s: float = 10.0,
        synchronous: str = "FULL",
        vfs: str | None = None,
    ) -> None:
        check_sqlite_version()
        self.path = os.path.abspath(path)
        self.lease_ttl_s = lease_ttl_s
        self._settings = Settings(self.path, busy_timeout_s, synchronous, vfs)
        self._pid = os.getpid()
        create_private(self.path)
        connection = open_connection(self._settings)
        self._version = set_up_schema(connection, self.path)
        self._writer = Writer(connection, self.path, lambda: None)
        self._idle_readers: list[apsw.Connection] = []
        self._lock = threading.Lock()

    def append(self, run_id: str, event: Event) -> None:
        self.submit(run_id, [event]).result()

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        self.submit(run_id, events, lease).result()

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        check_run_id(run_id)

        def operation(connection: apsw.Connection) -> None:
            leases.check(connection, run_id, lease)
            log.append(connection, run_id, events)

        return self._submit(operation)

    def load(self, run_id: str) -> list[Event]:
        check_run_id(run_id)
        with self._reader() as connection:
            return log.load(connection, run_id)

    def list_runs(self) -> list[str]:
        with self._reader() as connection:
            rows = connection.execute("SELECT run_id FROM agentor_runs ORDER BY number").fetchall()
        return [run_id for (run_id,) in rows]

    def fork(
        self, src_run_id: str, dst_run_id: str, *, at: int | None = None, event: Event | None = None
    ) -> None:
        """Share a run's events, up to `at` (itself included) if given; `event` is appended in the same commit."""
        check_run_id(src_run_id)
        check_run_id(dst_run_id)
        # Events never change, so the part to be summed up can be read before the commit.
        prefix = None if at is None else self.load(src_run_id)[:at]
        self._submit(
            lambda connection: log.fork(connection, src_run_id, dst_run_id, at, event, prefix)
        ).result()

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        check_run_id(run_id)
        return self._submit(
            lambda connection: leases.acquire(connection, run_id, owner, ttl_s)
        ).result()

    def renew(self, lease: Lease) -> Lease:
        return self._submit(lambda connection: leases.renew(connection, lease)).result()

    def release(self, lease: Lease) -> None:
        self._submit(lambda connection: leases.release(connection, lease)).result()

    def close(self) -> None:
        """Commit what is waiting and close the file. A closed store refuses everything; closing twice is fine."""
        self._writer.close()
        with self._lock:
            while self._idle_readers:
                self._idle_readers.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, operation: Any) -> Future[Any]:
        return self._writer.submit(operation)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with self._lock:
            connection = self._idle_readers.pop() if self._idle_readers else None
        connection = connection or open_connection(self._settings, read_only=True)
        with store_errors(self.path):
            yield connection
        with self._lock:
            self._idle_readers.append(connection)
