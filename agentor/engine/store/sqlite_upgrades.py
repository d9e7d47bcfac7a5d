"""Statements that lift the tables of a file by one version each. schema.sql is always the newest.

Each is run once, inside the transaction of whoever opens the file first, and never changes after its release.
"""

from __future__ import annotations

# An event names its run by number: its id stood in each row, and again in the index. An event without a run, which
# only damage can leave, has no number: then nothing is lifted and nothing lost.
_RUNS_BY_NUMBER = """
DROP TRIGGER agentor_events_no_gap;
DROP TRIGGER agentor_events_no_update;
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
SELECT position, (SELECT number FROM agentor_runs AS r WHERE r.run_id = e.run_id), seq, type, recorded_at, body
FROM agentor_events_1 AS e ORDER BY position;

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

UPGRADES: tuple[str, ...] = (_RUNS_BY_NUMBER,)  # version n to n + 1 at index n - 1
