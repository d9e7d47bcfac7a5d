"""Open the file: the right SQLite, the right settings, our tables in their newest version, or a clear refusal."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from agentor.engine import clock
from agentor.engine.store.protocol import check_number
from agentor.engine.store.sqlite_text import Cursor
from agentor.engine.store.sqlite_upgrades import UPGRADES
from agentor.engine.store.whole_file import refuse_companion
from agentor.errors import ConfigError, StoreError

SCHEMA_VERSION = len(UPGRADES) + 1

_OLDEST_SQLITE = (
    3,
    51,
    3,
)  # before, a race between a checkpoint and a writer could corrupt the file
_SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL", "OFF")
_JOURNAL_SIZE_LIMIT = 8 * 1024 * 1024  # bytes of -wal that stay allocated after a checkpoint


@dataclass(frozen=True, slots=True)
class Settings:
    """How every connection of one store is opened."""

    path: str
    busy_timeout_s: float
    synchronous: str
    vfs: str | None

    @classmethod
    def checked(
        cls,
        path: str | os.PathLike[str],
        busy_timeout_s: float,
        synchronous: str,
        vfs: str | None,
    ) -> Settings:
        if os.fspath(path) in ("", ":memory:"):
            raise ConfigError(
                "SQLiteStore needs the path of a file; for runs in memory use MemoryStore()"
            )
        if synchronous not in _SYNCHRONOUS:
            raise ConfigError(
                f"synchronous={synchronous!r}: choose one of {', '.join(_SYNCHRONOUS)}"
            )
        if not 0 <= check_number("busy_timeout_s", busy_timeout_s, "a number of seconds") < 1e6:
            raise ConfigError(f"busy_timeout_s={busy_timeout_s!r}: give a number of seconds")
        # Absolute, so that a later chdir changes nothing and no path can look like a URI.
        return cls(full_path(path), busy_timeout_s, synchronous, vfs)


def full_path(path: str | os.PathLike[str]) -> str:
    """The absolute path. `ConfigError` if SQLite cannot have a file of that name."""
    path = os.path.abspath(os.fsdecode(path))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{path!r}: SQLite takes names in UTF-8 only; choose another path"
        ) from None
    if "\0" in path:
        raise ConfigError(f"{path!r}: a path cannot hold a NUL character; choose another path")
    return path


def open_connection(settings: Settings, *, read_only: bool = False) -> apsw.Connection:
    """A connection with our settings. `StoreError` says what is wrong with the file."""
    with store_errors(settings.path):
        connection = apsw.Connection(
            settings.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=settings.vfs
        )
        connection.cursor_factory = Cursor
        try:
            connection.set_busy_timeout(int(settings.busy_timeout_s * 1000))
            if read_only:
                connection.pragma("query_only", True)
            else:
                _prepare(connection, settings)
        except BaseException:
            connection.close()
            raise
        return connection


def set_up_schema(connection: apsw.Connection, path: str) -> int:
    """Create or upgrade our tables; the version the file has now, which may be newer than ours."""
    with store_errors(path):
        version = version_of(connection)
        if version < SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = _upgrade(connection, version_of(connection))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return version


def quick_check(connection: apsw.Connection, path: str) -> None:
    """`StoreError` if SQLite finds damage. Reads the whole file, but compares no index with its table."""
    with store_errors(path):
        found: list[Any] = connection.execute("PRAGMA quick_check(3)").fetchall()
    if found != [("ok",)]:
        problems = "; ".join(line for (text,) in found for line in str(text).splitlines())
        raise StoreError(
            f"{path}: the database is damaged ({problems}). Open it without check=True to read what is whole, "
            "or go back to a backup; `agentor verify` says which runs are whole"
        )


def refuse_newer(version: int, path: str) -> None:
    """`StoreError` if the tables are of a version that we would write wrongly."""
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: its tables are of version {version}, this agentor knows version {SCHEMA_VERSION}. "
            "It can be read, not written; upgrade agentor"
        )


def check_version(connection: apsw.Connection, path: str) -> None:
    """In each transaction that writes: a newer agentor may have lifted the tables since we opened the file."""
    found: Any = connection.execute("SELECT max(version) FROM agentor_schema").get
    refuse_newer(found, path)


def create_private(path: str) -> None:
    """Make the file, readable by its owner only, if it is missing; SQLite gives -wal and -shm the same mode."""
    refuse_companion(Path(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        _create(path)
    except OSError as error:
        raise StoreError(
            f"{path}: the file cannot be reached ({error.strerror}); check the permissions of its directories"
        ) from error
    else:
        if stat.S_ISDIR(mode):
            raise StoreError(
                f"{path} is a directory; name a file in it, or use FileStore for a directory"
            )
        if not stat.S_ISREG(mode):
            raise StoreError(f"{path} is a pipe, a device or a socket; name a file")


def _create(path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not os.path.exists(path):
            raise StoreError(f"{path} is a link that leads nowhere; name a file") from None
    except OSError as error:
        raise StoreError(
            f"{path}: the file cannot be made ({error.strerror}); "
            "check that its directory exists and may be written, and that there is space"
        ) from error


def check_sqlite_version() -> None:
    found = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if found < _OLDEST_SQLITE:
        raise StoreError(
            f"apsw brings SQLite {apsw.sqlite_lib_version()}, which can lose commits in WAL mode; "
            "install apsw >= 3.51.3"
        )


def _prepare(connection: apsw.Connection, settings: Settings) -> None:
    # The switch to WAL is a transaction of the old kind: only EXTRA makes sure that a power cut cannot bring its
    # journal back into a file that has a WAL by then.
    connection.pragma("synchronous", "EXTRA")
    if connection.pragma("page_count") == 0:
        connection.pragma("auto_vacuum", "INCREMENTAL")  # only an empty file can still choose it
    mode = connection.pragma("journal_mode", "WAL")
    if mode != "wal":
        raise StoreError(
            f"{settings.path}: SQLite cannot use its WAL here (journal mode is {mode!r}); "
            "put the file on a local disk"
        )
    connection.pragma("synchronous", settings.synchronous)
    connection.pragma("journal_size_limit", _JOURNAL_SIZE_LIMIT)
    _start_wal_anew(connection, settings)


def _start_wal_anew(connection: apsw.Connection, settings: Settings) -> None:
    """Bring what is in the WAL into the file before anything is written behind it, unless others use it now.

    A commit whose sync failed was refused, but its frames stay in the system's cache, from where no later sync
    writes them. If every process then ends, SQLite's recovery takes these frames for committed, and what is written
    behind them would be lost with them in a power cut. While others use the file there was no recovery.
    """
    connection.set_busy_timeout(0)
    try:
        with contextlib.suppress(apsw.BusyError, apsw.ReadOnlyError):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.set_busy_timeout(int(settings.busy_timeout_s * 1000))


def version_of(connection: apsw.Connection) -> int:
    """0 for a file without our tables. `StoreError` if somebody else has one of our names there."""
    # Read from the file: table_exists() answers from this connection's cache, which does not know yet of the
    # tables that another process has made since it was opened.
    if not connection.execute(
        "SELECT count(*) FROM sqlite_schema WHERE name = 'agentor_schema' AND type = 'table'"
    ).get:
        _refuse_foreign(connection)
        return 0
    try:
        found = connection.execute("SELECT max(version) FROM agentor_schema").get
        return int(found)
    except (apsw.SQLError, ValueError, TypeError) as error:
        raise _foreign(connection, "table", "agentor_schema") from error


def _refuse_foreign(connection: apsw.Connection) -> None:
    ours = re.findall(r"^CREATE (?:TABLE|INDEX|TRIGGER) (\w+)", schema_sql(), re.MULTILINE)
    names = ", ".join("?" * len(ours))
    found: list[Any] = connection.execute(
        f"SELECT type, name FROM sqlite_schema WHERE lower(name) IN ({names}) ORDER BY name", ours
    ).fetchall()
    if found and ("table", "agentor_schema") not in found:  # else all were made just now
        raise _foreign(connection, *found[0])


def _foreign(connection: apsw.Connection, kind: str, name: str) -> StoreError:
    return StoreError(
        f"{connection.filename}: its {kind} {name} was not made by agentor, which needs that name for itself; rename it, or "
        "choose another file"
    )


def _upgrade(connection: apsw.Connection, version: int) -> int:
    if version == 0:
        connection.execute(schema_sql())
        _set_up(connection, SCHEMA_VERSION)
    else:
        for number, step in enumerate(UPGRADES[version - 1 :], version + 1):
            step(connection)
            _set_up(connection, number)
    return max(version, SCHEMA_VERSION)


def _set_up(connection: apsw.Connection, version: int) -> None:
    connection.execute(
        "INSERT INTO agentor_schema (version, applied_at) VALUES (?, ?)", (version, clock.now())
    )


def schema_sql() -> str:
    return importlib.resources.files("agentor").joinpath("schema.sql").read_text("utf-8")


@contextlib.contextmanager
def store_errors(path: str) -> Iterator[None]:
    """Turn what SQLite says into a StoreError that says what to do."""
    try:
        yield
    except apsw.Error as error:
        raise explained(error, path) from error


def explained(error: BaseException, path: str) -> StoreError:
    reason = (
        "" if str(error) == "not an error" else f" ({error})"
    )  # what a backup says of a full disk
    advice = _SPECIAL_ADVICE.get(getattr(error, "extendedresult", 0))
    if advice is not None:
        return StoreError(f"{path}: {advice}{reason}")
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return StoreError(f"{path}: {advice}{reason}")
    return StoreError(f"{path}: SQLite refused: {error}")


_SPECIAL_ADVICE = {
    apsw.SQLITE_IOERR_SHORT_READ: (
        "a part of it is missing; if -wal or -shm was deleted or replaced while a process had the store open, close it "
        "in every process, and open it anew"
    ),
    apsw.SQLITE_IOERR_SHMSIZE: (
        "the disk is full, and SQLite needs a little room beside the file; make space and try again"
    ),
}

_ADVICE: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.FullError, "the disk is full, nothing of this step was saved; make space and try again"),
    (
        apsw.BusyError,
        "another process has kept the file locked beyond busy_timeout_s; try again, or find who holds it",
    ),
    (apsw.ReadOnlyError, "the file cannot be written; check its permissions and its directory's"),
    (apsw.NotADBError, "this is no SQLite database; choose another path"),
    (
        apsw.CantOpenError,
        "the file cannot be opened; check its permissions, and that its directory exists and may be written",
    ),
    (apsw.CorruptError, "the database is damaged; `agentor verify` says which runs are whole"),
    (apsw.IOError, "the disk failed, nothing of this step was saved; check the file and its disk"),
)
