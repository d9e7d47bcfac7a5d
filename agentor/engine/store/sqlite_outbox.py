"""Letters in SQLite: one row each from the commit of the call that wrote it until somebody has delivered it."""

from __future__ import annotations

import json
from typing import Any

import apsw

from agentor.engine import clock
from agentor.engine.store.transacting import Letter, WaitingLetter

_PUT = """
INSERT INTO agentor_outbox (run_id, key, kind, payload, put_at, due_at) VALUES (?, ?, ?, ?, ?, 0)
"""
_CLAIM = """
UPDATE agentor_outbox SET claim = :claim, due_at = :until, attempts = attempts + 1
WHERE number = (
    SELECT number FROM agentor_outbox WHERE due_at <= :now ORDER BY number LIMIT 1)
RETURNING number, run_id, kind, payload, key, attempts
"""
_DELIVERED = "DELETE FROM agentor_outbox WHERE number = ? AND claim = ?"
_FAILED = """
UPDATE agentor_outbox SET claim = NULL, due_at = ?, error = ? WHERE number = ? AND claim = ?
"""
_IS_DUE = "SELECT EXISTS (SELECT 1 FROM agentor_outbox WHERE due_at <= ?)"
_LEFT = "SELECT count(*) FROM agentor_outbox"

_WAITING = """
SELECT run_id, key, kind, payload, put_at, due_at, attempts, claim IS NOT NULL AND due_at > :now, error
FROM agentor_outbox WHERE :run_id IS NULL OR run_id = :run_id ORDER BY number
"""
_RETRY = "UPDATE agentor_outbox SET due_at = 0 WHERE key = ? AND (claim IS NULL OR due_at <= ?)"
_DROP = "DELETE FROM agentor_outbox WHERE key = ?"


def put(connection: apsw.Connection, run_id: str, key: str, kind: str, payload: str) -> None:
    connection.execute(_PUT, (run_id, key, kind, payload, clock.now()))


def is_due(connection: apsw.Connection) -> bool:
    return bool(connection.execute(_IS_DUE, (clock.now(),)).get)


def claim(connection: apsw.Connection, ttl_s: float) -> Letter | None:
    now, mark = clock.now(), clock.new_id()
    row = connection.execute(_CLAIM, {"claim": mark, "until": now + ttl_s, "now": now}).get
    if row is None:
        return None
    number, run_id, kind, payload, key, attempts = row
    return Letter(number, run_id, kind, json.loads(payload), key, attempts, mark)


def delivered(connection: apsw.Connection, letter: Letter) -> None:
    connection.execute(_DELIVERED, (letter.number, letter.claim))


def failed(connection: apsw.Connection, letter: Letter, wait_s: float, error: str) -> None:
    connection.execute(_FAILED, (clock.now() + wait_s, error, letter.number, letter.claim))


def left(connection: apsw.Connection) -> int:
    return int(connection.execute(_LEFT).get)


def waiting(connection: apsw.Connection, run_id: str | None) -> list[WaitingLetter]:
    rows: list[Any] = connection.execute(
        _WAITING, {"now": clock.now(), "run_id": run_id}
    ).fetchall()
    return [
        WaitingLetter(
            run, key, kind, json.loads(payload), put_at, due_at, attempts, bool(claimed), error
        )
        for run, key, kind, payload, put_at, due_at, attempts, claimed, error in rows
    ]


def retry(connection: apsw.Connection, key: str) -> bool:
    connection.execute(_RETRY, (key, clock.now()))
    return connection.changes() > 0


def drop(connection: apsw.Connection, key: str) -> bool:
    connection.execute(_DROP, (key,))
    return connection.changes() > 0
