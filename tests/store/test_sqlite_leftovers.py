"""What a delete takes away, counts and answers for: its own run, whatever others have left, and whatever the disk does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from store_disks import FaultyDisk

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, fork_run, sqlite_deleting
from agentor.engine.store.protocol import Removed
from agentor.errors import StoreError, UnfinishedDeleteError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path) as store:
        yield store


def fill(store: SQLiteStore, run_id: str, length: int, size: int = 10) -> None:
    events = [Event("message", text="x" * size) for _ in range(length - 1)]
    store.append_many(run_id, [*events, Event("run_end", status="completed")])


def weight(store: SQLiteStore, run_id: str) -> int:
    return sum(len(event.to_json().encode()) for event in store.load(run_id))


def leave(store: SQLiteStore, run_id: str) -> None:
    """As a delete does that is killed after its first commit, or is on its way in another process."""
    store._write(lambda connection: sqlite_deleting.mark(connection, run_id))


def watched(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """What a function of deleting has returned, call by call."""
    right, returned = getattr(sqlite_deleting, name), list[Any]()

    def watching(*given: Any, **named: Any) -> Any:
        returned.append(right(*given, **named))
        return returned[-1]

    monkeypatch.setattr(sqlite_deleting, name, watching)
    return returned


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    moment = clock.monotonic() + seconds
    monkeypatch.setattr(clock, "monotonic", lambda: moment)


def test_a_delete_beside_a_long_one_takes_and_counts_its_own_run(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 10)
    fill(store, "long", 500)
    fill(store, "small", 3)
    size = weight(store, "small")
    leave(store, "long")
    steps = watched(monkeypatch, "step")
    assert store.delete("small") == Removed(["small"], [], 3, size)
    assert len(steps) <= 1 + sqlite_deleting.STEPS_PER_LOOK
    assert steps[0].run_ids == []  # its own first
    assert store.counts()["events"] == 500 - 10 * sqlite_deleting.STEPS_PER_LOOK
    fill(store, "second", 3)
    assert store.delete("second").events == 3
    assert len(steps) <= 2 + sqlite_deleting.STEPS_PER_LOOK


def test_deletes_one_after_the_other_look_once_a_minute_for_what_others_have_left(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = watched(monkeypatch, "unfinished")
    for number in range(20):
        fill(store, f"{number}", 2)
        store.delete(f"{number}")
    assert looks == [[]]
    for number in range(2):
        fill(store, f"{number}", 2)
        leave(store, f"{number}")
        fill(store, "next", 2)
        later(monkeypatch, sqlite_deleting.LOOK_EVERY_S)
        assert store.delete("next").events == 2
        assert store.counts() == {"runs": 0, "events": 0}
    assert looks == [[], ["0"], ["1"]]


def test_what_others_have_left_goes_bit_by_bit_with_deletes_and_all_at_once_with_a_prune(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 10)
    for run_id in ("deleted", "pruned"):
        fill(store, run_id, 350)
    leave(store, "deleted")
    left = []
    for number in range(4):
        fill(store, f"{number}", 2)
        store.delete(f"{number}")
        later(monkeypatch, sqlite_deleting.LOOK_EVERY_S)
        left.append(store.counts()["events"] - 350)
    assert left == [250, 150, 50, 0]
    leave(store, "pruned")
    assert store.prune(keep=0).events == 350
    assert store.counts() == {"runs": 0, "events": 0}


def test_a_fork_that_is_deleted_leaves_its_half_deleted_parent_to_whoever_is_at_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "STEPS_PER_LOOK", 0)
    fill(store, "parent", 50)
    fork_run(store, "parent", "fork", at=5)
    fork_run(store, "parent", "late", at=9)
    leave(store, "parent")
    assert store.delete("late").events == 1
    assert store.counts()["events"] == 50 + 1
    assert store.prune(keep=100).events == 45
    assert store.delete("fork").events == 1 + 5  # nobody is at the parent any more
    assert store.counts() == {"runs": 0, "events": 0}


def test_many_runs_without_events_go_in_steps_of_bounded_size(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 10)
    assert len(store._write(lambda c: sqlite_deleting.step(c, ["gone"] * 25)).run_ids) == 15


def test_a_delete_gives_as_many_pages_back_as_it_has_freed(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "PAGES_PER_STEP", 5)
    for run_id, length in (("first", 2), ("big", 300), ("small", 20)):
        fill(store, run_id, length, size=1000)
    store.delete("first")
    with monkeypatch.context() as others:
        others.setattr(sqlite_deleting, "vacuum_step", lambda _: False)
        store.delete("big")
    free = store._read(lambda connection: connection.pragma("freelist_count"))
    assert free > 60
    steps = watched(monkeypatch, "vacuum_step")
    store.delete("small")
    assert 1 <= len(steps) <= 3
    store.prune(keep=100)
    assert store._read(lambda connection: connection.pragma("freelist_count")) == 0


def test_a_delete_is_done_also_if_what_others_have_left_cannot_be_taken_away(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "left", 5)
    fill(store, "run", 3)
    leave(store, "left")
    step = sqlite_deleting.step

    def full(connection: apsw.Connection, run_ids: list[str]) -> sqlite_deleting.Taken:
        if run_ids != ["run"]:
            raise apsw.FullError("full")
        return step(connection, run_ids)

    monkeypatch.setattr(sqlite_deleting, "step", full)
    assert store.delete("run").events == 3
    assert store.counts() == {"runs": 0, "events": 5}


VERBS: dict[str, Callable[[SQLiteStore], Removed]] = {
    "delete": lambda store: store.delete("run"),
    "prune": lambda store: store.prune(keep=0),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_delete_that_fails_when_its_first_commit_is_made_says_that_the_run_is_gone(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    fill(store, "run", 3)

    def fail() -> None:
        raise apsw.IOError("the disk failed after the commit")

    with monkeypatch.context() as failing:
        failing.setattr(store._writer._watch, "check_commit", fail)
        with pytest.raises(UnfinishedDeleteError, match="'run' is deleted") as failed:
            VERBS[verb](store)
    assert failed.value.removed == Removed(["run"], [], 0, 0)
    assert store.list_runs() == []
    fill(store, "next", 2)
    assert store.delete("next").events == 2
    assert store.counts() == {"runs": 0, "events": 0}


@pytest.mark.parametrize("verb", VERBS)
def test_a_delete_whose_store_is_lost_at_its_first_commit_says_that_it_does_not_know(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    fill(store, "run", 3)
    watch = store._writer._watch
    check = type(watch).check_commit

    def replaced() -> None:
        Path(f"{path}-wal").unlink()
        check(watch)

    monkeypatch.setattr(watch, "check_commit", replaced)
    with pytest.raises(StoreError, match="not known whether that deleted 'run'") as failed:
        VERBS[verb](store)
    assert not isinstance(failed.value, UnfinishedDeleteError)
    assert "was deleted or replaced" in str(failed.value)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk("deleting")
    yield disk
    disk.unregister()


@pytest.mark.parametrize("fault", ["is_full", "is_broken", "cannot_sync"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_whatever_commit_the_disk_refuses_a_delete_counts_what_is_gone_and_no_more(
    disk: FaultyDisk,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    verb: str,
    steps: int,
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 4)
    with SQLiteStore(path, vfs="deleting") as store:
        fill(store, "run", 20)
        done = [] if not steps else watched(monkeypatch, "step")
        for name in ("mark", "step"):
            right = getattr(sqlite_deleting, name)

            def failing(*given: Any, right: Any = right, **named: Any) -> Any:
                found = right(*given, **named)
                if len(done) == steps:
                    setattr(disk, fault, True)  # from this commit on
                return found

            monkeypatch.setattr(sqlite_deleting, name, failing)
        with pytest.raises(StoreError) as failed:
            VERBS[verb](store)
        setattr(disk, fault, False)
        removed = getattr(failed.value, "removed", Removed([], [], 0, 0))
        assert removed.run_ids == (["run"] if steps else [])
        assert store.list_runs() == ([] if steps else ["run"])
        assert store.counts()["events"] == 20 - removed.events


def damage(path: Path, *statements: str) -> None:
    """What no statement may do to the table of runs, done to it."""
    connection = apsw.Connection(str(path))
    connection.pragma("writable_schema", True)
    table = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'agentor_runs'"
    kept, given_up = (
        "parent_seq       INTEGER NOT NULL DEFAULT 0",
        "parent_seq       INTEGER DEFAULT 0",
    )
    connection.execute(table, (kept, given_up))
    connection.pragma("writable_schema", "RESET")
    connection.pragma("ignore_check_constraints", True)
    for statement in statements:
        connection.execute(statement)
    connection.pragma("writable_schema", True)
    connection.execute(table, (given_up, kept))
    connection.close()


_NULL = "UPDATE agentor_runs SET parent_seq = NULL WHERE run_id = '{}'"
_BYTES = "UPDATE agentor_runs SET run_id = CAST(x'66{}' AS TEXT) WHERE run_id = '{}'"
_PARENT = "UPDATE agentor_runs SET parent = CAST(x'66ff' AS TEXT) WHERE run_id = '{}'"
DAMAGES = {
    "no seq of a fork": (_NULL.format("leaf"),),
    "no seq of a fork between": (_NULL.format("middle"),),
    "no seq of any": (_NULL.format("leaf"), _NULL.format("middle"), _NULL.format("other")),
    "no seq of a run without parent": (_NULL.format("top"),),
    "no id of a fork": (_BYTES.format("ff", "leaf"),),
    "no ids of two forks, alike to look at": (
        _BYTES.format("ff", "leaf"),
        _BYTES.format("fe", "other"),
    ),
    "no id of a fork between": (_BYTES.format("ff", "middle"), _PARENT.format("leaf")),
    "no id of a parent": (_BYTES.format("ff", "top"), _PARENT.format("middle")),
    "no parent": (_PARENT.format("leaf"),),
}
RUNS = {"top", "middle", "leaf", "other"}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("gone", [{"top"}, {"middle"}, {"top", "middle"}, RUNS, {"leaf", "top"}])
@pytest.mark.parametrize("is_left", [False, True])
def test_a_dry_run_foretells_what_goes_also_beside_damaged_rows(
    path: Path, name: str, gone: set[str], is_left: bool
) -> None:
    with SQLiteStore(path) as store:
        store.append_many("top", [Event("message", text="x") for _ in range(10)])
        fork_run(store, "top", "middle", at=6)
        fork_run(store, "top", "other", at=8)
        store.append_many("middle", [Event("message", text="y") for _ in range(3)])
        fork_run(store, "middle", "leaf", at=8)
        for run_id in gone:
            store.append(run_id, Event("run_end", status="completed"))
        if is_left:
            leave(store, "top")
    damage(path, *DAMAGES[name])
    with SQLiteStore(path) as store:
        before = store.counts()["events"]
        told = store.prune(status="completed", keep=0, dry_run=True)
        assert store.prune(status="completed", keep=0) == told
        assert store.counts()["events"] == before - told.events
        if "no seq" in name and gone <= {"top", "middle"} and not is_left:
            there = store._read(
                lambda c: c.execute("SELECT count(*) FROM agentor_events WHERE seq <= 8").get
            )
            assert there >= 8  # what a fork may need of its parents is not guessed
