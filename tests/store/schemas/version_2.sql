BEGIN TRANSACTION;
CREATE TABLE agentor_events (
    position    INTEGER PRIMARY KEY AUTOINCREMENT,       -- order over all runs; never given twice
    run         INTEGER NOT NULL,                        -- agentor_runs.number
    seq         INTEGER NOT NULL,
    type        TEXT    NOT NULL,
    recorded_at REAL    NOT NULL,
    body        TEXT    NOT NULL CHECK (json_valid(body)),
    UNIQUE (run, seq)
) STRICT;
INSERT INTO "agentor_events" VALUES(1,1,1,'run_start',1.79600485606985139841e+09,'{"type":"run_start","agent":"Ada","model":"m","messages":[{"role":"user","content":"hi"}],"seq":1}');
INSERT INTO "agentor_events" VALUES(2,1,2,'message',1.79600485606985139841e+09,'{"type":"message","text":"two","seq":2}');
INSERT INTO "agentor_events" VALUES(3,1,3,'message',1.79600485606985139841e+09,'{"type":"message","text":"three","seq":3}');
INSERT INTO "agentor_events" VALUES(4,1,4,'generation',1.79600485606985139841e+09,'{"type":"generation","text":"said","usage":{"input_tokens":10,"output_tokens":5,"total_tokens":15,"cached_tokens":4,"reasoning_tokens":1},"seq":4}');
INSERT INTO "agentor_events" VALUES(5,1,5,'run_end',1.79600485606985139841e+09,'{"type":"run_end","status":"completed","ended_at":99.5,"seq":5}');
INSERT INTO "agentor_events" VALUES(6,2,1,'run_start',1.79600485607070803643e+09,'{"type":"run_start","agent":"Ada","model":"m","messages":[{"role":"user","content":"hi"}],"seq":1}');
INSERT INTO "agentor_events" VALUES(7,2,2,'message',1.79600485607070803643e+09,'{"type":"message","text":"two","seq":2}');
INSERT INTO "agentor_events" VALUES(11,3,1,'run_start',1.79600485607132411003e+09,'{"type":"run_start","agent":"Ada","model":"m","messages":[{"role":"user","content":"hi"}],"seq":1}');
INSERT INTO "agentor_events" VALUES(12,4,4,'fork',1.79600485607341098792e+09,'{"type":"fork","forked_from":"done","forked_at":3,"started_at":1796004856.0720794,"ended_at":1796004856.0720794,"seq":4}');
INSERT INTO "agentor_events" VALUES(13,5,3,'fork',1.79600485607772946362e+09,'{"type":"fork","forked_from":"gone","forked_at":2,"started_at":1796004856.0769715,"ended_at":1796004856.0769715,"seq":3}');
CREATE TABLE agentor_leases (
    run_id     TEXT    PRIMARY KEY,
    owner      TEXT,                                     -- NULL: free
    term       INTEGER NOT NULL CHECK (term > 0),
    expires_at REAL    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "agentor_leases" VALUES('open','somebody',1,1.79600485608253598217e+09);
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
INSERT INTO "agentor_outbox" VALUES(1,'open','open:2:0','mail','{"to": "Ada"}',1.79600485608092188833e+09,0.0,0,NULL,NULL);
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
INSERT INTO "agentor_runs" VALUES(1,'done',NULL,0,5,'completed',NULL,'Ada','m',NULL,NULL,1,10,5,15,4,1,1.79600485606985139841e+09,1.79600485606985139841e+09,NULL,99.5,NULL);
INSERT INTO "agentor_runs" VALUES(2,'gone',NULL,0,2,'completed',NULL,'Ada','m',NULL,NULL,1,10,5,15,4,1,1.79600485607070803643e+09,1.79600485607070803643e+09,NULL,99.5,1.79600485607821464539e+09);
INSERT INTO "agentor_runs" VALUES(3,'open',NULL,0,1,'unfinished',NULL,'Ada','m',NULL,NULL,0,0,0,0,0,0,1.79600485607132411003e+09,1.79600485607132411003e+09,NULL,NULL,NULL);
INSERT INTO "agentor_runs" VALUES(4,'fork','done',3,4,'unfinished',NULL,'Ada','m','done',3,0,0,0,0,0,0,1.79600485607332706447e+09,1.79600485607341098792e+09,NULL,NULL,NULL);
INSERT INTO "agentor_runs" VALUES(5,'orphan','gone',2,3,'unfinished',NULL,'Ada','m','gone',2,0,0,0,0,0,0,1.79600485607767510407e+09,1.79600485607772946362e+09,NULL,NULL,NULL);
CREATE TABLE agentor_schema (
    version    INTEGER PRIMARY KEY,
    applied_at REAL    NOT NULL
) STRICT;
INSERT INTO "agentor_schema" VALUES(2,1.79600485606829714775e+09);
CREATE TABLE agentor_signals (
    run_id   TEXT NOT NULL,
    kind     TEXT NOT NULL,
    asked_at REAL NOT NULL,
    asked_by TEXT,
    PRIMARY KEY (run_id, kind)
) STRICT, WITHOUT ROWID;
INSERT INTO "agentor_signals" VALUES('open','cancel',1.79600485608181262018e+09,'Ada');
CREATE INDEX agentor_runs_by_status  ON agentor_runs (status, number);
CREATE INDEX agentor_runs_by_agent   ON agentor_runs (agent, number);
CREATE INDEX agentor_runs_by_created ON agentor_runs (created_at, number);
CREATE INDEX agentor_runs_by_parent  ON agentor_runs (parent, parent_seq) WHERE parent IS NOT NULL;
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
CREATE INDEX agentor_outbox_by_due ON agentor_outbox (due_at, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('agentor_runs',5);
INSERT INTO "sqlite_sequence" VALUES('agentor_events',13);
INSERT INTO "sqlite_sequence" VALUES('agentor_outbox',1);
COMMIT;
