"""Nobody takes a part of a run for the run while it is imported, or after an import that was killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import FileStore, MemoryStore, SQLiteStore
from agentor.engine.store.protocol import Lease
from agentor.errors import LeaseHeldError, LeaseLostError
from agentor.export.jsonl import Imported, import_runs
from tests.engine.agents import ThreeMethods


class Died(BaseException):
    pass


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A file store whose process dies when it has written so many bytes of a log; then what it has left."""

    def dying(left: int) -> FileStore:
        def pwrite(descriptor: int, content: bytes, offset: int) -> int:
            if "/.locks/" in os.readlink(f"/proc/self/fd/{descriptor}"):
                return written(descriptor, content, offset)
            written(descriptor, content[:left], offset)
            monkeypatch.setattr(os, "ftruncate", dead)
            monkeypatch.setattr(os, "unlink", dead)
            raise Died

        def dead(*_: Any) -> None:
            raise Died

        written = os.pwrite
        monkeypatch.setattr(os, "pwrite", pwrite)
        return FileStore(tmp_path / "store")

    return dying


def lengths(log: list[Event], past: int = 0) -> range:
    return range(1, sum(len(event.to_json()) + 1 for event in log[past:]), 40)


def test_an_import_into_files_that_is_killed_leaves_nothing_of_a_new_run(
    directory: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
    story: list[Event],
    write_lines: Callable[..., Path],
    tmp_path: Path,
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    for left in lengths(story):
        with pytest.raises(Died):
            import_runs(directory(left), [file])
        monkeypatch.undo()
        store = FileStore(tmp_path / "store")
        assert (store.load("run"), store.list_runs()) == ([], [])
    assert import_runs(store, [file]).imported == ["run"]
    assert store.load("run") == story


def test_an_import_into_files_that_is_killed_leaves_a_beginning_that_the_next_one_completes(
    directory: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
    story: list[Event],
    write_lines: Callable[..., Path],
    tmp_path: Path,
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    for left in lengths(story, past=2):
        with FileStore(tmp_path / "store") as store:
            store.append_many("run", story[:2])
        with pytest.raises(Died):
            import_runs(directory(left), [file])
        monkeypatch.undo()
        with FileStore(tmp_path / "store") as store:
            assert store.load("run") == story[: len(store.load("run"))]
            assert import_runs(store, [file]).completed == ["run"]
            assert store.load("run") == story
            store.delete("run")


class Leasing(ThreeMethods):
    """Three methods and leases; looks on at each append as somebody who wants the run would."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__()
        self.leases = MemoryStore()
        self.step_s = step_s
        self.renewals = 0
        self.seen: list[str] = []

    def append(self, run_id: str, event: Event) -> None:
        ticking.time += self.step_s
        try:
            self.leases.acquire(run_id, "somebody else", 30.0)
            self.seen.append("free")
        except LeaseHeldError:
            self.seen.append("held")
        super().append(run_id, event)

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        return self.leases.acquire(run_id, owner, ttl_s)

    def renew(self, lease: Lease) -> Lease:
        self.renewals += 1
        return self.leases.renew(lease)

    def release(self, lease: Lease) -> None:
        self.leases.release(lease)


class Ticking(clock.SystemClock):
    time = 1_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


ticking = Ticking()


@pytest.mark.parametrize("there", [0, 3])
@pytest.mark.parametrize("step_s", [0.0, 12.0, 25.0])
def test_a_store_with_leases_lets_nobody_begin_with_a_run_that_is_just_being_imported(
    story: list[Event], write_lines: Callable[..., Path], there: int, step_s: float
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    with clock.installed(ticking):
        store = Leasing(step_s)
        for event in story[:there]:
            ThreeMethods.append(store, "run", event)
        outcome = import_runs(store, [file])
        assert outcome.completed + outcome.imported == ["run"]
        assert store.seen == ["held"] * (len(story) - there)
        assert (store.renewals > 0) == (step_s > 0)
        assert store.load("run") == story
        assert store.leases.holder("run") is None  # and afterwards it is anybody's


def test_an_import_that_was_overtaken_stops_says_so_and_is_completed_by_the_next(
    story: list[Event], write_lines: Callable[..., Path]
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    with clock.installed(ticking):
        store = Leasing(31.0)  # an append that takes longer than the lease lasts
        outcome = import_runs(store, [file])
        assert [each.run_id for each in outcome.damaged] == ["run"]
        assert "taken it over while it was written: import it again" in outcome.damaged[0].problem
        assert 0 < len(store.load("run")) < len(story)
        ticking.time += 60.0
        store.step_s = 0.0
        assert import_runs(store, [file]).completed == ["run"]
        assert store.load("run") == story


def _file(path: Path) -> Any:
    return FileStore(path / "runs")


def _sqlite(path: Path) -> Any:
    return SQLiteStore(path / "runs.db")


@pytest.mark.parametrize("make", [_file, _sqlite])
def test_the_rest_of_a_run_is_written_while_the_run_is_held(
    make: Callable[[Path], Any],
    story: list[Event],
    write_lines: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    with make(tmp_path) as store, make(tmp_path) as other:
        store.append_many("run", story[:3])
        append_many = store.append_many

        def looked_at(*args: Any) -> None:
            with pytest.raises(LeaseHeldError):
                other.acquire("run", "somebody", 30.0)
            append_many(*args)

        monkeypatch.setattr(store, "append_many", looked_at)
        assert import_runs(store, [file]).completed == ["run"]
        assert other.load("run") == story
        other.release(other.acquire("run", "somebody", 30.0))


@pytest.mark.parametrize("make", [_file, _sqlite])
def test_a_run_that_grew_between_the_look_and_the_lease_is_looked_at_again(
    make: Callable[[Path], Any],
    story: list[Event],
    write_lines: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))

    def imported_after(more: list[Event], place: Path) -> tuple[Imported, list[Event]]:
        with make(place) as store, make(place) as other, monkeypatch.context() as patch:
            store.append_many("run", story[:3])
            acquire = store.acquire

            def late(*args: Any) -> Lease:
                lease: Lease
                if more:
                    other.append_many("run", more)
                    more.clear()
                lease = acquire(*args)
                return lease

            patch.setattr(store, "acquire", late)
            return import_runs(store, [file]), store.load("run")

    for name in ("same", "other", "all"):
        (tmp_path / name).mkdir()
    outcome, log = imported_after(story[3:5], tmp_path / "same")
    assert (outcome.completed, log) == (["run"], story)
    elsewhere = Event("message", text="gone on here", seq=4)
    outcome, log = imported_after([elsewhere], tmp_path / "other")
    assert (outcome.taken, log) == (["run"], [*story[:3], elsewhere])
    outcome, log = imported_after(story[3:], tmp_path / "all")
    assert (outcome.already_there, log) == (["run"], story)


def test_a_file_without_an_event_is_in_nobodys_way(
    story: list[Event], write_lines: Callable[..., Path], tmp_path: Path
) -> None:
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    with FileStore(tmp_path / "store") as store:
        for left in ("", '{"type": "run_st'):
            store.path("run").write_text(left)
            assert import_runs(store, [file]).imported == ["run"]
            assert store.load("run") == story
            store.delete("run")


def test_a_run_is_created_once_and_never_over_another(story: list[Event], tmp_path: Path) -> None:
    with FileStore(tmp_path / "store") as store:
        lease = store.acquire("run", "somebody", 30.0)
        with pytest.raises(LeaseHeldError):
            store.create_run("run", story)
        assert store.list_runs() == []
        store.release(lease)
        store.create_run("run", story)
        with pytest.raises(ValueError, match="'run'"):
            store.create_run("run", story[:1])
        assert store.load("run") == story


def test_a_lease_that_cannot_be_given_back_loses_nothing_of_an_import(
    story: list[Event], write_lines: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    class Keeping(Leasing):
        def release(self, lease: Lease) -> None:
            raise LeaseLostError(lease.run_id)

    store = Keeping()
    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    assert import_runs(store, [file]).imported == ["run"]
    assert "run run: its lease was not released" in caplog.text


def test_a_method_of_a_users_own_that_is_called_create_is_not_taken_for_ours(
    story: list[Event], write_lines: Callable[..., Path]
) -> None:
    class Own(ThreeMethods):
        def create(self) -> None:
            raise AssertionError("it makes tables, and nobody asked for that")

    file = write_lines("run.jsonl", *(event.to_dict() for event in story))
    assert import_runs(Own(), [file]).imported == ["run"]
