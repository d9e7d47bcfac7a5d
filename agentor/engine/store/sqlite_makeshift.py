"""Reading a file that cannot be opened as it should be: its disk is full, or nothing can be written where it lies.

Readers of a WAL share an index of it, the file -shm, and there must be room for that. A connection that is *alone* keeps
the index in its own memory instead; while it is open nobody else can read or write, so each is for one read. It needs the
right to write, for the lock. Where the index has room, but not what the WAL holds, it is read as ever. A *frozen* file is
one in a place where nothing can be written, and with no WAL beside it: then the file alone is the whole of it, and no lock
is needed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

import apsw

from agentor.engine import clock
from agentor.engine.store.sqlite_file import (
    SCHEMA_VERSION,
    Settings,
    explained,
    open_connection,
    store_errors,
    version_of,
)
from agentor.engine.store.sqlite_guard import refuse_second_name
from agentor.engine.store.sqlite_room import check_room, has_room
from agentor.engine.store.sqlite_text import Cursor
from agentor.errors import ConfigError, StoreError

_FULL = "the disk is full, so that nothing is saved: what is there can be read; make space and try again"
_FAILING = (
    "the disk refuses what is written to it, so that nothing is saved: what is there can be read; "
    "check the disk, and whether it has a quota, and try again"
)
_FROZEN = (
    "nothing can be written where it lies, so that nothing is saved: what is there can be read; "
    "check the permissions of the file and its directory, or take a copy to another place"
)


# What SQLite says of a quota, too. Not of a sync: what it did not bring to the disk is not shown.
_CANNOT_WRITE = frozenset({apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_TRUNCATE})
_ALONE_S = 0.1  # for how long somebody tries to be alone who may well be beside others


@dataclass(frozen=True, slots=True)
class Makeshift:
    """A way to read. `check` is called before each read; `why` it cannot be written, as the end of a sentence."""

    connect: Callable[[], apsw.Connection]
    check: Callable[[], None]
    why: str
    version: int  # of the tables


def makeshift(settings: Settings, error: StoreError) -> Makeshift | None:
    """How the file can be read that could not be opened because of `error`; None if it cannot.

    `StoreError` if it could be, but for its tables, which are of an older version.
    """
    cause = error.__cause__
    told = getattr(cause, "extendedresult", None)
    if isinstance(cause, apsw.FullError) or told == apsw.SQLITE_IOERR_SHMSIZE:
        return _tried(settings, _shared_or_alone, _FULL)
    if told in _CANNOT_WRITE:
        return _tried(settings, _shared_or_alone, _FAILING)
    if not isinstance(cause, apsw.ReadOnlyError | apsw.CantOpenError):
        return None
    if _wal_bytes(settings.path):
        return _tried(settings, _shared_or_alone, _FROZEN)
    return None if _can_write_beside(settings.path) else _tried(settings, _frozen, _FROZEN)


def holds_runs(path: str) -> bool:
    """Whether the file has our tables already, without changing it. `ConfigError` if it is no database."""
    settings = Settings.checked(path, 10.0, "FULL", None)
    refuse_second_name(settings.path)
    try:
        with store_errors(path):
            check_room(settings.path)
            return _version(settings, _shared) > 0
    except StoreError as error:
        if isinstance(error.__cause__, apsw.NotADBError):
            raise ConfigError(str(error)) from error
        if makeshift(settings, error) is None:
            raise
        return True


def _tried(
    settings: Settings, connect: Callable[[Settings], apsw.Connection], why: str
) -> Makeshift | None:
    try:
        version = _version(settings, connect)
    except (apsw.Error, StoreError):
        return None
    if not version:
        return None
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"{settings.path}: its tables are of version {version} and have to be lifted to {SCHEMA_VERSION}, but "
            "nothing can be written here now; make space, or open a copy in another place"
        )
    check = partial(_check, settings.path, is_frozen=connect is _frozen)
    return Makeshift(partial(_explained, settings, connect), check, why, version)


def _check(path: str, is_frozen: bool) -> None:
    if is_frozen and (_wal_bytes(path) or _can_write_beside(path)):
        raise StoreError(
            f"{path}: it was opened where nothing could be written, and somebody writes there now; open a new store"
        )


def _version(settings: Settings, connect: Callable[[Settings], apsw.Connection]) -> int:
    connection = connect(settings)
    try:
        return version_of(connection)
    finally:
        connection.close()


def _explained(
    settings: Settings, connect: Callable[[Settings], apsw.Connection]
) -> apsw.Connection:
    try:
        return connect(settings)
    except apsw.Error as error:
        raise explained(error, settings.path) from error


def _shared(settings: Settings) -> apsw.Connection:
    return _opened(settings, settings.path, apsw.SQLITE_OPEN_READONLY)


def _shared_or_alone(settings: Settings) -> apsw.Connection:
    """Shared as soon as that goes again: who has it open so does not leave anybody alone with it."""
    if not has_room(settings.path):
        return _alone_or_beside_others(settings)
    connection = _beside_others(settings)
    try:
        version_of(connection)
    except (apsw.IOError, apsw.CantOpenError):
        connection.close()
        return _alone(settings)
    return connection


def _alone_or_beside_others(settings: Settings) -> apsw.Connection:
    """Where nobody may make an index: alone, or with the index that others have made.

    Whoever is alone is so for one read, and others for longer: so they are here if nobody can be alone for a while.
    """
    until = clock.monotonic() + settings.busy_timeout_s
    ways = ((_alone, _ALONE_S), (_beside_others, 0.0))
    while True:
        for connect, busy_timeout_s in ways:
            connection = connect(replace(settings, busy_timeout_s=busy_timeout_s))
            try:
                version_of(connection)
            except apsw.Error as error:
                connection.close()
                if not isinstance(error, apsw.BusyError) or clock.monotonic() > until:
                    raise
            else:
                connection.set_busy_timeout(int(settings.busy_timeout_s * 1000))
                return connection


def _beside_others(settings: Settings) -> apsw.Connection:
    return _only_reading(open_connection(settings, read_only=True))


def _alone(settings: Settings) -> apsw.Connection:
    connection = _opened(settings, settings.path, apsw.SQLITE_OPEN_READWRITE)
    connection.pragma("locking_mode", "EXCLUSIVE")
    connection.pragma("query_only", True)
    return _only_reading(connection)


def _only_reading(connection: apsw.Connection) -> apsw.Connection:
    """Also at the end: the WAL stays for whoever can fold it into the file."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _frozen(settings: Settings) -> apsw.Connection:
    uri = f"file:{quote(settings.path)}?immutable=1"
    return _opened(settings, uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _opened(settings: Settings, name: str, flags: int) -> apsw.Connection:
    connection = apsw.Connection(name, flags=flags, vfs=settings.vfs)
    connection.cursor_factory = Cursor
    connection.set_busy_timeout(int(settings.busy_timeout_s * 1000))
    return connection


def _wal_bytes(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"{os.path.realpath(path)}-wal").st_size
    return 0


def _can_write_beside(path: str) -> bool:
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK | os.X_OK)
