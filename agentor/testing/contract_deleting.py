"""A store that deletes: what goes, what forks keep, what is spared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentor.engine import clock
from agentor.engine.events import RUN_END, Event
from agentor.engine.store.forking import fork_run
from agentor.engine.store.protocol import (
    Deletes,
    Leases,
    Signals,
    Store,
)
from agentor.errors import (
    LeaseHeldError,
    LeaseLostError,
    RunNotFoundError,
)
from agentor.testing.contract import Contract, fill, offered, said, start, texts


class DeletingContract(Contract):
    """`delete` and `prune`, where they are there."""

    def test_a_deleted_run_is_gone_and_the_others_are_not(self, store: Store) -> None:
        deletes: Deletes = offered(store, Deletes)
        fill(store, "a", 3)
        fill(store, "b", 2)
        removed = deletes.delete("a")
        assert (removed.run_ids, removed.held, removed.events) == (["a"], [], 3)
        assert removed.bytes > 0
        assert store.load("a") == []
        assert store.list_runs() == ["b"]
        for run_id in ("a", "nobody"):
            with pytest.raises(RunNotFoundError):
                deletes.delete(run_id)
        with pytest.raises(RunNotFoundError):
            fork_run(store, "a", "c")

    def test_the_id_of_a_deleted_run_can_be_used_again(self, store: Store) -> None:
        deletes: Deletes = offered(store, Deletes)
        fill(store, "run", 3)
        fork_run(store, "run", "fork")
        before = store.load("fork")
        for text in ("again", "and again"):
            deletes.delete("run")
            store.append("run", said(text, seq=1))
            assert texts(store.load("run")) == [text]
            assert store.load("fork") == before
        deletes.delete("run")
        fork_run(store, "fork", "run", at=2)
        assert store.load("run")[:-1] == before[:2]

    def test_forks_of_a_deleted_run_keep_all_they_have(self, store: Store) -> None:
        deletes: Deletes = offered(store, Deletes)
        fill(store, "0", 6)
        fork_run(store, "0", "1", at=5)
        store.append("1", said("own", seq=7))
        fork_run(store, "1", "2", at=3)
        fork_run(store, "1", "3")
        logs = {run_id: [e.to_json() for e in store.load(run_id)] for run_id in "0123"}
        for gone, left in (("1", "023"), ("0", "23"), ("3", "2"), ("2", "")):
            deletes.delete(gone)
            assert sorted(store.list_runs()) == list(left)
            for run_id in left:
                assert [event.to_json() for event in store.load(run_id)] == logs[run_id]
                fork_run(store, run_id, "new")
                assert [e.to_json() for e in store.load("new")][:-1] == logs[run_id]
                deletes.delete("new")

    def test_a_run_that_somebody_holds_is_not_deleted(self, store: Store) -> None:
        deletes: Deletes = offered(store, Deletes)
        leases: Leases = offered(store, Leases)
        fill(store, "run", 2)
        lease = leases.acquire("run", "me", 30)
        with pytest.raises(LeaseHeldError):
            deletes.delete("run")
        for dry_run in (True, False):
            removed = deletes.prune(status="unfinished", dry_run=dry_run)
            assert (removed.run_ids, removed.held) == ([], ["run"])
        assert len(store.load("run")) == 2
        leases.release(lease)
        deletes.delete("run")
        with pytest.raises(LeaseLostError):
            leases.renew(lease)
        assert leases.acquire("run", "you", 30).owner == "you"

    def test_what_was_asked_of_a_run_goes_with_it(self, store: Store) -> None:
        deletes: Deletes = offered(store, Deletes)
        signals: Signals = offered(store, Signals)
        fill(store, "run", 1)
        signals.ask("run", "cancel")
        deletes.delete("run")
        assert signals.asked("run") == []

    def test_prune_takes_what_is_old_enough_of_a_status_but_not_the_newest(
        self, store: Store
    ) -> None:
        deletes: Deletes = offered(store, Deletes)
        for number, status in enumerate(
            ["completed", "failed", "completed", "paused", "completed"]
        ):
            store.append(f"{number}", start(seq=1))
            store.append(f"{number}", Event(RUN_END, status=status, seq=2))
        fill(store, "open", 1)
        later = datetime.fromtimestamp(clock.now() + 3600, UTC)

        def would_go(**chosen: Any) -> list[str]:
            return list(deletes.prune(dry_run=True, **chosen).run_ids)

        assert would_go(keep=0) == ["0", "1", "2", "4"]
        assert would_go(keep=3) == ["0"]
        assert would_go(older_than=later, keep=3) == ["0"]
        assert would_go(older_than=later, status="completed") == ["0", "2", "4"]
        assert would_go(older_than=later, status=["failed", "unfinished"]) == ["1", "open"]
        assert would_go(keep=1, only=["4", "1", "3", "9"]) == ["1"]
        assert would_go(only=["0"], status="failed") == would_go(only=[]) == []
        assert would_go(older_than=3600) == would_go(older_than=timedelta(days=1)) == []
        assert store.list_runs() == ["0", "1", "2", "3", "4", "open"]
        told = deletes.prune(dry_run=True, status="completed", keep=1)
        assert deletes.prune(status="completed", keep=1) == told
        assert (told.run_ids, told.events) == (["0", "2"], 4)
        assert store.list_runs() == ["1", "3", "4", "open"]

    @pytest.mark.parametrize(
        "nonsense",
        [
            {},
            {"keep": -1},
            {"older_than": -1},
            {"older_than": "30d"},
            {"keep": 1.5},
            {"only": "run"},
            {"only": ["run", "../run"]},
            {"only": [7]},
        ],
    )
    def test_a_prune_that_makes_no_sense_is_a_value_error(
        self, store: Store, nonsense: dict[str, Any]
    ) -> None:
        deletes: Deletes = offered(store, Deletes)
        fill(store, "run", 1)
        with pytest.raises(ValueError, match=r"prune|keep|older_than|only|run id"):
            deletes.prune(**nonsense)
        assert store.list_runs() == ["run"]
