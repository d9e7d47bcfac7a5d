"""FileStore: what a delete or a prune takes away while others change, lock or remake the files it has chosen."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import FileStore, file_opening
from agentor.errors import StoreError

RUNS = ["before", "run", "behind"]
ENDED = [Event("run_start", agent="Ada"), Event("run_end", status="failed")]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "runs")
    for run_id in RUNS:
        store.append_many(run_id, ENDED)
    return store


def goes_on(other: FileStore) -> None:
    other.append("run", Event("run_start", agent="Ada"))


def pauses(other: FileStore) -> None:
    other.append_many("run", [Event("run_start"), Event("run_end", status="paused")])


def ends_again(other: FileStore) -> None:
    other.append_many("run", [Event("run_start"), Event("run_end", status="failed")])


def is_another_by_now(other: FileStore) -> None:
    other.delete("run")
    other.append("run", Event("run_start", agent="Bob"))


def is_another_of_the_same_size_and_time(other: FileStore) -> None:
    times = other.path("run").stat()
    other.delete("run")
    other.append_many("run", [Event("run_start", agent="Bob"), Event("run_end", status="failed")])
    os.utime(other.path("run"), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert other.path("run").stat().st_size == times.st_size


@pytest.mark.parametrize(
    "change",
    [goes_on, pauses, ends_again, is_another_by_now, is_another_of_the_same_size_and_time],
)
def test_a_prune_takes_only_what_is_still_as_it_was_chosen(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, change: Callable[[FileStore], None]
) -> None:
    removing, left = store._locks.removing, []

    def meanwhile(run_id: str) -> Any:
        if run_id == "before":
            other = FileStore(store.directory)
            change(other)
            other.ask("run", "cancel", "Bob")
            left.append(other.path("run").read_bytes())
        return removing(run_id)

    monkeypatch.setattr(store._locks, "removing", meanwhile)
    done = store.prune(keep=0)
    assert (done.run_ids, done.held) == (["before", "behind"], [])
    assert [store.path("run").read_bytes()] == left
    assert store.asked("run") == ["cancel"]


def test_a_run_that_a_prune_spared_keeps_the_terms_of_its_leases(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.acquire("run", "me", 30)
    store.release(old)
    removing = store._locks.removing

    def meanwhile(run_id: str) -> Any:
        if run_id == "run":
            goes_on(FileStore(store.directory))
        return removing(run_id)

    monkeypatch.setattr(store._locks, "removing", meanwhile)
    assert store.prune(keep=0).run_ids == ["before", "behind"]
    assert store.acquire("run", "me", 30).term == old.term + 1


@pytest.fixture
def locked(store: FileStore) -> Iterator[FileStore]:
    """The store, while a process that does not go on has the file of one of its runs locked."""
    descriptor = os.open(store.path("run"), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield store
    os.close(descriptor)


def test_a_prune_spares_a_run_whose_file_is_kept_locked_and_goes_on(
    locked: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_opening, "LONGEST_WAIT_S", 0.01)
    done = locked.prune(keep=0)
    assert (done.run_ids, done.held) == (["before", "behind"], ["run"])
    assert locked.list_runs() == ["run"]


def test_a_delete_that_waits_for_its_file_keeps_no_other_run_waiting(
    locked: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = locked.acquire("behind", "me", 30)
    done: list[str] = []

    def work_elsewhere() -> None:
        locked.append_many("behind", [Event("message", text="on")], locked.renew(lease))
        locked.release(lease)
        done.append("behind")

    def while_it_waits(seconds: float) -> None:
        if not done:
            thread = threading.Thread(target=work_elsewhere, daemon=True)
            thread.start()
            thread.join(10)
            assert done == ["behind"]

    monkeypatch.setattr(file_opening, "LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(clock, "pause", while_it_waits)
    with pytest.raises(StoreError, match="Nothing was done"):
        locked.delete("run")
    assert done == ["behind"]


def test_a_delete_that_has_waited_in_vain_has_not_forgotten_what_was_asked(
    locked: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_opening, "LONGEST_WAIT_S", 0.01)
    locked.ask("run", "cancel", "Bob")
    with pytest.raises(StoreError, match="Nothing was done"):
        locked.delete("run")
    assert locked.asked("run") == ["cancel"]
