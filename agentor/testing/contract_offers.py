"""What a store may offer: several events at once, forks in one step, leases, questions to a run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.events import Event
from agentor.engine.store.forking import fork_run, forks_at_once
from agentor.engine.store.protocol import (
    AppendsMany,
    Closes,
    Forks,
    Holder,
    KnowsAskers,
    Lease,
    Leases,
    NamesHolder,
    Peeks,
    Signals,
    Store,
    Submits,
    TellsAsked,
)
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
)
from agentor.testing.contract import Contract, close, fill, offered, race, said, start, texts


class OffersContract(Contract):
    """Each is tested where it is there."""

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

    def test_whoever_forks_may_hold_the_new_id(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        if not forks_at_once(store):
            pytest.skip("its forks take no event")
        fill(store, "parent", 3)
        lease = leases.acquire("child", "me", 30.0)
        asked = [{"role": "user", "content": "And then?"}]
        fork_run(store, "parent", "child", messages=asked, agent="A")
        last = store.load("child")[-1]
        assert (last.forked_at, last.messages, last.agent) == (3, asked, "A")
        assert leases.renew(lease).term == lease.term

    def test_a_fork_is_of_the_run_that_is_meant_or_not_made(self, store: Store) -> None:
        forks: Any = offered(store, Forks)
        if "of" not in inspect.signature(forks.fork).parameters:
            pytest.skip("its forks do not ask which run is meant")
        fill(store, "parent", 3)
        first, *_, last = store.load("parent")
        for of in (first.with_(nonce="another"), last.with_(seq=4)):
            with pytest.raises(RunNotFoundError):
                forks.fork("parent", "child", of=of)
        assert store.list_runs() == ["parent"]
        forks.fork("parent", "child", of=first, at=2)
        forks.fork("child", "grandchild", of=first)  # what it has inherited is its own
        forks.fork("parent", "other", of=last, at=2)  # it need not go along
        assert len(store.load("grandchild")) == len(store.load("other")) == 2

    def test_a_peek_tells_how_long_a_run_is_and_one_of_its_events(self, store: Store) -> None:
        peeks: Peeks = offered(store, Peeks)
        assert peeks.peek("run", 1) == (0, None)
        fill(store, "run", 3)
        fork_run(store, "run", "fork", at=2)
        for run_id in ("run", "fork"):
            log = store.load(run_id)
            for seq, event in enumerate(log, 1):
                assert peeks.peek(run_id, seq) == (len(log), event)
            for seq in (0, len(log) + 1):
                assert peeks.peek(run_id, seq) == (len(log), None)
        store.append("run", said("more", seq=4))
        assert peeks.peek("run", 4)[0] == 4

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

    def test_who_holds_a_run_is_told_and_nobody_when_it_is_free(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        names: NamesHolder = offered(store, NamesHolder)
        assert names.holder("run") is None
        lease = leases.acquire("run", "me", 30)
        never = Holder("me", None)  # where a lease ends with its process, and by no clock
        assert names.holder("run") in (Holder("me", lease.expires_at), never)
        assert names.holder("another") is None
        leases.release(lease)
        assert names.holder("run") is None

    def test_asking_who_holds_a_run_keeps_nobody_out(self, store: Store) -> None:
        leases: Leases = offered(store, Leases)
        names: NamesHolder = offered(store, NamesHolder)
        for turn in range(5):
            assert names.holder("run") is None
            lease = leases.acquire("run", f"worker {turn}", 30)
            assert names.holder("run") is not None
            leases.release(leases.renew(lease))

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

    def test_all_runs_that_are_asked_something_are_told_at_once(self, store: Store) -> None:
        signals: Signals = offered(store, Signals)
        tells: TellsAsked = offered(store, TellsAsked)
        assert tells.runs_asked("cancel") == []
        for run_id in ("b", "a", "c"):
            signals.ask(run_id, "cancel")
        signals.ask("d", "pause")
        signals.answered("c", "cancel")
        assert tells.runs_asked("cancel") == ["a", "b"]
        with pytest.raises(ConfigError):
            tells.runs_asked("No Kind")

    def test_the_first_to_ask_is_remembered_until_it_is_answered(self, store: Store) -> None:
        signals: Signals = offered(store, Signals)
        askers: KnowsAskers = offered(store, KnowsAskers)
        assert askers.asked_by("run", "cancel") is None
        signals.ask("run", "cancel", by="Ada \u2713")
        signals.ask("run", "cancel", by="Bob")
        signals.ask("run", "pause")
        assert askers.asked_by("run", "cancel") == "Ada \u2713"
        assert askers.asked_by("run", "pause") is None
        assert askers.asked_by("other", "cancel") is None
        signals.ask(
            "other", "cancel", by="Ada \ud83d\ude00 \ud800"
        )  # one character, and half of one
        assert askers.asked_by("other", "cancel") == "Ada \U0001f600 \ufffd"
        signals.answered("run", "cancel")
        assert askers.asked_by("run", "cancel") is None

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
