"""Two workers and a clock: every interleaving, to a depth, on the real stores."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from agentor import MemoryStore, SQLiteStore
from agentor.engine import lease
from agentor.engine.store import sqlite_leases
from fuzz.lease_model import explore


@pytest.mark.slow
def test_no_interleaving_lets_both_act_on_a_memory_store() -> None:
    found = explore(MemoryStore(), depth=8, sees_dead_owners=False)
    assert found.failed == []
    assert found.states > 200


@pytest.mark.slow
def test_no_interleaving_lets_both_act_on_an_sqlite_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db", synchronous="OFF") as store:
        found = explore(store, depth=7, sees_dead_owners=True)
    assert found.failed == []
    assert found.states > 150


@pytest.mark.slow
def test_the_alarm_rings_when_the_fence_is_off(tmp_path: Path) -> None:
    with (
        SQLiteStore(tmp_path / "runs.db", synchronous="OFF") as store,
        mock.patch.object(sqlite_leases, "check", return_value=None),
    ):
        found = explore(store, depth=7, sees_dead_owners=True)
    assert any("wrote in term" in problem for _, problem in found.failed)


def test_the_alarm_rings_when_a_lease_is_trusted_to_its_last_second_and_longer() -> None:
    with mock.patch.object(lease, "MARGIN", -0.3):
        found = explore(MemoryStore(), depth=6, sees_dead_owners=False)
    assert any("both workers may act" in problem for _, problem in found.failed)
