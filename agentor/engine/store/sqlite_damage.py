"""What can still be said of a file that SQLite calls malformed."""

from __future__ import annotations

import contextlib

import apsw

from agentor.engine.store.sqlite_text import Cursor

_LINES_MAX = 20
_IDS = (
    "SELECT run_id FROM agentor_runs WHERE deleted_at IS NULL ORDER BY number",
    "SELECT run_id FROM agentor_runs INDEXED BY sqlite_autoindex_agentor_runs_1",  # without the table
)


def findings(path: str) -> list[str]:
    """What SQLite says of a file that the store cannot even open: at most 20 lines, and at least one."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    connection.cursor_factory = Cursor
    with contextlib.closing(connection):
        return lines(connection) or ["SQLite can read it, but not what agentor keeps there"]


def lines(connection: apsw.Connection) -> list[str]:
    """What SQLite's own check finds; [] is fine."""
    try:
        told = connection.execute(f"PRAGMA integrity_check({_LINES_MAX})").fetchall()
    except apsw.CorruptError as error:
        return [f"SQLite's check gave up ({error})"]
    return [f"SQLite: {line}" for (line,) in told if line != "ok"]


def run_ids(connection: apsw.Connection) -> list[str]:
    """The runs that can be found: those of the table, and where it is damaged also those of its index."""
    found: dict[str, None] = {}
    for sql in _IDS:
        with contextlib.suppress(apsw.CorruptError, UnicodeDecodeError):
            for (run_id,) in connection.execute(sql):
                found[str(run_id)] = None
            break
    return list(found)
