"""Which runs there are, without reading their events: pages of agentor_runs, and the check that it is right."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import apsw

from agentor.engine.events import Usage
from agentor.engine.store import sqlite_damage as damage
from agentor.engine.store import sqlite_log as log
from agentor.engine.store.protocol import check_number, check_run_id, check_signal, shown
from agentor.engine.store.sqlite_deleting import name_before
from agentor.engine.store.sqlite_file import SCHEMA_VERSION, schema_sql
from agentor.engine.store.summary import (
    COUNTS,
    STATUSES,
    UNFINISHED,
    no_such_status,
    own_times,
    summary,
)
from agentor.engine.strict_json import clean_text
from agentor.errors import ConfigError, LogCorruptError, RunNotFoundError

_PLAIN = (
    *("run_id", "status", "agent", "model", "created_at", "updated_at", "ended_at"),
    *("last_seq", "parent", "parent_seq", "started_at", "error", "forked_from", "forked_at"),
    "turns",
)
_TOKENS = COUNTS[1:]
_COLUMNS = ", ".join(_PLAIN + _TOKENS)
# What the columns do not say: when somebody began with a run that had been enqueued, and when a fork was branched off,
# wherever that was. The events it shares with a parent in this file happened before.
_BEGUN = """
CASE WHEN parent IS NOT NULL OR started_at IS NULL OR EXISTS (
    SELECT 1 FROM agentor_events WHERE run = number AND seq = 1 AND type = 'run_start'
    AND instr(body, '"started_at":') AND NOT instr(body, '"queued":true')  -- spares nearly all the JSON
) THEN started_at ELSE (
    SELECT body ->> 'started_at' FROM agentor_events
    WHERE run = number AND type = 'run_start' AND body ->> 'queued' IS NOT 1 AND body ->> 'started_at' IS NOT NULL
    ORDER BY seq LIMIT 1) END
"""
_BRANCHED = """
CASE WHEN forked_from IS NOT NULL THEN coalesce(
    (SELECT body ->> 'started_at' FROM agentor_events WHERE run = number AND seq = parent_seq + 1 AND type = 'fork'),
    (SELECT body ->> 'started_at' FROM agentor_events WHERE run = number AND type = 'fork' ORDER BY seq DESC LIMIT 1)
) END
"""
# The first run of the time is found by index, and the pages go on from it by number: nothing to sort.
_SINCE = """
number >= (SELECT min(number) FROM agentor_runs WHERE created_at >= :since) AND +created_at >= :since
"""
_NUMBER = "SELECT number FROM agentor_runs WHERE run_id = ?"
_PLACES_MAX = 1000
_SCHEMA = "SELECT name, sql FROM sqlite_schema WHERE name LIKE 'agentor~_%' ESCAPE '~'"
_STRUCTURE = """
SELECT format('run ''%s'': its row ends at seq %d, its events at %d', run_id, last_seq, found)
FROM (SELECT run_id, last_seq, deleted_at, (SELECT max(seq) FROM agentor_events WHERE run = r.number) AS found
      FROM agentor_runs AS r)
