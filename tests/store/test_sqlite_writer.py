"""The writer: many callers, few commits, one answer to each; and what closing means."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentor import Agentor
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, sqlite_writer
from agentor.errors import LeaseHeldError, SequenceConflictError, StoreError
from agentor.testing import ScriptedModel


def said(text: str, seq: int | None = None) -> Event:
    return Event("message", text=text, seq=seq)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with SQLiteStore(tmp_path / "runs.db") as store:
        yield store


def test_what_waits_during_a_commit_is_saved_by_the_next_one(store: SQLiteStore) -> None:
    store.append("first", said("1"))
    store._writer.pause()
    futures = [store.submit(f"run{n}", [said("1", 1), said("2", 2)]) for n in range(200)]
    before = store._writer.commits
    store._writer.go_on()
    for future in futures:
        future.result(timeout=30)
    assert store._writer.commits - before <= 2
    assert store.counts() == {"runs": 201, "events": 401}


def test_one_refusal_in_a_commit_fails_one_caller_only(store: SQLiteStore) -> None:
    store.acquire("held", "somebody", 1_000)
    store._writer.pause()
    futures = [
        store.submit("a", [said("1", 1)]),
        store.submit("a", [said("2", 2), said("gap", 4)]),
        store.submit("held", [said("1", 1)]),
        store.submit("a", [Event("tool_call", args={"no": object()})]),
        store.submit("a", [said("2", 2)]),
        store.submit("b", [said("1", 1)]),
    ]
    store._writer.go_on()
    errors = [type(future.exception(timeout=30)) for future in futures]
    assert errors == [
        *(type(None), SequenceConflictError, LeaseHeldError),
        *(TypeError, type(None), type(None)),
    ]
    assert [event.text for event in store.load("a")] == ["1", "2"]
    assert store.list_runs() == ["a", "b"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("mine")])
@pytest.mark.parametrize("is_refused", [False, True])
def test_whatever_a_callback_raises_everybody_else_is_answered(
    store: SQLiteStore, error: BaseException, is_refused: bool
) -> None:
    def fail(_: object) -> None:
        raise error

    store._writer.pause()
    first = store.submit("a", [said("1", 2 if is_refused else 1)])
    first.add_done_callback(fail)
    others = [store.submit(f"run{n}", [said("1", 1)]) for n in range(3)]
    store._writer.go_on()
    for future in others:
        future.result(timeout=30)
    assert isinstance(
        first.exception(timeout=30), SequenceConflictError if is_refused else type(None)
    )
    store.submit("a", [said("2", None)]).result(timeout=30)


def test_whatever_a_callback_raises_after_a_failed_commit_everybody_is_told(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise SystemExit(3)

    store.append("a", said("1"))
    store._writer.pause()
    futures = [store.submit(f"run{n}", [said("1", 1)]) for n in range(3)]
    futures[0].add_done_callback(fail)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_writer, "check_version", fail)
        store._writer.go_on()
        errors = [future.exception(timeout=30) for future in futures]
    assert [type(error) for error in errors] == [StoreError] * 3
    assert len({id(error) for error in errors}) == 3
    store.append("a", said("2"))
    assert store.list_runs() == ["a"]


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    return monkeypatch


def test_where_no_thread_can_be_started_nothing_is_saved_and_the_next_time_it_is(
    store: SQLiteStore, no_threads: pytest.MonkeyPatch
) -> None:
    for write in (
        lambda: store.append("a", said("1", 1)),
        lambda: store.acquire("a", "somebody", 10),
        lambda: store.transact("a"),
    ):
        with pytest.raises(StoreError, match="no thread can be started"):
            write()
    no_threads.undo()
    store.submit("a", [said("1", 1)]).result(timeout=30)
    assert [event.text for event in store.load("a")] == ["1"]


def test_a_store_that_could_not_start_its_thread_can_be_closed(
    tmp_path: Path, no_threads: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    with pytest.raises(StoreError):
        store.append("a", said("1", 1))
    store.close()
    assert os.listdir(tmp_path) == ["runs.db"]


async def test_a_run_goes_on_unsaved_while_there_are_no_threads_and_is_saved_afterwards(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best effort, as with any store that cannot save: strict runs end."""

    async def model(_: Any) -> str:
        patch.undo()
        return "done"

    agent = Agentor("A", model=ScriptedModel(model), store=store)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "agentor-store-writer":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        result = await agent.arun("go", run_id="r")
    assert (result.status, result.unsaved) == ("completed", 0)
    assert store.load("r") == result.events


