"""Questions to a run, one row each until they are answered."""

from __future__ import annotations

import apsw

from agentor.engine import clock

_ASK = """
INSERT INTO agentor_signals (run_id, kind, asked_at, asked_by) VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_ASKED = "SELECT kind FROM agentor_signals WHERE run_id = ? ORDER BY kind"
_RUNS_ASKED = "SELECT run_id FROM agentor_signals WHERE kind = ? ORDER BY run_id"
_ASKED_BY = "SELECT asked_by FROM agentor_signals WHERE run_id = ? AND kind = ?"
_ANSWERED = "DELETE FROM agentor_signals WHERE run_id = ? AND kind = ?"


def ask(connection: apsw.Connection, run_id: str, kind: str, by: str | None) -> None:
    connection.execute(_ASK, (run_id, kind, clock.now(), by))


def asked(connection: apsw.Connection, run_id: str) -> list[str]:
    return [str(kind) for (kind,) in connection.execute(_ASKED, (run_id,)).fetchall()]


def runs_asked(connection: apsw.Connection, kind: str) -> list[str]:
    return [str(run_id) for (run_id,) in connection.execute(_RUNS_ASKED, (kind,)).fetchall()]


def asked_by(connection: apsw.Connection, run_id: str, kind: str) -> str | None:
    by: str | None = connection.execute(_ASKED_BY, (run_id, kind)).get
    return by


def answered(connection: apsw.Connection, run_id: str, kind: str) -> None:
    connection.execute(_ANSWERED, (run_id, kind))
