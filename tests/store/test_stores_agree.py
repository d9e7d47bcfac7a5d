"""The three bundled stores side by side, and a model in plain dicts that says what each must answer.

Whatever is asked of them, in whatever order, they give the same events, the same lists and the same refusals.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agentor.engine import clock
from agentor.engine.events import FORK, MESSAGE, RUN_END, RUN_START, Event
from agentor.engine.store import (
    FileStore,
    Lease,
    MemoryStore,
    SQLiteStore,
    fork_run,
    sqlite_deleting,
    sqlite_guard,
)
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
)

RUNS = st.sampled_from(["a", "b", "c", "d.1"])
TEXTS = st.text(max_size=5)
TTL_S = 30.0
KINDS = {
    "message": Event(MESSAGE),
    "start": Event(RUN_START),
    "completed": Event(RUN_END, status="completed"),
    "failed": Event(RUN_END, status="failed"),
}
STATUSES = ("unfinished", "completed", "failed")


class StoppedClock(clock.SystemClock):
    """Time that passes only when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        return self.seconds


@dataclasses.dataclass(eq=False)
class Followed:
    """A tail of one run in each store, and of the model's log what they have seen."""

    run_id: str
    seen: int
    news: list[Callable[[], list[Event]]]
    log: list[Event] | None = None  # the very list: a run that is made anew has another