def test_a_cancelled_submission_that_had_not_begun_is_not_saved(store: SQLiteStore) -> None:
    store.append("run", said("1", 1))
    store._writer.pause()
    first = store.submit(
        "other", [said("1", 1)]
    )  # the thread holds this one already, or takes both
    waiting = store.submit("run", [said("2", 2)])
    cancelled = waiting.cancel()
    store._writer.go_on()
    first.result(timeout=30)
    store.append("last", said("1", 1))
    assert len(store.load("run")) == (1 if cancelled else 2)


def test_submit_waits_for_room_when_very_many_wait(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "MAX_WAITING", 5)
    store.append("run", said("0"))
    store._writer.pause()
    blocked = threading.Event()
    wait_until = store._writer._room.wait_until
    monkeypatch.setattr(
        store._writer._room, "wait_until", lambda free: blocked.set() or wait_until(free)
    )
    submitted: list[int] = []

    def submit_all() -> None:
        for n in range(1, 101):
            store.submit("run", [said(f"{n}")])
            submitted.append(n)

    thread = threading.Thread(target=submit_all)
    thread.start()
    thread.join(timeout=0.2)
    assert thread.is_alive()
    assert (
        len(submitted) <= 11
    )  # five that the thread has taken, five that wait, and the one that blocks
    store._writer.go_on()
    thread.join(timeout=30)
    store.append("other", said("after all of them"))
    assert [event.text for event in store.load("run")] == [f"{n}" for n in range(101)]


def test_many_threads_write_and_read_at_once(store: SQLiteStore) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for seq in range(1, 31):
                store.append(name, said(f"{seq}", seq))
                assert len(store.load(name)) == seq
                store.list_runs()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"run{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.counts() == {"runs": 8, "events": 240}


def test_closing_saves_what_waits_and_leaves_one_file(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    futures = [store.submit("run", [said(f"{n}")]) for n in range(50)]
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert [file.name for file in tmp_path.iterdir()] == ["runs.db"]


def test_a_closed_store_refuses_everything(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    store.close()
    store.close()
    for use in (
        lambda: store.append("run", said("1")),
        lambda: store.load("run"),
        lambda: store.list_runs(),
        lambda: store.acquire("run", "me", 30),
    ):
        with pytest.raises(StoreError, match="closed; open a new one"):
            use()


def test_a_dropped_store_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    for n in range(5):
        SQLiteStore(tmp_path / f"{n}.db").append("run", said("1"))
    assert threading.active_count() == before


def test_a_store_that_only_reads_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.list_runs()
        store.load("run")
        assert threading.active_count() == before


def test_the_wal_stays_bounded_and_is_gone_after_close(tmp_path: Path) -> None:
    wal = tmp_path / "runs.db-wal"
    largest = 0
    with SQLiteStore(tmp_path / "runs.db", synchronous="OFF") as store:
        for number in range(1500):
            store.append(f"run{number % 7}", said("x" * 20_000))
            largest = max(largest, wal.stat().st_size)
            if number % 100 == 0:
                store.load(f"run{number % 7}")
    assert (tmp_path / "runs.db").stat().st_size > 30_000_000
    assert largest < 9_000_000
    assert not wal.exists()


def test_an_idle_writer_folds_the_wal_into_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "IDLE_S", 0.01)
    wal = tmp_path / "runs.db-wal"
    folded = threading.Event()
    fold = sqlite_writer.Writer._fold_wal

    def watched(writer: sqlite_writer.Writer) -> None:
        fold(writer)
        folded.set()

    monkeypatch.setattr(sqlite_writer.Writer, "_fold_wal", watched)
    with SQLiteStore(tmp_path / "runs.db") as store:
        for text in ("1", "2"):
            folded.clear()
            store.append("run", said(text))
            assert folded.wait(timeout=30)
            assert wal.stat().st_size == 0
        assert [event.text for event in store.load("run")] == ["1", "2"]


def test_a_reader_in_the_way_of_folding_is_waited_for_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = tmp_path / "runs.db-wal"
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.append("run", said("1"))
        with store._readers.connection() as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM agentor_events").fetchall()
            store.append("run", said("2"))
            with store._writer._committing:
                store._writer._fold_wal()
            store.append("run", said("3"))
            assert wal.stat().st_size > 0
            connection.execute("COMMIT")
        with store._writer._committing:
            store._writer._fold_wal()
        assert wal.stat().st_size == 0
        assert [event.text for event in store.load("run")] == ["1", "2", "3"]


def test_a_writer_takes_its_turn_soon_after_another_process_lets_go(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it has to ask: SQLite's own waiting would come to 0.1 s a turn."""
    pauses: list[float] = []
    other = apsw.Connection(store.path)
    other.execute("BEGIN IMMEDIATE")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 200:
            other.execute("ROLLBACK")

    monkeypatch.setattr(clock, "pause", pause)
    store.append("run", Event("run_start"))
    other.close()
    assert len(pauses) == 200
    assert max(pauses) <= 2 * sqlite_writer.PAUSE_S
