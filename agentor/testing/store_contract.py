"""What every store must do, as a test suite to inherit from: for the bundled stores, and for your own.

    from agentor.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, place):          # place: an empty directory of this test's own
            return MyStore(place / "events")

pytest finds the tests through the subclass. What a store need not offer (several events in one commit, forks,
leases) is tested when it is there, and skipped when not. Three attributes say what yours does not promise:

    is_persistent = False       # a second store made from the same place does not see the runs of the first
    refuses_conflicts = False   # append does not check the seq of an event: two workers can mix their events
    checks_run_ids = False      # the store relies on agentor to check ids, which it does at every entry
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentor.engine import clock
from agentor.engine.events import FORK, GENERATION, MESSAGE, RUN_END, RUN_START, Event, Usage
from agentor.engine.store.forking import fork_run
from agentor.engine.store.protocol import (
    AppendsMany,
    Closes,
    Deletes,
    Forks,
    Lease,
    Leases,
    Signals,
    Store,
    Submits,
    Tails,
)
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
)

BAD_RUN_IDS = ("", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a\n", "é", "x" * 129, "a\0")

FULL_EVENT = Event(
    GENERATION,
    text="grüß\u2028dich \U0001f600 \x00 end",
    reasoning='quotes " and \\ and\nlines\r\n',
    args={"deep": [{"er": [1, 2.5, None, True, ""]}]},
    usage=Usage(3, 4, 7, 1, 2),
    calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    messages=[{"role": "user", "content": "hi"}],
    started_at=1.25,
    ended_at=2.5,
    provider_fields={"signature": "AAA="},
    extra={"not_yet_invented": {"kept": [1]}},
)


def start(**fields: Any) -> Event:
    return Event(RUN_START, agent="tester", model="none", **fields)


def said(text: str, **fields: Any) -> Event:
    return Event(MESSAGE, text=text, **fields)


def texts(events: list[Event]) -> list[str | None]:
    return [event.text for event in events]


class StoreContract:
    """Inherit, say how a store is made, and let pytest run the rest."""

    is_persistent = True
    refuses_conflicts = True
    checks_run_ids = True

    def make_store(self, place: Path) -> Store:
        raise NotImplementedError(
            "make_store(place) must give a store that keeps its runs in `place`"
        )

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.make_store(tmp_path)
        yield store
        close(store)

    # The three methods that make a store.

    def test_it_has_the_three_methods(self, store: Store) -> None:
        assert isinstance(store, Store)

    def test_an_unknown_run_has_no_events(self, store: Store) -> None:
        assert store.load("nobody") == []
        assert store.list_runs() == []

    def test_events_come_back_in_order_and_count_from_one(self, store: Store) -> None:
        for event in (start(seq=1), said("a", seq=2), said("b", seq=3), Event(RUN_END, seq=4)):
            store.append("run", event)
        loaded = store.load("run")
        assert [event.type for event in loaded] == [RUN_START, MESSAGE, MESSAGE, RUN_END]
        assert [event.seq for event in loaded] == [1, 2, 3, 4]

    def test_an_event_comes_back_equal_with_what_nobody_knows(self, store: Store) -> None:
        unknown = Event("invented_later", seq=2, extra={"colour": "blue", "list": [1, {"a": None}]})
        store.append("run", FULL_EVENT.with_(seq=1))
        store.append("run", unknown)
        assert store.load("run") == [FULL_EVENT.with_(seq=1), unknown]

    def test_what_is_loaded_belongs_to_the_caller(self, store: Store) -> None:
        arguments: dict[str, Any] = {"city": "London"}
        store.append("run", start(seq=1, args=arguments))
        arguments["city"] = "Paris"
        loaded = store.load("run")[0].args
        assert loaded == {"city": "London"}
        loaded["city"] = "Rome"
        assert store.load("run")[0].args == {"city": "London"}

    def test_a_long_text_comes_back_whole(self, store: Store) -> None:
        text = "é\n" * 300_000
        store.append("run", said(text, seq=1))
        assert texts(store.load("run")) == [text]

    def test_runs_do_not_mix(self, store: Store) -> None:
        for seq in (1, 2, 3):
            for run_id in ("a", "b.b", "-c_"):
                store.append(run_id, said(run_id, seq=seq))
        for run_id in ("a", "b.b", "-c_"):
            assert texts(store.load(run_id)) == [run_id] * 3

    def test_runs_are_listed_newest_last(self, store: Store) -> None:
        run_ids = ["m", "z", "a", "k"]
        for run_id in run_ids:
            store.append(run_id, start(seq=1))
        assert store.list_runs() == run_ids

    def test_a_second_store_sees_what_the_first_has_acknowledged(self, tmp_path: Path) -> None:
        if not self.is_persistent:
            pytest.skip("keeps its runs in memory")
        first, second = self.make_store(tmp_path), self.make_store(tmp_path)
        first.append("run", start(seq=1))
        assert second.load("run") == first.load("run") == [start(seq=1)]
        second.append("run", said("from the second", seq=2))
        first.append("run", said("from the first", seq=3))
        assert texts(second.load("run")) == [None, "from the second", "from the first"]
        close(first)
        close(second)
        third = self.make_store(tmp_path)
        assert texts(third.load("run")) == [None, "from the second", "from the first"]
        close(third)

    # Who may write the next event.

    def test_an_event_without_seq_takes_the_next(self, store: Store) -> None:
        self._needs_conflicts()
        store.append("run", start())
        store.append("run", said("a", seq=2))
        store.append("run", said("b"))
        assert [event.seq for event in store.load("run")] == [1, 2, 3]

    @pytest.mark.parametrize("seq", [0, 1, 2, 4, 99])
    def test_a_seq_that_is_not_the_next_is_refused_and_changes_nothing(
        self, store: Store, seq: int
    ) -> None:
        self._needs_conflicts()
        store.append("run", start(seq=1))
        store.append("run", said("a", seq=2))
        before = store.load("run")
        with pytest.raises(SequenceConflictError) as caught:
            store.append("run", said("late", seq=seq))
        assert (caught.value.run_id, caught.value.seq) == ("run", seq)
        assert store.load("run") == before
        store.append("run", said("b", seq=3))

    def test_a_run_begins_with_seq_one(self, store: Store) -> None:
        self._needs_conflicts()
        with pytest.raises(SequenceConflictError):
            store.append("run", said("a", seq=2))
        assert store.load("run") == []
        assert store.list_runs() == []

    def test_of_many_threads_at_one_seq_one_wins(self, store: Store) -> None:
        self._needs_conflicts()
        store.append("run", start(seq=1))
        outcomes = race(8, lambda n: store.append("run", said(f"{n}", seq=2)))
        assert outcomes.count(None) == 1
        assert all(
            outcome is None or isinstance(outcome, SequenceConflictError) for outcome in outcomes
        )
        assert texts(store.load("run")) == [None, f"{outcomes.index(None)}"]

    def test_many_threads_without_seq_leave_no_gap(self, store: Store) -> None:
        self._needs_conflicts()

        def five_times(number: int) -> None:
            for i in range(5):
                store.append("run", said(f"{number}.{i}"))

        outcomes = race(6, five_times)
        assert outcomes == [None] * 6
        loaded = store.load("run")
        assert [event.seq for event in loaded] == list(range(1, 31))
        assert len(set(texts(loaded))) == 30

    @pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", object()])
    def test_what_is_no_json_is_refused_and_changes_nothing(self, store: Store, value: Any) -> None:
        self._needs_conflicts()
        store.append("run", start(seq=1))
        with pytest.raises((ValueError, TypeError)):
            store.append("run", Event("tool_call", args={"value": value}, seq=2))
        assert store.load("run") == [start(seq=1)]
        store.append("run", said("after", seq=2))

    def test_a_lone_surrogate_is_stored_as_the_replacement_character(self, store: Store) -> None:
        self._needs_conflicts()
        store.append("run", said("a\ud800b", seq=1))
        assert texts(store.load("run")) == ["a\ufffdb"]

    @pytest.mark.parametrize("run_id", BAD_RUN_IDS)
    def test_a_bad_run_id_is_a_value_error(self, store: Store, run_id: str) -> None:
        if not self.checks_run_ids:
            pytest.skip("relies on agentor to check ids")
        with pytest.raises(ValueError, match="run id"):
            store.append(run_id, start())
        with pytest.raises(ValueError, match="run id"):
            store.load(run_id)
        assert store.list_runs() == []

    # fork_run works with any store.

    def test_a_fork_is_the_run_and_one_fork_event(self, store: Store) -> None:
        fill(store, "parent", 4)
        fork_id = fork_run(store, "parent", "child")
        assert fork_id == "child"
        *copied, last = store.load("child")
        assert copied == store.load("parent")
        assert (last.type, last.forked_from, last.forked_at, last.seq) == (FORK, "parent", 4, 5)
        assert last.started_at is not None
        assert store.list_runs() == ["parent", "child"]

    def test_a_fork_at_a_seq_leaves_out_what_came_later(self, store: Store) -> None:
        fill(store, "parent", 5)
        child = store.load(fork_run(store, "parent", at=2))
        assert child[:-1] == store.load("parent")[:2]
        assert (child[-1].type, child[-1].forked_at, child[-1].seq) == (FORK, 2, 3)

    @pytest.mark.parametrize("at", [0, -1, 4])
    def test_a_fork_at_a_seq_the_run_does_not_have_is_refused(self, store: Store, at: int) -> None:
        fill(store, "parent", 3)
        with pytest.raises(ValueError, match="seq"):
            fork_run(store, "parent", "child", at=at)
        assert store.list_runs() == ["parent"]

    def test_a_fork_under_a_taken_id_is_refused_and_nothing_is_copied(self, store: Store) -> None:
        fill(store, "parent", 3)
        fill(store, "other", 1)
        before = store.load("other")
        with pytest.raises(RunExistsError):
            fork_run(store, "parent", "other")
        with pytest.raises(RunExistsError):
            fork_run(store, "parent", "parent")
        assert store.load("other") == before

    def test_a_fork_of_an_unknown_run_is_refused(self, store: Store) -> None:
        with pytest.raises(RunNotFoundError):
            fork_run(store, "nobody", "child")
        assert store.list_runs() == []

    def test_parent_and_fork_go_on_without_touching_each_other(self, store: Store) -> None:
        fill(store, "parent", 2)
        fork_run(store, "parent", "child")
        store.append("parent", said("parent", seq=3))
        store.append("child", said("child", seq=4))
        assert texts(store.load("parent"))[2:] == ["parent"]
        assert texts(store.load("child"))[2:] == [None, "child"]

    def test_forks_of_forks_keep_the_whole_line(self, store: Store) -> None:
        fill(store, "0", 3)
        for depth in range(1, 6):
            fork_run(store, str(depth - 1), str(depth))
            store.append(str(depth), said(f"at {depth}", seq=3 + 2 * depth))
        assert texts(store.load("5"))[4::2] == [f"at {depth}" for depth in range(1, 6)]
        early = store.load(fork_run(store, "5", at=2))
        assert early[:-1] == store.load("0")[:2]

    # What a store may offer.

    def test_fork_copies_and_adds_nothing(self, store: Store) -> None:
        forks: Forks = offered(store, Forks)
        fill(store, "parent", 3)
        before = store.load("parent")
        forks.fork("parent", "child")
        assert store.load("child") == store.load("parent") == before
        with pytest.raises(RunExistsError):
            forks.fork("parent", "child")
        with pytest.raises(RunNotFoundError):
            forks.fork("nobody", "grandchild")

    def test_append_many_saves_all(self, store: Store) -> None:
        many: AppendsMany = offered(store, AppendsMany)
        many.append_many("run", [start(), said("a", seq=2), said("b")])
        many.append_many("run", [])
        many.append_many("run", [said("c", seq=4)])
        assert [event.seq for event in store.load("run")] == [1, 2, 3, 4]

    def test_append_many_refuses_all_or_nothing(self, store: Store) -> None:
        many: AppendsMany = offered(store, AppendsMany)
        with pytest.raises(SequenceConflictError):
            many.append_many("run", [start(seq=1), said("gap", seq=3)])
        with pytest.raises((ValueError, TypeError)):
            many.append_many("run", [start(seq=1), Event("x", args={"no": object()}, seq=2)])
        assert store.load("run") == []
        assert store.list_runs() == []

    def test_submit_tells_in_its_future_what_became_of_it(self, store: Store) -> None:
        submits: Submits = offered(store, Submits)
        futures = [submits.submit("run", [said(f"{seq}", seq=seq)]) for seq in (1, 2, 2, 3)]
        errors = [future.exception(timeout=30) for future in futures]
        assert [type(error) for error in errors] == [
            *(type(None), type(None), SequenceConflictError, type(None))
        ]
        assert texts(store.load("run")) == ["1", "2", "3"]

    def test_one_worker_at_a_time_holds_a_run(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        first = leases.acquire("run", "me", 30)
        assert (first.run_id, first.owner, first.ttl_s) == ("run", "me", 30)
        with pytest.raises(LeaseHeldError) as caught:
            leases.acquire("run", "you", 30)
        assert (caught.value.owner, caught.value.expires_at) == ("me", first.expires_at)
        assert leases.acquire("another", "you", 30).owner == "you"
        leases.release(first)
        assert leases.acquire("run", "you", 30).term > first.term

    def test_only_the_holder_may_append(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        many: AppendsMany = offered(store, AppendsMany)
        lease = leases.acquire("run", "me", 30)
        with pytest.raises(LeaseHeldError):
            store.append("run", start(seq=1))
        many.append_many("run", [start(seq=1)], lease)
        leases.release(lease)
        store.append("run", said("free again", seq=2))
        assert len(store.load("run")) == 2

    def test_an_old_term_cannot_append_after_the_lease_changed_hands(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        many: AppendsMany = offered(store, AppendsMany)
        old = leases.acquire("run", "me", 30)
        many.append_many("run", [start(seq=1)], old)
        leases.release(old)
        with pytest.raises(LeaseLostError):
            many.append_many("run", [said("released", seq=2)], old)
        new = leases.acquire("run", "you", 30)
        with pytest.raises(LeaseLostError) as caught:
            many.append_many("run", [said("too late", seq=2)], old)
        assert caught.value.owner == "you"
        with pytest.raises(LeaseLostError):
            leases.renew(old)
        leases.release(old)  # not ours to give back: nothing happens
        many.append_many("run", [said("mine", seq=2)], new)
        assert texts(store.load("run")) == [None, "mine"]

    def test_a_lease_is_good_for_its_own_run_only(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        many: AppendsMany = offered(store, AppendsMany)
        lease = leases.acquire("run", "me", 30)
        with pytest.raises(LeaseLostError):
            many.append_many("another", [start(seq=1)], lease)

    def test_renewing_keeps_the_term_and_moves_the_expiry(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        lease = leases.acquire("run", "me", 30)
        renewed = leases.renew(lease)
        assert isinstance(renewed, Lease)
        assert (renewed.term, renewed.owner) == (lease.term, lease.owner)
        assert renewed.expires_at >= lease.expires_at

    def test_of_many_threads_one_gets_the_lease(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        outcomes = race(6, lambda n: leases.acquire("run", f"worker {n}", 30))
        assert sum(isinstance(outcome, Lease) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, LeaseHeldError) for outcome in outcomes) == 5

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
        assert would_go(older_than=3600) == would_go(older_than=timedelta(days=1)) == []
        assert store.list_runs() == ["0", "1", "2", "3", "4", "open"]
        told = deletes.prune(dry_run=True, status="completed", keep=1)
        assert deletes.prune(status="completed", keep=1) == told
        assert (told.run_ids, told.events) == (["0", "2"], 4)
        assert store.list_runs() == ["1", "3", "4", "open"]

    @pytest.mark.parametrize(
        "nonsense", [{}, {"keep": -1}, {"older_than": -1}, {"older_than": "30d"}, {"keep": 1.5}]
    )
    def test_a_prune_that_makes_no_sense_is_a_value_error(
        self, store: Store, nonsense: dict[str, Any]
    ) -> None:
        deletes: Deletes = offered(store, Deletes)
        fill(store, "run", 1)
        with pytest.raises(ValueError, match=r"prune|keep|older_than"):
            deletes.prune(**nonsense)
        assert store.list_runs() == ["run"]

    def test_a_tail_gives_what_is_there_and_ends_when_nothing_more_comes(
        self, store: Store
    ) -> None:
        tails: Tails = offered(store, Tails)
        fill(store, "run", 4)
        fork_run(store, "run", "fork", at=2)
        assert list(tails.tail("run", timeout=0)) == store.load("run")
        assert list(tails.tail("run", after=3, timeout=0)) == store.load("run")[3:]
        assert list(tails.tail("fork", after=1, timeout=0)) == store.load("fork")[1:]
        assert list(tails.tail("run", after=4, timeout=0.01)) == []
        assert list(tails.tail("nobody", timeout=0)) == []

    def test_a_tail_gives_what_is_appended_meanwhile_until_it_is_stopped(
        self, store: Store
    ) -> None:
        tails: Tails = offered(store, Tails)
        stop = threading.Event()
        fill(store, "run", 2)
        seen = []
        for event in tails.tail("run", after=1, stop=stop, timeout=30):
            seen.append(event.seq)
            if event.seq == 12:
                stop.set()
            elif event.seq is not None:
                store.append("other", said("not for us"))
                store.append("run", said("next", seq=event.seq + 1))
        assert seen == list(range(2, 13))

    def test_a_waiting_tail_is_woken_by_an_append_and_by_close(self, store: Store) -> None:
        tails: Tails = offered(store, Tails)
        closes: Closes = offered(store, Closes)
        seen: queue.Queue[Any] = queue.Queue()

        def follow() -> None:
            for event in tails.tail("run"):
                seen.put(event.seq)
            seen.put("ended")

        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(follow)
            for seq in (1, 2, 3):
                store.append("run", said(f"{seq}", seq=seq))
                assert seen.get(timeout=30) == seq
            closes.close()
            assert seen.get(timeout=30) == "ended"
            following.result(timeout=30)

    def test_a_tail_of_all_runs_gives_each_event_once_in_the_order_of_saving(
        self, store: Store
    ) -> None:
        tails: Tails = offered(store, Tails)
        try:
            tails.tail(timeout=0)
        except ConfigError:
            pytest.skip("has no order over all runs")
        for run_id in ("a", "b", "a"):
            store.append(run_id, said(run_id))
        fork_run(store, "a", "c")
        found = list(tails.tail(timeout=0))
        assert [(run_id, event.seq) for _, run_id, event in found] == [
            *(("a", 1), ("b", 1), ("a", 2), ("c", 3))
        ]
        positions = [position for position, _, _ in found]
        assert positions == sorted(set(positions))
        assert tails.last_position() == positions[-1]
        assert list(tails.tail(after=positions[1], timeout=0)) == found[2:]
        offered(store, Deletes).delete("a")
        store.append("a", said("anew"))
        left = list(tails.tail(timeout=0))
        assert [(run_id, event.seq) for _, run_id, event in left] == [("b", 1), ("c", 3), ("a", 1)]
        assert left[-1][0] > positions[-1]

    def test_a_tail_can_be_followed_without_holding_up_the_loop(self, store: Store) -> None:
        tails: Tails = offered(store, Tails)

        async def follow() -> list[int | None]:
            seen: list[int | None] = []
            async for event in tails.atail("run", timeout=30):
                seen.append(event.seq)
                if event.seq == 5:
                    break
                await asyncio.to_thread(store.append, "run", said("next"))
            quiet = [event async for event in tails.atail("run", after=5, timeout=0.01)]
            return [*seen, len(quiet)]

        store.append("run", start(seq=1))
        assert asyncio.run(follow()) == [1, 2, 3, 4, 5, 0]

    def test_a_second_store_follows_what_the_first_appends(self, tmp_path: Path) -> None:
        if not self.is_persistent:
            pytest.skip("keeps its runs in memory")
        first = self.make_store(tmp_path)
        offered(first, Tails)
        second: Any = self.make_store(tmp_path)
        first.append("run", start(seq=1))
        seen = []
        for event in second.tail("run", timeout=30):
            seen.append(event.seq)
            if event.seq == 4:
                break
            first.append("run", said("next", seq=event.seq + 1))
        assert seen == [1, 2, 3, 4]
        close(first)
        close(second)

    @pytest.mark.parametrize("nonsense", [{"after": -1}, {"after": "1"}, {"timeout": -1}])
    def test_a_tail_that_makes_no_sense_is_a_value_error(
        self, store: Store, nonsense: dict[str, Any]
    ) -> None:
        tails: Tails = offered(store, Tails)
        for follow in (tails.tail, tails.atail):
            with pytest.raises(ValueError, match=next(iter(nonsense))):
                follow("run", **nonsense)

    def test_a_question_stays_until_it_is_answered(self, store: Store) -> None:
        signals: Signals = offered(store, Signals)
        assert signals.asked("run") == []
        signals.ask("run", "pause", by="Ada")
        signals.ask("run", "cancel")
        signals.ask("run", "cancel", by="Bob")
        signals.ask("other", "cancel")
        assert signals.asked("run") == ["cancel", "pause"]
        signals.answered("run", "cancel")
        signals.answered("run", "cancel")
        signals.answered("nobody", "cancel")
        assert signals.asked("run") == ["pause"]
        assert signals.asked("other") == ["cancel"]

    def test_anybody_may_ask_while_another_holds_the_run(self, store: Store) -> None:
        signals: Signals = offered(store, Signals)
        leases: Leases = offered(store, Leases)
        leases.acquire("run", "me", 30)
        signals.ask("run", "cancel")
        assert signals.asked("run") == ["cancel"]
        assert store.list_runs() == []

    @pytest.mark.parametrize("kind", ["", "Cancel", "../x", "a b", "x" * 33, "é"])
    def test_a_bad_kind_of_question_is_a_value_error(self, store: Store, kind: str) -> None:
        signals: Signals = offered(store, Signals)
        with pytest.raises(ValueError, match="kind"):
            signals.ask("run", kind)
        with pytest.raises(ValueError, match="kind"):
            signals.answered("run", kind)
        assert signals.asked("run") == []

    def test_a_second_store_sees_what_was_asked_through_the_first(self, tmp_path: Path) -> None:
        if not self.is_persistent:
            pytest.skip("keeps its runs in memory")
        first = self.make_store(tmp_path)
        offered(first, Signals).ask("run", "cancel")
        second = self.make_store(tmp_path)
        assert offered(second, Signals).asked("run") == ["cancel"]
        close(first)
        close(second)

    def test_closing_twice_is_fine(self, store: Store) -> None:
        closes: Closes = offered(store, Closes)
        store.append("run", start(seq=1))
        closes.close()
        closes.close()

    def _needs_conflicts(self) -> None:
        if not self.refuses_conflicts:
            pytest.skip("does not check the seq of an event")


def fill(store: Store, run_id: str, length: int) -> None:
    """A run of `length` events: a start, then one text after the other."""
    store.append(run_id, start(seq=1))
    for seq in range(2, length + 1):
        store.append(run_id, said(f"{seq}", seq=seq))


def offered(store: Store, protocol: Any) -> Any:
    """The store, seen as something that offers `protocol`; the test is skipped if it does not."""
    if not isinstance(store, protocol):
        pytest.skip(f"offers no {protocol.__name__}")
    return store


def close(store: Store) -> None:
    if isinstance(store, Closes):
        store.close()


def race(count: int, act: Callable[[int], Any]) -> list[Any]:
    """`act(0)` to `act(count - 1)` at the same moment, each on a thread of its own; results or exceptions."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        try:
            return act(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
