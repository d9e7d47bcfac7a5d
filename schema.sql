-- agentor: durable agent runs in one SQLite file.
--
-- A *run* is an append-only list of events, and nothing else. Its conversation, its tokens, its status and its
-- answer are all worked out from that list, so whatever can be lost in a crash can be worked out again.
--
--   agentor_events   the truth. One row per event; `run` is the number of its run in agentor_runs, which takes less
--                    room than the id; `seq` counts in a run from 1 and leaves no gap. Rows are added at the end of
--                    a run and never changed.
--   agentor_runs     one row per run: where it came from (parent, parent_seq: facts), and a summary of its
--                    events (everything else: worked out again from the events at any time). It is written in
--                    the same transaction as the events, so a list of runs is never out of date.
--   agentor_leases   who may append to a run. `term` grows by one at each change of hands and never shrinks,
--                    so that a worker that was asleep for too long can be told from the one that took over.
--   agentor_signals  what people ask of a run that somebody else works on, such as to cancel it; the worker looks
--                    now and then, and deletes the row when it has done what was asked.
--   agentor_outbox   what transactional tools want delivered: written in the commit of their call's result, deleted
--                    when it was delivered.
--   agentor_schema   which versions of this file's tables have been set up.
--
-- Who writes the next event? The writer names the seq it believes comes next, and the unique key lets one
-- writer have it: the other gets an error, not a gap and not a second event of that number. The lease above
-- that keeps workers from wasting their time; the term, checked in the transaction of every append, makes sure
-- of it.
--
-- A *fork* copies nothing. It is a row in agentor_runs that names its parent and the parent's seq where they
-- part; its own events go on from parent_seq + 1. To read a run, read your parent up to parent_seq, then
-- yourself; parents may be forks too. Since events never change, sharing them is safe.
--
--     SELECT seq, body FROM agentor_events JOIN agentor_runs ON number = run WHERE run_id = '...' ORDER BY seq
--
-- A run that is *deleted* leaves every list at once. Its events go in small steps, from the last one backwards, down
-- to those that a fork still needs; its row stays as long as there are any, with deleted_at set, and goes when the
-- last such fork goes.
--
-- All names begin with agentor_, so that these tables can live in your application's own database. Read them
-- with any tool while no agentor process has the file open; while one has, read through agentor, or a copy.
-- Times are seconds since the epoch.

CREATE TABLE agentor_schema (
    version    INTEGER PRIMARY KEY,
    applied_at REAL    NOT NULL
) STRICT;

CREATE TABLE agentor_runs (
    number           INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of creation
    run_id           TEXT    NOT NULL UNIQUE,
    parent           TEXT,                               -- the run this one was forked from
    parent_seq       INTEGER NOT NULL DEFAULT 0,         -- the last seq it shares with it
    last_seq         INTEGER NOT NULL,
    status           TEXT    NOT NULL,                   -- of the last run_end; 'unfinished' without one
    error            TEXT,                               -- of the last run_end
    agent            TEXT,
    model            TEXT,
    forked_from      TEXT,                               -- what its last fork event says, wherever it was written
    forked_at        INTEGER,
    turns            INTEGER NOT NULL DEFAULT 0,         -- over all generations, inherited ones included
    input_tokens     INTEGER NOT NULL DEFAULT 0,
    output_tokens    INTEGER NOT NULL DEFAULT 0,
    total_tokens     INTEGER NOT NULL DEFAULT 0,
    cached_tokens    INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    created_at       REAL    NOT NULL,
    updated_at       REAL    NOT NULL,
    started_at       REAL,                               -- of its first run_start
    ended_at         REAL,                               -- of the last run_end
    deleted_at       REAL,                               -- then it is no run any more: see below
    CHECK ((parent IS NULL) = (parent_seq = 0))
) STRICT;

CREATE INDEX agentor_runs_by_status  ON agentor_runs (status, number);
CREATE INDEX agentor_runs_by_agent   ON agentor_runs (agent, number);
CREATE INDEX agentor_runs_by_created ON agentor_runs (created_at, number);
CREATE INDEX agentor_runs_by_parent  ON agentor_runs (parent, parent_seq) WHERE parent IS NOT NULL;

CREATE TABLE agentor_events (
    position    INTEGER PRIMARY KEY AUTOINCREMENT,       -- order over all runs; never given twice
    run         INTEGER NOT NULL,                        -- agentor_runs.number
    seq         INTEGER NOT NULL,
    type        TEXT    NOT NULL,
    recorded_at REAL    NOT NULL,
    body        TEXT    NOT NULL CHECK (json_valid(body)),
    UNIQUE (run, seq)
) STRICT;

-- The next seq of a run follows its last own event, or the place where it left its parent. A run without a row
-- in agentor_runs has no next seq at all.
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

CREATE TABLE agentor_leases (
    run_id     TEXT    PRIMARY KEY,
    owner      TEXT,                                     -- NULL: free
    term       INTEGER NOT NULL CHECK (term > 0),
    expires_at REAL    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE agentor_signals (
    run_id   TEXT NOT NULL,
    kind     TEXT NOT NULL,
    asked_at REAL NOT NULL,
    asked_by TEXT,
    PRIMARY KEY (run_id, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE agentor_outbox (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,              -- in the order in which they were committed
    run_id   TEXT    NOT NULL,
    key      TEXT    NOT NULL,                               -- the same at each delivery
    kind     TEXT    NOT NULL,
    payload  TEXT    NOT NULL CHECK (json_valid(payload)),
    put_at   REAL    NOT NULL,
    due_at   REAL    NOT NULL,                               -- not to be claimed before
    attempts INTEGER NOT NULL DEFAULT 0,
    claim    TEXT,                                           -- of whoever delivers it now
    error    TEXT                                            -- why the last attempt failed
) STRICT;

CREATE INDEX agentor_outbox_by_due ON agentor_outbox (due_at, number);