class Stores(RuleBasedStateMachine):
    @initialize()
    def open_all(self) -> None:
        self.clock = StoppedClock()
        self._installed = clock.installed(self.clock)
        self._installed.__enter__()
        self.directory = Path(tempfile.mkdtemp())
        self.memory = MemoryStore()
        self.open_on_disk()
        self.runs: dict[str, list[Event]] = {}  # the model
        self.held: dict[str, dict[str, Lease]] = {}  # run id -> store's class name -> its lease
        self.lost: list[dict[str, Lease]] = []
        self.questions: dict[str, set[str]] = {}
        self.changed_at: dict[str, float] = {}
        self.order: list[tuple[str, Event]] = []  # as they were saved, of runs that are there
        self.owners = itertools.count()
        self.followed: list[Followed] = []

    def open_on_disk(self) -> None:
        self.file = FileStore(self.directory / "runs")
        self.sqlite = SQLiteStore(self.directory / "runs.db")
        self.followed = []  # with the stores that were open

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.file.close()
            self.sqlite.close()
            self._installed.__exit__(None, None, None)
            shutil.rmtree(self.directory)

    def all_answer(self, expected: type[Exception] | None, ask: Callable[[Any], Any]) -> list[Any]:
        answers = []
        for store in (self.memory, self.file, self.sqlite):
            if expected is None:
                answers.append(ask(store))
            else:
                with pytest.raises(expected) as caught:
                    ask(store)
                assert caught.type is expected
        return answers

    def refusal(self, run_id: str, seqs: list[int | None]) -> type[Exception] | None:
        length = len(self.runs.get(run_id, []))
        rightly = all(seq in (None, length + n) for n, seq in enumerate(seqs, 1))
        return None if rightly else SequenceConflictError

    def saved(self, run_id: str, events: list[Event]) -> None:
        if events:
            log = self.runs.setdefault(run_id, [])
            added = [event.with_(seq=len(log) + n) for n, event in enumerate(events, 1)]
            log.extend(added)
            self.changed_at[run_id] = self.clock.now()
            self.order.extend((run_id, event) for event in added)

    def status(self, run_id: str) -> str:
        found = "unfinished"
        for event in self.runs[run_id]:
            if event.type == RUN_START or (event.type == FORK and event.messages):
                found = "unfinished"
            elif event.type == RUN_END:
                found = str(event.status)
        return found

    def forget(self, run_id: str) -> None:
        del self.runs[run_id], self.changed_at[run_id]
        self.questions.pop(run_id, None)
        self.order = [saved for saved in self.order if saved[0] != run_id]

    @rule(
        run_id=RUNS,
        text=TEXTS,
        kind=st.sampled_from(["message", *KINDS]),
        ahead=st.sampled_from([None, None, 1, 1, 1, 0, 2, -1]),
    )
    def append(self, run_id: str, text: str, kind: str, ahead: int | None) -> None:
        seq = None if ahead is None else len(self.runs.get(run_id, [])) + ahead
        event = KINDS[kind].with_(text=text, seq=seq)
        expected = LeaseHeldError if run_id in self.held else self.refusal(run_id, [seq])
        self.all_answer(expected, lambda store: store.append(run_id, event))
        if expected is None:
            self.saved(run_id, [event])

    @rule(run_id=RUNS, kinds=st.lists(st.sampled_from("nnnw"), max_size=4), leased=st.booleans())
    def append_many(self, run_id: str, kinds: list[str], leased: bool) -> None:
        length = len(self.runs.get(run_id, []))
        seqs = [length + n if kind == "n" else length + n + 1 for n, kind in enumerate(kinds, 1)]
        events = [Event(MESSAGE, text=f"{seq}", seq=seq) for seq in seqs]
        leases = self.held.get(run_id, {}) if leased else {}
        expected = self.refusal(run_id, list(seqs))
        if run_id in self.held and not leased:
            expected = LeaseHeldError
        self.all_answer(
            expected,
            lambda store: store.append_many(run_id, events, leases.get(type(store).__name__)),
        )
        if expected is None:
            self.saved(run_id, events)

    @rule(src=RUNS, dst=RUNS, at=st.none() | st.integers(0, 6), asks=st.booleans())
    def fork(self, src: str, dst: str, at: int | None, asks: bool) -> None:
        if dst in self.held and dst not in self.runs:
            return  # a fork into an id that a new run is about to use: the seq decides between them
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "agent": "B"}
        asked = asked if asks else {}
        expected: type[Exception] | None = None
        if src not in self.runs:
            expected = RunNotFoundError
        elif dst in self.runs:
            expected = RunExistsError
        elif at is not None and not 1 <= at <= len(self.runs[src]):
            expected = ConfigError
        with mock.patch.object(clock, "new_nonce", return_value="n"):
            self.all_answer(expected, lambda store: fork_run(store, src, dst, at=at, **asked))
        if expected is None:
            kept = self.runs[src][:at]
            now = self.clock.now()
            event = Event(FORK, forked_from=src, forked_at=len(kept), nonce="n", **asked)
            event = event.with_(started_at=now, ended_at=now)
            self.saved(dst, [*kept, event])
            del self.order[-len(kept) - 1 : -1]  # what is shared was saved before

    @rule(run_id=RUNS, seq=st.integers(0, 8))
    def peek(self, run_id: str, seq: int) -> None:
        log = self.runs.get(run_id, [])
        for length, event in self.all_answer(None, lambda store: store.peek(run_id, seq)):
            assert length == len(log)
            assert event == (log[seq - 1].with_(seq=seq) if 0 < seq <= length else None)

    @rule(run_id=RUNS)
    def delete(self, run_id: str) -> None:
        expected: type[Exception] | None = None
        if run_id in self.held:
            expected = LeaseHeldError
        elif run_id not in self.runs:
            expected = RunNotFoundError
        answers = self.all_answer(expected, lambda store: store.delete(run_id))
        if expected is None:
            assert [answer.run_ids for answer in answers] == [[run_id]] * 3
            assert answers[0].events == answers[1].events == len(self.runs[run_id])
            self.forget(run_id)

    @rule(
        statuses=st.sets(st.sampled_from(STATUSES), min_size=1),
        only=st.none() | st.sets(RUNS),
        dry_run=st.booleans(),
    )
    def prune(self, statuses: set[str], only: set[str] | None, dry_run: bool) -> None:
        meant = self.runs if only is None else only
        chosen = [run for run in self.runs if self.status(run) in statuses and run in meant]
        gone = [run_id for run_id in chosen if run_id not in self.held]
        answers = self.all_answer(
            None, lambda store: store.prune(status=statuses, only=only, dry_run=dry_run)
        )
        for answer in answers:
            assert sorted(answer.run_ids) == sorted(gone)
            assert sorted(answer.held) == sorted(set(chosen) - set(gone))
        if not dry_run:
            for run_id in gone:
                self.forget(run_id)

    @rule(keep=st.integers(0, 3), seconds=st.sampled_from([0.0, 1.0, 15.0]))
    def would_prune(self, keep: int, seconds: float) -> None:
        """Of files it is the disk's clock that says when, and their order is not always that of creation."""
        chosen = [run_id for run_id in self.runs if self.status(run_id) != "unfinished"]
        old = [
            run_id
            for run_id in chosen[: max(len(chosen) - keep, 0)]
            if self.changed_at[run_id] < self.clock.now() - seconds
        ]
        for store in (self.memory, self.sqlite):
            told = store.prune(keep=keep, older_than=seconds, dry_run=True)  # type: ignore[attr-defined]
            assert told.run_ids == [run_id for run_id in old if run_id not in self.held]
            assert told.held == [run_id for run_id in old if run_id in self.held]

    @rule(run_id=RUNS, kind=st.sampled_from(["cancel", "pause"]), answer=st.booleans())
    def ask_or_answer(self, run_id: str, kind: str, answer: bool) -> None:
        asked = self.questions.setdefault(run_id, set())
        if answer:
            self.all_answer(None, lambda store: store.answered(run_id, kind))
            asked.discard(kind)
        else:
            self.all_answer(None, lambda store: store.ask(run_id, kind))
            asked.add(kind)

    @rule(run_id=RUNS)
    def acquire(self, run_id: str) -> None:
        owner = f"worker {next(self.owners)}"
        expected = LeaseHeldError if run_id in self.held else None
        leases = self.all_answer(expected, lambda store: store.acquire(run_id, owner, TTL_S))
        if leases:
            self.held[run_id] = by_store(leases)
            self.check_terms(run_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        leases = self.all_answer(None, lambda store: store.renew(self.lease(store, run_id)))
        assert [lease.term for lease in leases] == [
            lease.term for lease in self.held[run_id].values()
        ]
        self.held[run_id] = by_store(leases)

    def check_terms(self, run_id: str) -> None:
        """All grant the same, under terms of their own: a FileStore begins anew with each process that opens it."""
        memory, file, sqlite = self.held[run_id].values()
        assert memory == sqlite == dataclasses.replace(file, term=memory.term)
        assert 1 <= file.term <= memory.term

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        self.all_answer(None, lambda store: store.release(self.lease(store, run_id)))
        self.lost.append(self.held.pop(run_id))

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def use_a_lease_that_is_gone(self, data: st.DataObject) -> None:
        leases = data.draw(st.sampled_from(self.lost))
        self.all_answer(LeaseLostError, lambda store: store.renew(leases[type(store).__name__]))
        lease = leases["MemoryStore"]
        event = [Event(MESSAGE, text="too late")]
        self.all_answer(
            LeaseLostError,
            lambda store: store.append_many(lease.run_id, event, leases[type(store).__name__]),
        )

    @rule()
    def reopen(self) -> None:
        """Another process: it has no leases, and the files are all it knows."""
        for run_id in list(self.held):
            self.all_answer(None, lambda store: store.release(self.lease(store, run_id)))  # noqa: B023
            self.lost.append(self.held.pop(run_id))
        self.file.close()
        self.sqlite.close()
        self.open_on_disk()

    @rule(run_id=RUNS, half_deleted=st.booleans())
    def crash(self, run_id: str, half_deleted: bool) -> None:
        """The process dies: nobody closes, releases or finishes anything; its leases run out."""
        if half_deleted and run_id in self.runs and run_id not in self.held:
            self.memory.delete(run_id)
            self.file.delete(run_id)
            self.sqlite._write(lambda connection: sqlite_deleting.mark(connection, run_id))
            self.forget(run_id)
        self.file._locks.drop()  # as the system does
        self.sqlite._finalizer.detach()
        self.sqlite._readers.abandon()
        self.sqlite._writer.abandon()
        self.sqlite._writer._waiting.put(None)  # only so that its thread does not stay
        sqlite_guard.closed(self.sqlite._identity)
        self.clock.seconds += 2 * TTL_S
        self.held.clear()
        self.open_on_disk()

    @rule(seconds=st.sampled_from([0.5, 10.0]))
    def time_passes(self, seconds: float) -> None:
        if all(
            lease["MemoryStore"].expires_at > self.clock.now() + seconds
            for lease in self.held.values()
        ):
            self.clock.seconds += seconds

    @rule(run_id=RUNS, after=st.sampled_from([0, 0, 0, 2]))
    def follow(self, run_id: str, after: int) -> None:
        news = self.all_answer(None, lambda store: store._news(run_id, after))
        self.followed.append(Followed(run_id, after, news))

    @precondition(lambda self: self.followed)
    @rule(data=st.data())
    def look_for_news(self, data: st.DataObject) -> None:
        """What was deleted since the last look is told as that, also where another run has the id by now."""
        followed = data.draw(st.sampled_from(self.followed))
        log = self.runs.get(followed.run_id)
        if followed.log is not None and log is not followed.log:
            for look in followed.news:
                with pytest.raises(RunNotFoundError):
                    look()
            self.followed.remove(followed)
            return
        followed.log = log
        expected = (log or [])[followed.seen :]
        assert [look() for look in followed.news] == [expected] * 3
        followed.seen += len(expected)

    def lease(self, store: Any, run_id: str) -> Lease:
        return self.held[run_id][type(store).__name__]

    @invariant()
    def they_hold_the_same_runs(self) -> None:
        if not hasattr(self, "runs"):
            return
        for run_id in ("a", "b", "c", "d.1"):
            expected = self.runs.get(run_id, [])
            assert self.all_answer(None, lambda store: store.load(run_id)) == [expected] * 3  # noqa: B023
        assert self.memory.list_runs() == self.sqlite.list_runs() == list(self.runs)
        assert sorted(self.file.list_runs()) == sorted(self.runs)

    @invariant()
    def they_tell_the_same_news_and_questions(self) -> None:
        if not hasattr(self, "runs"):
            return
        for store in (self.memory, self.sqlite):
            news = [(run_id, event) for _, run_id, event in store.tail(timeout=0)]  # type: ignore[attr-defined]
            assert news == self.order
        for run_id in ("a", "b", "c", "d.1"):
            expected = sorted(self.questions.get(run_id, ()))
            assert self.all_answer(None, lambda store: store.asked(run_id)) == [expected] * 3  # noqa: B023

    @invariant()
    def the_database_is_well(self) -> None:
        if hasattr(self, "runs"):
            assert self.sqlite.integrity_check() == []


def by_store(leases: list[Lease]) -> dict[str, Lease]:
    return dict(zip(("MemoryStore", "FileStore", "SQLiteStore"), leases, strict=True))


TestStoresAgree = Stores.TestCase
TestStoresAgree.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
