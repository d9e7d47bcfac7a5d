"""FileStore: a question is asked for good, or not at all, whatever became of those who asked before."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.store import FileStore, file_opening
from agentor.errors import StoreError

SYSTEM_CALLS = ("pwrite", "fsync", "ftruncate", "pread")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "runs")


def place(store: FileStore) -> Path:
    return store.directory / ".locks" / "run.asked" / "cancel"


def broken_at(number: int, patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """The disk refuses one call, the `number`th; whether it came to that."""
    calls = itertools.count()

    def breaking(call: Callable[..., Any]) -> Callable[..., Any]:
        def at_times(*args: Any) -> Any:
            if next(calls) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*args)

        return at_times

    for name in SYSTEM_CALLS:
        patch.setattr(os, name, breaking(getattr(os, name)))
    return lambda: next(calls) > number


def ask_on_a_broken_disk(store: FileStore, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        is_broken = broken_at(number, patch)
        try:
            store.ask("run", "cancel", "Alice")
        except StoreError:
            return True
        assert not is_broken()
        return False


def calls_of_one_question(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> int:
    number = 0
    while ask_on_a_broken_disk(store, number, monkeypatch):
        store.answered("run", "cancel")
        number += 1
    store.answered("run", "cancel")
    return number


def test_what_could_not_be_asked_is_not_asked(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(calls_of_one_question(store, monkeypatch)):
        assert ask_on_a_broken_disk(store, number, monkeypatch)
        assert store.asked("run") == []


def test_whoever_asks_after_somebody_who_could_not_is_the_one_who_has_asked(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    for number in range(calls_of_one_question(store, monkeypatch)):
        assert ask_on_a_broken_disk(store, number, monkeypatch)
        del synced[:]
        store.ask("run", "cancel", "Bob")
        assert store.asked_by("run", "cancel") == "Bob"
        assert synced == ["cancel", "run.asked", ".locks", "runs"]
        store.answered("run", "cancel")


@pytest.mark.parametrize("left", [b"", b'{"asked_at": 17', b"null"])
def test_a_question_that_a_process_died_over_is_asked_anew(
    store: FileStore, synced: list[str], left: bytes
) -> None:
    store.ask("run", "cancel", "somebody with a longer name than the next one")
    place(store).write_bytes(left)
    del synced[:]
    assert (store.asked("run"), store.asked_by("run", "cancel")) == (["cancel"], None)
    store.ask("run", "cancel", "Bob")
    assert store.asked_by("run", "cancel") == "Bob"
    assert synced == ["cancel", "run.asked", ".locks", "runs"]


def test_whoever_asks_what_is_asked_already_has_it_on_the_disk_as_well(
    store: FileStore, synced: list[str]
) -> None:
    """Who asked first may have died before the sync, or be about to learn that it has failed."""
    store.ask("run", "cancel", "Alice")
    del synced[:]
    store.ask("run", "cancel", "Bob")
    assert store.asked_by("run", "cancel") == "Alice"
    assert synced == ["cancel", "run.asked", ".locks", "runs"]


def test_a_question_that_stands_outlives_whoever_fails_to_ask_it_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ask("run", "cancel", "Bob")
    number = 0
    while ask_on_a_broken_disk(store, number, monkeypatch):
        assert store.asked_by("run", "cancel") == "Bob"
        number += 1
    assert number > 3


def test_nobody_waits_for_ever_for_who_is_suspended_as_they_ask(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_opening, "LONGEST_WAIT_S", 0.01)
    store.ask("run", "cancel", "Alice")
    with (
        file_opening.opened(place(store), os.O_RDWR, file_opening.fcntl.LOCK_EX, StoreError),
        pytest.raises(StoreError, match="Nothing was done"),
    ):
        store.ask("run", "cancel", "Bob")
