"""What lifts the tables of a file by one version each. schema.sql is always the newest.

Each is run once, inside the transaction of whoever opens the file first, and never changes after its release. The file may
be an application's own, with views, triggers and indexes of its own; and it may be damaged, which is for `agentor verify` to
tell: what could be read before can be read afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import apsw

Upgrade: TypeAlias = Callable[[apsw.Connection], None]

_THEIRS_ON_EVENTS = """
SELECT sql FROM sqlite_schema
WHERE tbl_name = 'agentor_events' AND type IN ('trigger', 'index') AND sql IS NOT NULL
    AND name NOT IN ('agentor_events_no_gap', 'agentor_events_no_update')
"""

# A run that lost its row has its events still, and gets a row again.
_RUNS_WITHOUT_ROW = """
INSERT INTO agentor_runs (run_id, last_seq, status, created_at, updated_at)
SELECT run_id, max(seq), 'unfinished', min(recorded_at), max(recorded_at) FROM agentor_events
WHERE run_id NOT IN (SELECT run_id FROM agentor_runs) GROUP BY run_id ORDER BY min(position)
"""

_EVENTS_BY_NUMBER = """
DROP TRIGGER IF EXISTS agentor_events_no_gap;
DROP TRIGGER IF EXISTS agentor_events_no_update;
ALTER TABLE agentor_events RENAME TO agentor_events_1;

CREATE TABLE agentor_events (
    position    INTEGER PRIMARY KEY AUTOINCREMENT,       -- order over all runs; never given twice
    run         INTEGER NOT NULL,                        -- agentor_runs.number
    seq         INTEGER NOT NULL,
    type        TEXT    NOT NULL,
    recorded_at REAL    NOT NULL,
    body        TEXT    NOT NULL CHECK (json_valid(body)),
    UNIQUE (run, seq)
) STRICT;

INSERT INTO agentor_events (position, run, seq, type, recorded_at, body)
SELECT position, number, seq, type, recorded_at, body
FROM agentor_events_1 AS e CROSS JOIN agentor_runs AS r ON r.run_id = e.run_id ORDER BY position;

DELETE FROM sqlite_sequence WHERE name = 'agentor_events';
UPDATE sqlite_sequence SET name = 'agentor_events' WHERE name = 'agentor_events_1';
DROP TABLE agentor_events_1;

CREATE TRIGGER agentor_events_no_gap BEFORE INSERT ON agentor_events
WHEN NEW.seq IS NOT 1 + coalesce(
    (SELECT max(seq) FROM agentor_events WHERE run = NEW.run),
    (SELECT parent_seq FROM agentor_runs WHERE number = NEW.run))
BEGIN
    SELECT RAISE(ABORT, 'agentor_events: seq is not the next of its run');
END;

CREATE TRIGGER agentor_events_no_update BEFORE UPDATE ON agentor_events
BEGIN
    SELECT RAISE(ABORT, 'agentor_events: an event is never changed');
END;
"""


def _runs_by_number(connection: apsw.Connection) -> None:
    """An event names its run by number: its id stood in each row, and again in the index."""
    theirs: list[Any] = connection.execute(_THEIRS_ON_EVENTS).fetchall()
    connection.execute(_RUNS_WITHOUT_ROW)
    connection.pragma("ignore_check_constraints", True)  # a damaged body stays what it is
    connection.pragma("legacy_alter_table", True)  # what names the table goes on to name it so
    try:
        connection.execute(_EVENTS_BY_NUMBER)
    finally:
        connection.pragma("legacy_alter_table", False)
        connection.pragma("ignore_check_constraints", False)
    for (sql,) in theirs:
        connection.execute(sql)


UPGRADES: tuple[Upgrade, ...] = (_runs_by_number,)  # version n to n + 1 at index n - 1
