"""Deleting from the SQLite file: what forks share stays, what nobody needs goes in small steps, space comes back."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentor.engine.events import Event, Usage
from agentor.engine.store import SQLiteStore, fork_run, sqlite_deleting, sqlite_log
from agentor.engine.store.protocol import Removed
from agentor.errors import LogCorruptError, StoreError, UnfinishedDeleteError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Any:
    with SQLiteStore(path) as store:
        yield store


def said(text: str) -> Event:
    return Event("message", text=text)


def fill(store: SQLiteStore, run_id: str, length: int, size: int = 10) -> None:
    store.append_many(run_id, [said("x" * size) for _ in range(length)])


def rows(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path))
    count = connection.execute(f"SELECT count(*) FROM {table}").get
    connection.close()
    return int(count)


def bodies(store: SQLiteStore, run_id: str) -> list[str]:
    return [event.to_json() for event in store.load(run_id)]


def test_only_what_a_fork_needs_is_kept_of_its_parent(store: SQLiteStore) -> None:
    fill(store, "parent", 100)
    fork_run(store, "parent", "early", at=10)
    fork_run(store, "parent", "late", at=30)
    before = {run_id: bodies(store, run_id) for run_id in ("early", "late")}
    assert store.delete("parent").events == 70
    assert store.counts() == {"runs": 2, "events": 32}
    assert {run_id: bodies(store, run_id) for run_id in before} == before
    assert store.delete("late").events == 21
    assert store.counts() == {"runs": 1, "events": 11}
    assert bodies(store, "early") == before["early"]
    assert store.integrity_check() == []
    assert store.delete("early").events == 11
    assert store.counts() == {"runs": 0, "events": 0}


def test_when_all_is_deleted_no_row_is_left(path: Path) -> None:
    with SQLiteStore(path) as store:
        fill(store, "0", 8)
        for number in range(1, 8):
            fork_run(store, f"{number - 1}", f"{number}", at=8 - number)
        lease = store.acquire("3", "me", 30)
        store.release(lease)
        store.ask("3", "cancel")
        for number in (3, 0, 6, 1, 7, 2, 5, 4):
            store.delete(f"{number}")
            assert store.integrity_check() == []
    for table in ("runs", "events", "leases", "signals"):
        assert rows(path, f"agentor_{table}") == 0


def test_a_fork_of_a_deleted_fork_shares_with_the_one_above_it(store: SQLiteStore) -> None:
    fill(store, "top", 10)
    fork_run(store, "top", "middle", at=6)
    fork_run(store, "middle", "leaf", at=4)
    store.delete("middle")
    leaf = store.runs()[-1]
    assert (leaf.parent, leaf.parent_seq) == ("top", 4)
    assert (leaf.forked_from, leaf.forked_at) == ("middle", 4)
    store.delete("top")
    assert store.counts() == {"runs": 1, "events": 5}


def test_a_long_run_goes_in_transactions_of_bounded_size(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 50)
    fill(store, "long", 1000)
    taken = []
    step = sqlite_deleting.step

    def watched(connection: apsw.Connection, run_ids: list[str]) -> sqlite_deleting.Taken:
        done = step(connection, run_ids)
        taken.append(done.events)
        return done

    monkeypatch.setattr(sqlite_deleting, "step", watched)
    commits = store._writer.commits
    assert store.delete("long").events == 1000
    assert max(taken) == 50
    assert store._writer.commits - commits >= 20


def test_many_small_runs_go_in_few_transactions(store: SQLiteStore) -> None:
    for number in range(300):
        store.append_many(f"{number}", [said("x"), Event("run_end", status="completed")])
    commits = store._writer.commits
    assert len(store.prune(status="completed", keep=0).run_ids) == 300
    assert store._writer.commits - commits < 12
    assert store.counts() == {"runs": 0, "events": 0}


def test_the_space_of_a_deleted_run_is_given_back(path: Path) -> None:
    with SQLiteStore(path) as store:
        fill(store, "kept", 10)
    small = path.stat().st_size
    with SQLiteStore(path) as store:
        fill(store, "big", 2000, size=1000)
    assert path.stat().st_size > small + 2_000_000
    with SQLiteStore(path) as store:
        store.delete("big")
    assert path.stat().st_size <= small + 3 * 4096


def test_a_database_of_the_program_is_not_vacuumed_by_us(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    with SQLiteStore(path) as store:
        fill(store, "big", 500, size=1000)
        store.delete("big")
        assert store.integrity_check() == []


def test_a_deletion_that_was_cut_off_is_not_seen_and_is_finished_by_the_next(path: Path) -> None:
    with SQLiteStore(path) as store:
        fill(store, "parent", 20)
        fork_run(store, "parent", "fork", at=5)
        before = bodies(store, "fork")
        store._write(lambda connection: sqlite_deleting.mark(connection, "parent"))  # and killed
    with SQLiteStore(path) as store:
        assert store.load("parent") == []
        assert store.list_runs() == ["fork"]
        assert bodies(store, "fork") == before
        assert store.counts()["events"] == 21
        assert store.integrity_check() == []
        fill(store, "done", 1)
        store.append("done", Event("run_end", status="completed"))
        told = store.prune(keep=0, dry_run=True)
        assert (told.run_ids, told.events) == (["done"], 17)
        assert store.prune(keep=0) == told
        assert store.counts() == {"runs": 1, "events": 6}


FAILING = ["mark", "step", "vacuum_step"]
NOTHING = Removed([], [], 0, 0)


def outcome(call: Callable[[], Removed]) -> Removed | StoreError:
    try:
        return call()
    except StoreError as error:
        return error


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, turn: int) -> None:
    """The disk is full when a function of deleting is called for the `turn`-th time, and from then on."""
    right, turns = getattr(sqlite_deleting, name), iter(range(1, 1000))

    def full(*given: Any, **named: Any) -> Any:
        if next(turns) >= turn:
            raise apsw.FullError("full")
        return right(*given, **named)

    monkeypatch.setattr(sqlite_deleting, name, full)


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("verb", ["delete", "prune"])
def test_whatever_step_of_a_delete_fails_it_tells_exactly_which_runs_are_gone(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, name: str, turn: int, verb: str
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 20)
    monkeypatch.setattr("agentor.engine.store.sqlite._RUNS_PER_STEP", 1)
    for run_id in "abc":
        fill(store, run_id, 50, size=1000)
        store.append(run_id, Event("run_end", status="completed"))
    events = store.counts()["events"]
    with monkeypatch.context() as failing:
        fail_at(failing, name, turn)
        told = outcome(lambda: store.delete("b") if verb == "delete" else store.prune(keep=1))
    removed = getattr(told, "removed", NOTHING) if isinstance(told, StoreError) else told
    if isinstance(told, UnfinishedDeleteError):
        assert removed.run_ids
        assert all(repr(run_id) in str(told) for run_id in removed.run_ids)
    elif isinstance(told, StoreError):
        assert "nothing of this step was saved" in str(told)
    assert store.list_runs() == [each for each in "abc" if each not in removed.run_ids]
    assert store.counts()["events"] == events - removed.events
    assert store.integrity_check() == []


def test_the_room_of_a_delete_that_failed_is_given_back_by_the_next_delete_or_prune(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("deleted", "next"):
        fill(store, run_id, 5)
    fork_run(store, "deleted", "fork", at=2)
    verbs = (lambda: store.delete("next"), lambda: store.prune(keep=100))
    for finish, run_id in zip(verbs, ("deleted", "fork"), strict=True):
        with monkeypatch.context() as failing:
            fail_at(failing, "step", 1)
            with pytest.raises(UnfinishedDeleteError) as failed:
                store.delete(run_id)
        assert failed.value.removed == Removed([run_id], [], 0, 0)
        finish()
        assert store.integrity_check() == []
        assert store.counts()["events"] == (3 if run_id == "deleted" else 0)
    assert rows(path, "agentor_runs") == 0


def test_a_sweep_does_not_look_again_at_what_forks_need(store: SQLiteStore) -> None:
    fill(store, "parent", 9)
    for number in range(3):
        fork_run(store, "parent", f"{number}", at=3 * (number + 1))
    store.delete("parent")
    assert store._read(sqlite_deleting.left_behind) == ["parent"]
    assert store._read(sqlite_deleting.unfinished) == []
    for number, left in ((2, 6), (0, 6), (1, 0)):
        store.delete(f"{number}")
        assert store._read(sqlite_deleting.unfinished) == []
        assert len(store._read(sqlite_deleting.left_behind)) == bool(left)


def test_a_new_run_under_the_id_of_a_half_deleted_one_begins_at_seq_one(store: SQLiteStore) -> None:
    fill(store, "run", 20)
    fork_run(store, "run", "fork", at=5)
    before = bodies(store, "fork")
    store._write(lambda connection: sqlite_deleting.mark(connection, "run"))
    store.append("run", Event("message", text="new", seq=1))
    assert [event.text for event in store.load("run")] == ["new"]
    assert bodies(store, "fork") == before
    assert store.counts() == {"runs": 2, "events": 7}
    assert store.integrity_check() == []


def test_a_fork_names_its_parent_also_when_that_is_deleted_and_its_id_used_again(
    path: Path,
) -> None:
    def parents(store: SQLiteStore) -> list[str | None]:
        return [row.parent for row in store.runs() if row.run_id in ("fork", "twig", "plain")]

    with SQLiteStore(path) as store:
        fill(store, "old.run", 5)
        fork_run(store, "old.run", "fork", at=2)
        fork_run(store, "fork", "twig")
        store.fork("twig", "plain")
        for _ in range(2):
            store.delete("old.run")
            assert parents(store) == ["old.run", "fork", "twig"]
            fill(store, "old.run", 1)
            assert parents(store) == ["old.run", "fork", "twig"]
        assert store.integrity_check() == []
    connection = apsw.Connection(str(path))  # as older files have it
    connection.execute("UPDATE agentor_runs SET parent = '.aside' WHERE run_id = 'fork'")
    connection.execute("UPDATE agentor_runs SET run_id = '.aside' WHERE run_id LIKE '.%'")
    connection.close()
    with SQLiteStore(path) as store:
        assert parents(store) == ["old.run", "fork", "twig"]
        assert len(store.load("fork")) == 3


def test_using_the_id_of_a_half_deleted_long_run_takes_away_one_step_of_it_and_no_more(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_deleting, "EVENTS_PER_STEP", 50)
    fill(store, "long", 1000)
    fork_run(store, "long", "fork", at=5)
    before = bodies(store, "fork")
    store._write(lambda connection: sqlite_deleting.mark(connection, "long"))
    store.append("long", said("new"))
    assert store.counts() == {"runs": 2, "events": 1000 - 50 + 1 + 1}
    assert [event.text for event in store.load("long")] == ["new"]
    assert store.integrity_check() == []
    store.prune(keep=10)
    assert bodies(store, "fork") == before
    assert store.counts() == {"runs": 2, "events": 5 + 1 + 1}


def test_a_run_that_changed_since_it_was_chosen_is_spared(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append_many("run", [said("x"), Event("run_end", status="completed")])
    mark_chosen = sqlite_deleting.mark_chosen

    def too_late(connection: apsw.Connection, chosen: list[tuple[str, float]]) -> Any:
        connection.execute("UPDATE agentor_runs SET updated_at = updated_at + 1")
        return mark_chosen(connection, chosen)

    monkeypatch.setattr(sqlite_deleting, "mark_chosen", too_late)
    assert store.prune(keep=0).run_ids == []
    assert store.list_runs() == ["run"]


def test_a_fork_whose_parent_is_made_anew_meanwhile_is_listed_as_what_it_has(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(agent: str, turns: int) -> None:
        start = Event("run_start", agent=agent, model=agent, started_at=float(turns))
        used = Event("generation", usage=Usage(10, 1, 11))
        store.append_many("run", [start, *[used] * turns, said("x")])

    def too_early(*given: Any, **named: Any) -> Any:
        there = summary_at(*given, **named)
        monkeypatch.undo()
        store.delete("run")
        begin("new", 2)
        return there

    begin("old", 5)
    summary_at = sqlite_log.summary_at
    monkeypatch.setattr(sqlite_log, "summary_at", too_early)
    store.fork("run", "fork", at=3)
    assert [event.agent for event in store.load("fork")] == ["new", None, None]
    row = store.runs(agent="new", newest=True, limit=1)[0]
    assert (row.run_id, row.model, row.turns, row.usage) == ("fork", "new", 2, Usage(20, 2, 22))
    assert store.list_runs(agent="old") == []
    assert store.integrity_check() == []


def test_a_damaged_run_can_be_deleted(path: Path) -> None:
    with SQLiteStore(path) as store:
        fill(store, "run", 5)
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM agentor_events WHERE seq = 3")
    connection.close()
    with SQLiteStore(path) as store:
        with pytest.raises(LogCorruptError):
            store.load("run")
        store.delete("run")
        assert store.counts() == {"runs": 0, "events": 0}


@pytest.mark.parametrize("seed", range(12))
def test_a_dry_run_foretells_exactly_what_goes_whatever_shares_what(
    store: SQLiteStore, seed: int
) -> None:
    dice = random.Random(seed)
    fill(store, "0", 12)
    for number in range(1, 14):
        parent = f"{dice.randrange(number)}"
        length = len(store.load(parent))
        fork_run(store, parent, f"{number}", at=dice.randint(1, length))
        fill(store, f"{number}", dice.randint(0, 4))
    logs = {run_id: bodies(store, run_id) for run_id in store.list_runs()}
    while logs:
        gone = dice.sample(sorted(logs), dice.randint(1, len(logs)))
        for run_id in gone:
            store.append(run_id, Event("run_end", status="completed"))
        told = store.prune(status="completed", keep=0, dry_run=True)
        assert sorted(told.run_ids) == sorted(gone)
        assert store.prune(status="completed", keep=0) == told
        for run_id in gone:
            del logs[run_id]
        assert {run_id: bodies(store, run_id) for run_id in store.list_runs()} == logs
        assert store.integrity_check() == []
    assert store.counts() == {"runs": 0, "events": 0}