WHERE found > last_seq AND deleted_at IS NULL
UNION ALL
SELECT format('run ''%s'': its parent ''%s'' is missing', run_id, parent)
FROM agentor_runs WHERE parent NOT IN (SELECT run_id FROM agentor_runs)
UNION ALL
SELECT format('run ''%s'': its parent ''%s'' is not older than itself', r.run_id, p.run_id)
FROM agentor_runs AS r JOIN agentor_runs AS p ON p.run_id = r.parent WHERE p.number >= r.number
UNION ALL
SELECT format('run ''%s'': the event at seq %d is kept as %s and says that it is %s', run_id, seq, type, body ->> 'type')
FROM agentor_events JOIN agentor_runs ON number = run WHERE json_valid(body) AND json_type(body) = 'object' AND type IS NOT body ->> 'type'
UNION ALL
SELECT DISTINCT format('run number %d: has events, but no row in agentor_runs', run)
FROM agentor_events WHERE run NOT IN (SELECT number FROM agentor_runs)
UNION ALL
SELECT format('run ''%s'': its row was made or changed at no moment that can be', run_id)
FROM agentor_runs WHERE NOT (created_at BETWEEN 0 AND :latest AND updated_at BETWEEN 0 AND :latest)
"""
_BESIDE = """
-- A number that is given twice lets a new run pass for one that was deleted.
SELECT format('%s: sqlite_sequence is at %d and the table at %d, so that numbers may be given twice', name, there, found)
FROM (SELECT name, coalesce((SELECT max(seq) FROM sqlite_sequence AS s WHERE s.name = t.name), 0) AS there, found FROM (
    SELECT 'agentor_runs' AS name, max(coalesce((SELECT max(number) FROM agentor_runs), 0),
                                       coalesce((SELECT max(run) FROM agentor_events), 0)) AS found
    UNION ALL SELECT 'agentor_events', coalesce(max(position), 0) FROM agentor_events
    UNION ALL SELECT 'agentor_outbox', coalesce(max(number), 0) FROM agentor_outbox) AS t)
WHERE there < found
UNION ALL
SELECT DISTINCT format('agentor_leases: the lease of run ''%s'' ends at no moment that can be', run_id)
FROM agentor_leases WHERE abs(expires_at) > 1e300
"""
_BESIDE_TABLES = ("agentor_leases", "agentor_signals", "agentor_outbox")
_NAMES = """
SELECT 'agentor_leases', 'run_id', run_id FROM agentor_leases
UNION SELECT 'agentor_signals', 'run_id', run_id FROM agentor_signals
UNION SELECT 'agentor_signals', 'kind', kind FROM agentor_signals
"""
_LATEST = 253_402_300_800  # the end of the year 9999, in seconds since the epoch


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run at a glance. Times are seconds since the epoch; `usage` counts what a fork inherited, too."""

    run_id: str
    status: str  # "unfinished", or that of the last run_end
    agent: str | None
    model: str | None
    created_at: float
    updated_at: float
    ended_at: float | None  # None while unfinished; of a copy of a finished run, when it was copied
    last_seq: int
    # The run this one was forked from: it may be deleted, and its id another's by now.
    parent: str | None
    parent_seq: int  # the last seq it shares with its parent; 0 without one
    started_at: float | None  # by the clock of whoever ran it; of a fork, when it was branched off
    error: str | None  # how it failed
    forked_from: (
        str | None
    )  # what its fork event says: also of a parent deleted since, or in another store
    forked_at: int | None
    turns: int  # model calls of the whole log, inherited and given-up ones included
    usage: Usage


