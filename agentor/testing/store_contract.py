"""What every store must do, as a test suite to inherit from: for the bundled stores, and for your own.

    from agentor.testing import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, place):          # place: an empty directory of this test's own
            return MyStore(place / "events")

pytest finds the tests through the subclass. What a store need not offer (several events in one commit, forks,
leases) is tested when it is there, and skipped when not. Four attributes say what yours does not promise, each
of which skips the tests of just that:

    is_persistent = False       # a second store made from the same place does not see the runs of the first
    refuses_conflicts = False   # append does not check the seq of an event, nor give one to an event that has none:
                                # two workers can mix their events
    checks_values = False       # the store relies on agentor to keep out lone surrogates and what is nested too deeply
                                # to be read again, which it does in all that it records itself
    checks_run_ids = False      # the store relies on agentor to check ids, which it does at every entry

`agentor.engine.store.bodies_after(run_id, last_seq, events)` gives a store the texts to write, and with them the second
and the third promise. A body is one line to `str.split("\n")`, and perhaps several to `str.splitlines()`: U+2028 is not escaped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentor.engine.events import FORK, GENERATION, MESSAGE, RUN_END, RUN_START, Event, Usage
from agentor.engine.store.forking import fork_run
from agentor.engine.store.protocol import (
    Store,
)
from agentor.errors import (
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
)
from agentor.testing.contract import close, fill, race, said, start, texts
from agentor.testing.contract_deleting import DeletingContract
from agentor.testing.contract_offers import OffersContract
from agentor.testing.contract_tailing import TailingContract

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


class StoreContract(OffersContract, DeletingContract, TailingContract):
    """Inherit, say how a store is made, and let pytest run the rest."""

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

    def test_what_some_take_for_the_end_of_a_line_is_text(self, store: Store) -> None:
        text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\r\nj\rk"
        store.append("run", start(seq=1))
        store.append("run", said(text, seq=2))
        assert texts(store.load("run")) == [None, text]

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
        store.append("run", start(seq=1))
        with pytest.raises((ValueError, TypeError)):
            store.append("run", Event("tool_call", args={"value": value}, seq=2))
        assert store.load("run") == [start(seq=1)]
        store.append("run", said("after", seq=2))

    @pytest.mark.parametrize("levels", [900, 5000])
    def test_what_could_never_be_loaded_again_is_refused(self, store: Store, levels: int) -> None:
        self._needs_values()
        deep: dict[str, Any] = {}
        for _ in range(levels):
            deep = {"in": deep}
        store.append("run", start(seq=1))
        with pytest.raises((ValueError, TypeError)):
            store.append("run", Event("x", args=deep, seq=2))
        assert len(store.load("run")) == 1

    def test_odd_texts_and_numbers_of_the_fields_that_lists_show_are_no_obstacle(
        self, store: Store
    ) -> None:
        self._needs_values()
        store.append("run", Event("run_start", agent="\ud800", started_at=1e300, seq=1))
        store.append("run", Event("fork", forked_from="\udfff", forked_at=2**70, seq=2))
        store.append("run", Event("\ud800", text="of no known type", seq=3))
        store.append(
            "run",
            Event("run_end", status="failed", error="\ud83d", ended_at=float(2**90), seq=4),
        )
        assert [event.type for event in store.load("run")] == [
            *("run_start", "fork", "\ufffd", "run_end"),
        ]
        assert store.list_runs() == ["run"]

    def test_a_lone_surrogate_is_stored_as_the_replacement_character(self, store: Store) -> None:
        self._needs_values()
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
