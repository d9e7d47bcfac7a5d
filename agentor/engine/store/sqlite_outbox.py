"""Letters in SQLite: one row each from the commit of the call that wrote it until somebody has delivered it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import apsw

from agentor.engine import clock
from agentor.engine.store.transacting import Letter, WaitingLetter
from agentor.engine.strict_json import clean_text

_PUT = """
INSERT INTO agentor_outbox (run_id, key, kind, payload, put_at, due_at) VALUES (?, ?, ?, ?, ?, 0)
"""
_CLAIM = """
UPDATE agentor_outbox SET claim = :claim, due_at = :until, attempts = attempts + 1
WHERE number = (
    SELECT number FROM agentor_outbox WHERE due_at <= :now ORDER BY number LIMIT 1)
RETURNING number
"""
_CLAIMED = """
SELECT number, run_id, kind, CAST(payload AS BLOB), key, attempts FROM agentor_outbox WHERE number = ?
"""
_DELIVERED = "DELETE FROM agentor_outbox WHERE number = ? AND claim = ?"
_FAILED = """
UPDATE agentor_outbox SET claim = NULL, due_at = ?, error = ? WHERE number = ? AND claim = ?
"""
_IS_DUE = "SELECT EXISTS (SELECT 1 FROM agentor_outbox WHERE due_at <= ?)"
_LEFT = "SELECT count(*) FROM agentor_outbox"

_WAITING = """
SELECT run_id, key, kind, CAST(payload AS BLOB), put_at, due_at, attempts, claim IS NOT NULL AND due_at > :now, error
FROM agentor_outbox WHERE :run_id IS NULL OR run_id = :run_id ORDER BY number
"""
_RETRY = "UPDATE agentor_outbox SET due_at = 0 WHERE key = ? AND (claim IS NULL OR due_at <= ?)"
_DAMAGED_WAIT_S = 300.0  # somebody may put the file right
_DROP = "DELETE FROM agentor_outbox WHERE key = ?"


def put(connection: apsw.Connection, run_id: str, key: str, kind: str, payload: str) -> None:
    connection.execute(_PUT, (run_id, key, kind, payload, clock.now()))


def is_due(connection: apsw.Connection) -> bool:
    return bool(connection.execute(_IS_DUE, (clock.now(),)).get)


def claim(connection: apsw.Connection, ttl_s: float) -> Letter | None:
    now, mark = clock.now(), clock.new_id()
    while True:
        taken = connection.execute(_CLAIM, {"claim": mark, "until": now + ttl_s, "now": now}).get
        if taken is None:
            return None
        number, run_id, kind, payload, key, attempts = connection.execute(_CLAIMED, (taken,)).get
        letter = Letter(number, run_id, kind, None, key, attempts, mark)
        try:
            return replace(letter, payload=json.loads(payload))
        except (ValueError, TypeError) as error:  # that letter's own trouble
            failed(connection, letter, _DAMAGED_WAIT_S, f"its payload is damaged: {error}")


def delivered(connection: apsw.Connection, letter: Letter) -> None:
    connection.execute(_DELIVERED, (letter.number, letter.claim))


def failed(connection: apsw.Connection, letter: Letter, wait_s: float, error: str) -> None:
    connection.execute(_FAILED, (clock.now() + wait_s, error, letter.number, letter.claim))


def left(connection: apsw.Connection) -> int:
    return int(connection.execute(_LEFT).get)


def waiting(connection: apsw.Connection, run_id: str | None) -> list[WaitingLetter]:
    if not (run_id is None or _is_text(run_id)):
        return []
    rows: list[Any] = connection.execute(
        _WAITING, {"now": clock.now(), "run_id": run_id}
    ).fetchall()
    return [
        WaitingLetter(
            run, key, kind, _shown(payload), put_at, due_at, attempts, bool(claimed), error
        )
        for run, key, kind, payload, put_at, due_at, attempts, claimed, error in rows
    ]


def _shown(payload: bytes | None) -> Any:
    try:
        return json.loads(payload or b"")
    except ValueError:
        return (payload or b"").decode("utf-8", "replace")


def _is_text(name: object) -> bool:
    """What the file can hold; nothing else is the name of a letter or a run."""
    return isinstance(name, str) and clean_text(name) == name


def retry(connection: apsw.Connection, key: str) -> bool:
    if not _is_text(key):
        return False
    connection.execute(_RETRY, (key, clock.now()))
    return connection.changes() > 0


def drop(connection: apsw.Connection, key: str) -> bool:
    if not _is_text(key):
        return False
    connection.execute(_DROP, (key,))
    return connection.changes() > 0