class Places:
    """Where the pages given so far began and ended, so that the next one is found also when that run was deleted since."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def remember(self, run_id: str, number: int) -> None:
        with self._lock:
            self._numbers.pop(run_id, None)
            self._numbers[run_id] = number
            if len(self._numbers) > _PLACES_MAX:
                del self._numbers[next(iter(self._numbers))]

    def shown(self, numbers: Mapping[str, int]) -> None:
        """These runs are known to the caller by now: an id that is remembered of an earlier run means the one shown."""
        with self._lock:
            for run_id in self._numbers.keys() & numbers.keys():
                self._numbers[run_id] = numbers[run_id]

    def number(self, connection: apsw.Connection, run_id: str) -> int:
        """Of the run that was shown last under this id, even if another has it by now. `RunNotFoundError`."""
        with self._lock:
            number = self._numbers.get(run_id)
        if number is None:
            number = connection.execute(_NUMBER, (run_id,)).get
        if number is None:
            raise RunNotFoundError(run_id)
        return int(number)


def page(
    connection: apsw.Connection,
    places: Places,
    *,
    limit: int | None,
    after: str | None,
    before: str | None,
    newest: bool,
    status: str | None,
    agent: str | None,
    since: float | None,
) -> list[RunRow]:
    """Runs in order of creation that match everything given: the first `limit` of them, or the last.

    `ConfigError`: an argument is nothing that can be asked for. `RunNotFoundError`: no such run as `after` or `before`.
    """
    _check_count("limit", limit)
    _check_time("since", since)
    bindings: dict[str, Any] = {"limit": -1 if limit is None else limit}
    conditions = ["deleted_at IS NULL"]
    for name, sign, run_id in (("after", ">", after), ("before", "<", before)):
        if run_id is not None:
            bindings[name] = places.number(connection, check_run_id(run_id))
            conditions.append(f"number {sign} :{name}")
    for column, value in (("status", status), ("agent", agent)):
        if value is not None:
            bindings[column] = clean_text(_checked_text(column, value))
            conditions.append(f"{column} = :{column}")
    if since is not None:
        bindings["since"] = float(since)
        conditions.append(_SINCE)
    order = "DESC" if newest else "ASC"
    where = " AND ".join(conditions)
    query = f"""
        SELECT {_COLUMNS}, {_BEGUN}, {_BRANCHED}, number FROM agentor_runs WHERE {where}
        ORDER BY number {order} LIMIT :limit"""
    found: list[Any] = connection.execute(query, bindings).fetchall()
    if status is not None and not found:
        _check_status(connection, bindings["status"])
    rows = [_timed(_row(columns), begun, branched) for *columns, begun, branched, _ in found]
    places.shown({row.run_id: int(columns[-1]) for row, columns in zip(rows, found, strict=True)})
    for end in {0, len(rows) - 1} if rows else ():
        places.remember(rows[end].run_id, int(found[end][-1]))
    return rows[::-1] if newest else rows


def _check_status(connection: apsw.Connection, status: str) -> None:
    query = "SELECT EXISTS (SELECT 1 FROM agentor_runs WHERE status = ?)"
    if status not in STATUSES and not connection.execute(query, (status,)).get:
        raise no_such_status(status)


def _check_count(name: str, value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 <= value < 2**63):
        raise ConfigError(f"{name} is a whole number of at least 0, not {shown(value)}")


def _check_time(name: str, value: Any) -> None:
    what = "a time in seconds since the epoch"
    if value is not None and not math.isfinite(check_number(name, value, what)):
        raise ConfigError(f"{name}={value!r}: give {what}")


def _checked_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is text, not {value!r}")
    return value


def ages(connection: apsw.Connection) -> list[tuple[str, str, float]]:
    """Every run's id, status and moment of its last change, oldest first. Without a moment there is no age."""
    rows: list[Any] = connection.execute(
        "SELECT run_id, status, updated_at FROM agentor_runs "
        "WHERE deleted_at IS NULL AND typeof(updated_at) = 'real' ORDER BY number"
    ).fetchall()
    return rows


def parents(connection: apsw.Connection) -> dict[str, tuple[str | None, int]]:
    rows: list[Any] = connection.execute(
        "SELECT run_id, parent, parent_seq, forked_from FROM agentor_runs "
        "WHERE parent IS NOT NULL AND typeof(parent_seq) = 'integer' AND deleted_at IS NULL ORDER BY number"
    ).fetchall()
    return {
        run_id: (name_before(parent) or forked_from, seq)
        for run_id, parent, seq, forked_from in rows
    }


def counts(connection: apsw.Connection) -> dict[str, int]:
    """How many runs and events the file holds; shared events of forks count once."""
    runs, events = connection.execute(
        "SELECT (SELECT count(*) FROM agentor_runs WHERE deleted_at IS NULL), (SELECT count(*) FROM agentor_events)"
    ).get
    return {"runs": runs, "events": events}


