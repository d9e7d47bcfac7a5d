"""Write a snapshot: runs, turns, messages, tool calls and usage as tables of a new SQLite file, to be analysed.

The store is read through its own interface, so its file is touched by nobody else. The snapshot is another file,
made by sqlite-utils with the stdlib's SQLite, and it gets its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import quote

import sqlite_utils

from agentor.engine.store.protocol import Store
from agentor.engine.store.whole_file import (
    refuse_companion,
    refuse_taken,
    sync_directory,
    whole_file,
)
from agentor.errors import ConfigError, LogCorruptError, StoreError
from agentor.export.reading import Problem, Progress, chosen_runs, readable_runs, silent
from agentor.export.rows import Numbers, Parent, Row, row_of_damaged, rows_of
from agentor.export.tables import FOREIGN_KEYS, PRIMARY_KEYS, SEARCHED, TABLES

APPLICATION_ID = (
    0x61677870  # "agxp": in the header of every snapshot, so that it can be told from a store
)
_ROWS_AT_ONCE = 5_000

_FIND_PARENTS = """
UPDATE runs SET parent = forked_from WHERE forked_from IN (SELECT run_id FROM runs)
"""


@runtime_checkable
class NamesParents(Protocol):
    """A store in which forks share events with their parents, and that knows it also where no event of theirs tells."""

    def parents(self) -> Mapping[str, Parent]: ...


@dataclass(slots=True)
class Snapshot:
    """What was written: the number of rows by table, and the runs that could not be read."""

    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    damaged: list[Problem] = field(default_factory=list)


def write_snapshot(
    store: Store,
    path: str | os.PathLike[str],
    run_ids: Sequence[str] = (),
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Snapshot:
    """Write the runs asked for, or all, to a new file at `path`; it is there when it is whole, or not at all.

    One run is in memory at a time. Each is a prefix of what its log will become; a damaged one gets a row in
    `runs` with the status "damaged". `replace`: an earlier snapshot at `path` is replaced, and nothing else is.
    `ConfigError`: something else is at `path`. `RunNotFoundError`: no such run. `StoreError`: reading or writing failed.
    """
    target = Path(os.path.abspath(path))
    _check_target(target, replace)
    chosen = chosen_runs(store, run_ids)
    snapshot = Snapshot()
    with whole_file(target, replace=replace) as scratch, _database(scratch, target) as database:
        _create_tables(database)
        _write_runs(database, store, progress(chosen, "exporting"), snapshot)
        _finish(database)
    sync_directory(target.parent)
    return snapshot


def _check_target(target: Path, replace: bool) -> None:
    refuse_companion(target)  # before it is opened, for closing a -shm drops SQLite's locks
    if replace and os.path.isfile(target) and not _may_be_replaced(target):
        raise ConfigError(
            f"{target} was not made by `agentor export`, so it is not replaced; "
            "choose another name, or move it away first"
        )
    refuse_taken(target, replace=replace)


def _may_be_replaced(path: Path) -> bool:
    # Through SQLite and not by reading bytes: if a store of this process has the file open, our guard refuses this.
    uri = f"file:{quote(os.fspath(path))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            (found,) = connection.execute("PRAGMA application_id").fetchone()
    except (StoreError, sqlite3.DatabaseError):
        return False
    return bool(found == APPLICATION_ID) or not path.stat().st_size


@contextlib.contextmanager
def _database(scratch: Path, target: Path) -> Iterator[sqlite_utils.Database]:
    try:
        with contextlib.closing(sqlite3.connect(scratch)) as connection:
            # A failed snapshot is thrown away, and a finished one is synced as a whole before it gets its name.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            yield sqlite_utils.Database(connection, execute_plugins=False)
            connection.commit()
    except sqlite3.Error as error:
        raise StoreError(
            f"{target}: the snapshot could not be written ({error}); nothing was left there. "
            "Check that there is space"
        ) from error


def _create_tables(database: sqlite_utils.Database) -> None:
    database.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for name, columns in TABLES.items():
        database.table(name).create(columns, pk=PRIMARY_KEYS[name], foreign_keys=FOREIGN_KEYS[name])


def _write_runs(
    database: sqlite_utils.Database, store: Store, run_ids: Iterable[str], snapshot: Snapshot
) -> None:
    waiting: dict[str, list[Row]] = {name: [] for name in TABLES}
    for tables in _tabulated(store, run_ids, snapshot.damaged):
        for name, rows in tables.items():
            waiting[name] += rows
            snapshot.rows[name] += len(rows)
        if sum(map(len, waiting.values())) >= _ROWS_AT_ONCE:
            _flush(database, waiting)
    # Last, since only now it is known which there are.
    waiting["runs"] += [row_of_damaged(each.run_id, each.problem) for each in snapshot.damaged]
    snapshot.rows["runs"] += len(snapshot.damaged)
    _flush(database, waiting)


def _tabulated(
    store: Store, run_ids: Iterable[str], damaged: list[Problem]
) -> Iterator[dict[str, list[Row]]]:
    numbers = Numbers()
    parents = store.parents() if isinstance(store, NamesParents) else {}
    for run_id, log in readable_runs(store, run_ids, damaged):
        try:
            yield rows_of(run_id, log, numbers, parents.get(run_id, (None, 0)))
        except LogCorruptError as damage:
            damaged.append(Problem(run_id, damage.damage))


def _flush(database: sqlite_utils.Database, waiting: dict[str, list[Row]]) -> None:
    for name, rows in waiting.items():
        database.table(name).insert_all({**dict.fromkeys(TABLES[name]), **row} for row in rows)
        rows.clear()


def _finish(database: sqlite_utils.Database) -> None:
    with database.conn:
        database.conn.execute(_FIND_PARENTS)
    for name, keys in FOREIGN_KEYS.items():
        for column, _, _ in keys:
            if column != PRIMARY_KEYS[name]:
                database.table(name).create_index([column])
    for name, columns in SEARCHED.items():
        database.table(name).enable_fts(columns)
