"""Copy the whole file while others write to it.

SQLite's backup API, and not VACUUM INTO: it copies the pages as they are, so that the copy is the file and not a
rewriting of it (rows of the program's own tables keep their rowids), it can tell how far it is, and it needs no
time to sort rows and build indexes. One read transaction is held over all steps. Without it, the copy would begin
anew at each commit of another process and might never end; with it, the copy is the file as of one moment. Writers
are not held up; the WAL cannot shrink meanwhile, and does at the next checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import apsw

from agentor.engine.store.sqlite_file import explained, full_path
from agentor.engine.store.whole_file import sync_directory, whole_file
from agentor.errors import ConfigError

Progress: TypeAlias = Callable[[int, int], None]

_PAGES_PER_STEP = 500


def backup(
    source: apsw.Connection, path: str | os.PathLike[str], progress: Progress | None = None
) -> None:
    """Write a copy of the source's file to `path`, as of one moment; nothing is left there if it fails.

    `progress` is called with the pages copied and the pages in all. `ConfigError` if `path` exists.
    """
    if not os.fspath(path):
        raise ConfigError("a backup needs the name of a new file")
    path = Path(full_path(path))
    with whole_file(path) as scratch:
        # The same VFS: if it encrypts the file, it encrypts the copy.
        copy = _open(scratch, source.open_vfs, path)
        try:
            _copy(source, copy, path, progress or (lambda done, total: None))
        finally:
            copy.close()
    sync_directory(path.parent)


def _open(scratch: Path, vfs: str, path: Path) -> apsw.Connection:
    try:
        copy = apsw.Connection(str(scratch), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    except apsw.Error as error:
        raise explained(error, str(path)) from error
    # A failed copy is thrown away, and a finished one is synced as a whole before it gets its name.
    copy.pragma("journal_mode", "OFF")
    copy.pragma("synchronous", "OFF")
    return copy


def _copy(source: apsw.Connection, copy: apsw.Connection, path: Path, progress: Progress) -> None:
    source.execute("BEGIN")
    try:
        source.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the moment
        with copy.backup("main", source, "main") as pages:
            while not pages.done:
                pages.step(_PAGES_PER_STEP)
                progress(pages.page_count - pages.remaining, pages.page_count)
    except (apsw.CorruptError, apsw.NotADBError):
        raise  # of the source, whose path the store knows
    except apsw.Error as error:
        raise explained(error, str(path)) from error
    finally:
        if source.in_transaction:  # a damaged file can end it by itself
            source.execute("ROLLBACK")
