"""What a program's own statements may do on the writer's connection: use its own tables, and nothing else.

SQLite asks an *authorizer* about every action of a statement when it prepares it, those inside views and triggers
included. What is not listed here is refused: the engine's tables, other files, the transaction itself, temporary
objects (they would outlive the transaction and could hide a table of the same name), most pragmas. Reading the
engine's tables can be allowed; writing to them cannot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import apsw

from agentor.errors import StatementError

PREFIX: Final = "agentor_"
STEPS: Final = 2000  # of SQLite's machine between two looks at the time: well under a millisecond

_ALLOWED: Final = frozenset(
    {
        *(apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE),
        *(apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE),
        *(apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_CREATE_TRIGGER),
        *(apsw.SQLITE_CREATE_VIEW, apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_ALTER_TABLE),
        *(apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_DROP_TRIGGER),
        *(apsw.SQLITE_DROP_VIEW, apsw.SQLITE_DROP_VTABLE),
        apsw.SQLITE_REINDEX,  # a part of CREATE INDEX
    }
)
_PRAGMAS: Final = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        *("foreign_key_list", "foreign_key_check", "defer_foreign_keys"),
        *("user_version", "application_id"),  # for the program's own migrations: we use neither
        "data_version",  # FTS5 asks for it
    }
)
_MODULES: Final = frozenset({"fts5", "rtree"})

_NUMBERING: Final = "sqlite_sequence"  # where AUTOINCREMENT stands, by table

_LETTERS: Final = f"SELECT coalesce(max(seq), 0) FROM {_NUMBERING} WHERE name = 'agentor_outbox'"

# A tool may put letters meanwhile: by how many they moved the numbering of their table is no change of the tool's.
_OURS: Final = f"""
SELECT group_concat(coalesce(fact, '')) FROM (
    SELECT name || ' ' || tbl_name || ' ' || coalesce(sql, '') AS fact FROM sqlite_schema
    WHERE name LIKE 'agentor\\_%' ESCAPE '\\'
    UNION ALL
    SELECT name || ' ' || seq FROM {_NUMBERING}
    WHERE name LIKE 'agentor\\_%' ESCAPE '\\' AND name <> 'agentor_outbox'
    UNION ALL
    SELECT 'agentor_outbox ' || coalesce(group_concat(
        seq - (SELECT count(*) FROM agentor_outbox WHERE number > :letters)), 0)
    FROM {_NUMBERING} WHERE name = 'agentor_outbox'
    ORDER BY 1)
"""


class Confinement:
    """The authorizer. `denied` says, in words, what it refused last. `reads_runs`: the engine's tables may be read."""

    def __init__(self, reads_runs: bool) -> None:
        self.denied: str | None = None
        self._reads_runs = reads_runs
        self._is_lifted = False

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """For statements of our own in between. Taking the authorizer away would prepare all others anew."""
        self._is_lifted = True
        try:
            yield
        finally:
            self._is_lifted = False

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if self._is_lifted:
            return apsw.SQLITE_OK
        self.denied = self._objection(action, first or "", second or "")
        return apsw.SQLITE_OK if self.denied is None else apsw.SQLITE_DENY

    def _objection(self, action: int, first: str, second: str) -> str | None:
        if action == apsw.SQLITE_PRAGMA:
            is_known = first.lower() in _PRAGMAS
            return None if is_known else f"PRAGMA {first} is not for a tool"
        if action in (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT):
            return "commit and rollback are not the tool's: return, or raise"
        if action not in _ALLOWED:
            verb = apsw.mapping_authorizer_function[action]
            return f"{str(verb).removeprefix('SQLITE_').replace('_', ' ')} is not for a tool"
        if action == apsw.SQLITE_CREATE_VTABLE and second.lower() not in _MODULES:
            return f"virtual tables are of {' or '.join(sorted(_MODULES))}, not {second}"
        if action == apsw.SQLITE_READ and self._reads_runs:
            return None
        # AUTOINCREMENT itself does not ask. Dropping a table asks to delete its row, and renaming it to rename that.
        if first.lower() == _NUMBERING and (
            action == apsw.SQLITE_INSERT or (action == apsw.SQLITE_UPDATE and second != "name")
        ):
            return f"how far a table's numbers have come ({_NUMBERING}) is not for a tool to say"
        # Column and module names may begin with anything; tables and what belongs to one may not.
        names = (first, second) if action in _NAMES_TWO else (first,)
        if any(name.lower().startswith(PREFIX) for name in names):
            return f"names that begin with {PREFIX} are the engine's"
        return None


_NAMES_TWO: Final = frozenset(  # an object and its table, or a schema and the table
    {
        *(apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_CREATE_TRIGGER, apsw.SQLITE_DROP_INDEX),
        *(apsw.SQLITE_DROP_TRIGGER, apsw.SQLITE_ALTER_TABLE),
    }
)


@contextlib.contextmanager
def confined(
    connection: apsw.Connection, is_over: Callable[[], bool], reads_runs: bool = False
) -> Iterator[Confinement]:
    """Let foreign statements run on the connection; a running one is interrupted once `is_over`.

    `reads_runs`: they may read the engine's tables. At the end `StatementError` if what the statements left cannot be committed.
    """
    confinement = Confinement(reads_runs)
    letters = connection.execute(_LETTERS).get
    before = _ours(connection, letters)
    # By config and not by PRAGMA, which does nothing inside a transaction.
    foreign_keys = connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, -1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.set_progress_handler(is_over, STEPS, id=confined)
    connection.authorizer = confinement
    try:
        yield confinement
    finally:
        connection.authorizer = None
        connection.set_progress_handler(None, id=confined)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, foreign_keys)
    if _ours(connection, letters) != before:  # by renaming, or through sqlite_sequence
        raise StatementError(f"names that begin with {PREFIX} are the engine's", "forbidden")
    if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
        raise StatementError("FOREIGN KEY constraint failed (a deferred one)", "constraint")


def _ours(connection: apsw.Connection, letters: int) -> Any:
    """Everything the schema says of the engine's tables, and where their numbering stands, letters after the number
    `letters` left out."""
    return connection.execute(_OURS, {"letters": letters}).get


def explained(error: BaseException, denied: str | None) -> StatementError:
    """What a statement suffered, as an error of ours."""
    if isinstance(error, apsw.AuthError):
        return StatementError(f"{denied or error} ({error})", "forbidden")
    if isinstance(error, apsw.ConstraintError):
        return StatementError(str(error), "constraint")
    if isinstance(error, apsw.SQLError | apsw.BindingsError) or not isinstance(error, apsw.Error):
        return StatementError(f"{error}" or type(error).__name__, "invalid")
    return StatementError(f"{type(error).__name__}: {error}", "failed")
