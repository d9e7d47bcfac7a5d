"""Leases in SQLite when the clocks of two owners do not agree, as docs/leases.md tells it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, owner_id
from agentor.errors import LeaseHeldError, LeaseLostError

ELSEWHERE = "1234@elsewhere/boot/1/1/aa"  # of which nothing can be proved here
LET_GO = "UPDATE agentor_leases SET expires_at = 0 WHERE run_id = 'r'"


def shift(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + seconds)


def test_a_lease_of_a_clock_that_was_ahead_holds_others_off_until_it_is_let_go_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        with monkeypatch.context() as ahead:
            shift(ahead, 86_400)
            lost = store.acquire("r", ELSEWHERE, 30)
        with pytest.raises(LeaseHeldError) as held:
            store.acquire("r", "me", 30)
        assert held.value.expires_at is not None
        assert held.value.expires_at > clock.now() + 86_000
        shell = apsw.Connection(str(path))
        shell.execute(LET_GO)
        shell.close()
        assert store.acquire("r", "me", 30).term == lost.term + 1
        with pytest.raises(LeaseLostError):
            store.append_many("r", [Event("run_start")], lost)


def test_a_clock_that_jumps_back_holds_nobody_off_whose_owner_has_ended_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        pid, at, rest = owner_id().partition("@")
        store.acquire("r", f"{int(pid) + 2**22}{at}{rest}", 30)  # Linux gives no such process id
        shift(monkeypatch, -3600)
        assert store.acquire("r", owner_id(), 30).term == 2


def test_the_holder_goes_on_through_a_jump_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        lease = store.acquire("r", owner_id(), 30)
        shift(monkeypatch, -3600)
        renewed = store.renew(lease)
        store.append_many("r", [Event("run_start")], renewed)
        assert renewed.expires_at < clock.now() + 31  # by the clock as it is now
        assert renewed.term == lease.term