def problems(connection: apsw.Connection) -> list[str]:
    """What is wrong with the file, one sentence each; [] is fine."""
    found: list[str] = []
    try:
        with connection:  # everything as of one moment
            found += damage.lines(connection)
            found += _problems_of_schema(connection)
            structure = connection.execute(_STRUCTURE, {"latest": _LATEST}).fetchall()
            found += [str(line) for (line,) in structure]
            if all(connection.table_exists(None, name) for name in _BESIDE_TABLES):
                found += [str(line) for (line,) in connection.execute(_BESIDE).fetchall()]
                found += _problems_of_names(connection)
            for run_id in ids(connection):
                found += _problems_of_run(connection, run_id)
    except apsw.CorruptError as error:
        found += [] if found else [f"SQLite cannot read all of it ({error})"]
    return found


def _problems_of_names(connection: apsw.Connection) -> Iterator[str]:
    """Leases of and questions to what no run can be: nobody would ever look for them."""
    checks: dict[str, Callable[[str], str]] = {"run_id": check_run_id, "kind": check_signal}
    names: list[Any] = connection.execute(_NAMES).fetchall()
    for table, column, name in names:
        try:
            checks[column](name)
        except ConfigError as error:
            yield f"{table}: {error}"


def _problems_of_schema(connection: apsw.Connection) -> list[str]:
    """What of our tables, indexes and triggers is not as a new file has it."""
    if connection.execute("SELECT max(version) FROM agentor_schema").get != SCHEMA_VERSION:
        return []  # of a newer agentor, which knows what it needs
    new = apsw.Connection(":memory:")
    new.execute(schema_sql())
    found: list[Any] = connection.execute(_SCHEMA).fetchall()
    right, there = dict(new.execute(_SCHEMA)), dict(found)
    new.close()
    missing = [f"{name} is missing" for name in right if name not in there]
    return missing + [
        f"{name} is not as agentor makes it"
        for name, sql in right.items()
        if there.get(name, sql) != sql
    ]


def rebuild(connection: apsw.Connection) -> list[str]:
    """Work out every summary again from the events; what is wrong with the runs whose summaries stay as they are."""
    damaged = []
    for run_id in ids(connection):
        try:
            with connection:  # all of the run's row is worked out, or none
                log.summarise_anew(connection, run_id)
        except LogCorruptError as error:
            damaged.append(str(error))
        except RunNotFoundError:
            damaged.append(f"run {run_id!r}: its id is damaged")
    return damaged


def ids(connection: apsw.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT run_id FROM agentor_runs WHERE deleted_at IS NULL ORDER BY number"
    ).fetchall()
    return [str(run_id) for (run_id,) in rows]


def _problems_of_run(connection: apsw.Connection, run_id: str) -> list[str]:
    try:
        events = log.load(connection, check_run_id(run_id))
    except (LogCorruptError, ConfigError) as error:
        return [str(error)]
    told = connection.execute(
        f"SELECT {_COLUMNS} FROM agentor_runs WHERE run_id = ?", (run_id,)
    ).get
    if told is None:
        return [f"run {run_id!r}: its row is not found by its id"]
    row, right = _row(told), summary(events)
    is_told = {name: getattr(row, name) for name in log.SUMMARY if name not in _TOKENS}
    is_told |= {name: getattr(row.usage, name) for name in _TOKENS}
    is_right = dict.fromkeys(is_told) | dict.fromkeys(COUNTS, 0) | {"status": UNFINISHED}
    wrong = [name for name, value in (is_right | right).items() if is_told[name] != value]
    return [f"run {run_id!r}: its summary is out of date ({', '.join(wrong)})"] if wrong else []


def _row(found: Any) -> RunRow:
    plain = dict(zip(_PLAIN, found, strict=False))
    if plain["parent"] is not None:
        plain["parent"] = name_before(plain["parent"]) or plain["forked_from"]
    return RunRow(**plain, usage=Usage(*found[len(_PLAIN) :]))


def _timed(row: RunRow, begun: Any, branched: Any) -> RunRow:
    if branched is None and begun == row.started_at:
        return row
    started_at, ended_at = own_times(_time(begun), row.ended_at, _time(branched))
    return replace(row, started_at=started_at, ended_at=ended_at)


def _time(value: Any) -> float | None:
    """What an event says of a time, unless that is no number."""
    return float(value) if isinstance(value, int | float) else None
