"""One SQLite file as a store has it open: a writer, connections that read, and an end to it all.

A file that cannot be opened as it should be has no writer until that works: see `agentor.engine.store.sqlite_makeshift`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import apsw

from agentor.engine.interrupts import allowed, deferred, held, result_of
from agentor.engine.store import sqlite_guard as guard
from agentor.engine.store.sqlite_file import (
    Settings,
    create_private,
    open_connection,
    quick_check,
    refuse_newer,
    set_up_schema,
    store_errors,
)
from agentor.engine.store.sqlite_makeshift import Makeshift, makeshift
from agentor.engine.store.sqlite_readers import Readers
from agentor.engine.store.sqlite_room import check_room
from agentor.engine.store.sqlite_watch import Watch
from agentor.engine.store.sqlite_writer import Writer
from agentor.errors import StoreClosedError, StoreError

T = TypeVar("T")


class OpenedFile:
    """What `SQLiteStore` stands on: `_write` and `_read` with a function of the connection, until `_close_file`."""

    def __init__(self, settings: Settings, *, check: bool, allow_network_filesystem: bool) -> None:
        self._settings = settings
        self.path = settings.path
        self._pid = os.getpid()
        if not allow_network_filesystem:
            guard.refuse_network_file_system(self.path)
        create_private(self.path)
        guard.refuse_second_name(self.path)
        self._opening = threading.Lock()
        self._makeshift: Makeshift | None = None  # while it can only be read, and has no writer
        with guard.opening(self.path) as self._identity:  # no interrupt, but in what is `allowed`
            try:
                self._open(check)
            except StoreError as error:
                self._open_for_reading(error, check)

    def _open(self, check: bool) -> None:
        with store_errors(self.path):
            check_room(self.path)
        connection = allowed(open_connection, self._settings)
        try:
            if check:
                allowed(quick_check, connection, self.path)
            self._version = allowed(set_up_schema, connection, self.path)
            watch = Watch(connection, self.path, self._identity)
        except BaseException:
            connection.close()
            raise
        self._writer = Writer(connection, self.path, watch)
        self._readers = Readers(
            self.path,
            partial(open_connection, self._settings, read_only=True),
            partial(_check_files, watch, self._writer),
        )
        self._close_at_end(self._writer)

    def _open_for_reading(self, error: StoreError, check: bool) -> None:
        found = allowed(makeshift, self._settings, error)
        if found is None:
            raise error
        if check:
            with contextlib.closing(found.connect()) as connection:
                allowed(quick_check, connection, self.path)
        self._makeshift, self._version = found, found.version
        self._readers = Readers(self.path, found.connect, found.check, idle_max=0)
        self._close_at_end(None)

    def _close_at_end(self, writer: Writer | None) -> None:
        self._finalizer = weakref.finalize(
            self, _close, writer, self._readers, self._identity, self._pid
        )

    def _close_file(self) -> None:
        """Commit what is waiting, end the thread, close the connections."""
        if os.getpid() != self._pid:
            return  # another thread of the parent may have had the lock when it forked
        with held(self._opening):
            # Also when an interrupt has ended the first try.
            if open_still := self._finalizer.peek():
                _, close, arguments, _ = open_still
                close(*arguments)
                self._finalizer.detach()

    def _submit(self, operation: Callable[[apsw.Connection], T]) -> Future[T]:
        self._check_writable()
        return self._writer.submit(operation)

    def _check_writable(self) -> None:
        self._check_process()
        if self._makeshift is not None:
            self._open_again()
        refuse_newer(self._version, self.path)

    def _open_again(self) -> None:
        """As it should have been opened, now that something is to be written; or `StoreError`."""
        with held(self._opening):
            if self._makeshift is None:
                return
            if self._readers.is_closed:
                raise StoreClosedError(self.path)
            finalizer = self._finalizer
            try:
                with guard.opening_again():
                    self._open(check=False)
            except StoreError as error:
                raise StoreError(f"{self.path}: {self._makeshift.why}") from error
            finalizer.detach()
            self._makeshift = None

    def _write(
        self, operation: Callable[[apsw.Connection], T], undo: Callable[[T], object] | None = None
    ) -> T:
        return result_of(partial(self._submit, operation), undo)

    def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        self._check_process()
        with store_errors(self.path), self._readers.connection() as connection:
            return allowed(query, connection)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.path}: this store was opened before os.fork(), in process {self._pid}; "
                "open a new SQLiteStore in the child"
            )


def _check_files(watch: Watch, writer: Writer) -> None:
    try:
        watch.check()
    except StoreError:
        writer.submit(_nothing)  # it finds the same, and rescues what it can
        raise


def _nothing(connection: apsw.Connection) -> None:
    pass


@deferred()
def _close(writer: Writer | None, readers: Readers, identity: guard.Identity, pid: int) -> None:
    """Also run when the store is dropped without `close`, and at the end of the interpreter."""
    if os.getpid() == pid:
        readers.close()
        if writer is not None:
            writer.close()
        guard.closed(identity)
