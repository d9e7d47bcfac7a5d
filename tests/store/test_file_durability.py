"""FileStore: what is shown is on the disk for good, and nobody waits for ever for who saves or is suspended."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor.cli.overview import overviews_of
from agentor.engine.events import Event
from agentor.engine.store import FileStore, file_opening, file_tail, fork_run
from agentor.errors import LogCorruptError, RunNotFoundError, StoreError

Show = Callable[[FileStore], Any]


def said(text: str, seq: int | None = None) -> Event:
    return Event("message", text=text, seq=seq)


def texts(store: FileStore) -> list[str | None]:
    return [event.text for event in store.load("run")]


def load(store: FileStore) -> list[Event]:
    return store.load("run")


def tail(store: FileStore) -> list[Event]:
    return list(store.tail("run", timeout=0))


def fork(store: FileStore) -> list[Event]:
    return store.load(fork_run(store, "run"))[:-1]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "runs")
    for seq in (1, 2, 3):
        store.append("run", said(f"{seq}", seq))
    return store


def died_before_its_sync(store: FileStore) -> FileStore:
    """Somebody else's view of a run whose writer has written a line and no more."""
    with store.path("run").open("ab") as file:
        file.write(said("4", 4).to_json().encode() + b"\n")
    return FileStore(store.directory)


@pytest.mark.parametrize("show", [load, tail, fork])
def test_what_another_process_wrote_is_synced_once_with_its_name_before_it_is_shown(
    store: FileStore, synced: list[str], show: Show
) -> None:
    other = died_before_its_sync(store)
    assert [event.text for event in show(other)] == ["1", "2", "3", "4"]
    assert synced[:2] == ["run.jsonl", "runs"]
    del synced[:]
    assert load(other) == tail(other)
    assert synced == []


@pytest.mark.parametrize("show", [load, tail])
def test_a_run_that_was_seen_before_is_synced_without_its_name(
    store: FileStore, synced: list[str], show: Show
) -> None:
    died_before_its_sync(store)
    assert len(show(store)) == 4
    assert synced == ["run.jsonl"]
    store.append("run", said("5", 5))
    assert len(show(store)) == 5
    assert synced == ["run.jsonl", "run.jsonl"]


def test_what_this_store_has_saved_is_shown_without_another_sync(
    store: FileStore, synced: list[str]
) -> None:
    assert load(store) == tail(store)
    store.status_at_end("run")
    store.list_runs()
    assert synced == []


def test_a_list_or_a_look_at_a_file_syncs_nothing(store: FileStore, synced: list[str]) -> None:
    other = died_before_its_sync(store)
    assert (other.list_runs(), len(other.read("run").events)) == (["run"], 4)
    assert other.status_at_end("run") is None
    assert [row.run_id for row in overviews_of(other, other.list_runs())] == ["run"]
    other.prune(keep=0)
    assert synced == []


@pytest.mark.parametrize("show", [load, tail, fork])
def test_what_cannot_be_brought_to_the_disk_is_not_shown(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    other = died_before_its_sync(store)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StoreError, match="could not be brought to the disk") as caught:
        show(other)
    assert not isinstance(caught.value, LogCorruptError)


class PageCache:
    """What would be left of a file after a power cut: bytes that a sync found dirty. A failed sync makes them clean."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
        self.path = path
        self.durable = path.read_bytes()[
            : -len(LAST)
        ]  # its writer died before the sync of the last line
        self.dirty: dict[int, int] = dict(enumerate(LAST, len(self.durable)))
        self.fails = fails
        pwrite, fsync = os.pwrite, os.fsync

        def noted(descriptor: int, content: bytes, offset: int) -> int:
            written = pwrite(descriptor, content, offset)
            if self.is_ours(descriptor):
                self.dirty |= dict(enumerate(content[:written], offset))
            return written

        def synced(descriptor: int) -> None:
            if self.is_ours(descriptor):
                self.sync()
            fsync(descriptor)

        monkeypatch.setattr(os, "pwrite", noted)
        monkeypatch.setattr(os, "fsync", synced)

    def is_ours(self, descriptor: int) -> bool:
        return os.path.samestat(os.fstat(descriptor), os.stat(self.path))

    def sync(self) -> None:
        dirty, self.dirty = self.dirty, {}
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        content = bytearray(self.durable.ljust(max(dirty, default=-1) + 1, b"\0"))
        for at, byte in dirty.items():
            content[at] = byte
        self.durable = bytes(content)


LAST = said("4", 4).to_json().encode() + b"\n"


@pytest.mark.parametrize("fails", [0, 1, 3])
@pytest.mark.parametrize("show", [load, tail, fork])
def test_what_a_failed_sync_made_clean_is_brought_to_the_disk_by_the_next_whoevers_it_is(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, show: Show, fails: int
) -> None:
    died_before_its_sync(store)
    path = store.path("run")
    changed_at = path.stat().st_mtime_ns
    cache = PageCache(path, monkeypatch, fails)
    for _ in range(fails):
        with pytest.raises(StoreError, match="could not be brought to the disk"):
            show(FileStore(store.directory))
    assert path.stat().st_mtime_ns == changed_at
    show(other := FileStore(store.directory))
    assert cache.durable == path.read_bytes()
    other.append("run", said("5", 5))
    assert cache.durable == path.read_bytes()


def test_a_file_that_may_only_be_read_is_not_written_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = died_before_its_sync(store)
    opened = os.open

    def only_read(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_WRONLY:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", only_read)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StoreError, match="could not be brought to the disk"):
        other.load("run")


def failing(reason: int) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    return fail


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EINVAL])
def test_where_nothing_can_be_written_everything_is_on_the_disk(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    other = died_before_its_sync(store)
    monkeypatch.setattr(os, "fsync", failing(reason))
    assert texts(other) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_a_run_can_be_read_and_not_written(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    other = died_before_its_sync(store)
    monkeypatch.setattr(fcntl, "flock", failing(reason))
    assert len(tail(other)) == len(load(other)) == 4
    with pytest.raises(StoreError, match=os.strerror(reason)):
        other.append("run", said("5"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_opening, "LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(file_tail, "_LONGEST_WAIT_S", 0.01)


def at_its_sync(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """The next sync fails, after others have had a look."""
    fsync, armed = os.fsync, [True]

    def sync(descriptor: int) -> None:
        if not armed:
            return fsync(descriptor)
        armed.clear()
        meanwhile()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.usefixtures("impatient")
def test_an_append_that_is_taken_back_was_seen_by_nobody(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [FileStore(store.directory), FileStore(store.directory)]
    texts(others[1])  # it knows the run up to here
    seen: list[Any] = []

    def look() -> None:
        for other in others:
            seen.append(tail(other))
            with pytest.raises(StoreError):
                load(other)

    at_its_sync(monkeypatch, look)
    with pytest.raises(StoreError, match="Nothing of this step was saved"):
        store.append("run", Event("run_end", status="completed", seq=4))
    assert seen == [[], []]
    for reader in (store, *others):
        assert texts(reader) == ["1", "2", "3"]


@pytest.fixture
def suspended(store: FileStore) -> Iterator[FileStore]:
    """The view of another process, while somebody who saves has the file locked and does not go on."""
    store.acquire("run", "the-suspended-one", 30)
    descriptor = os.open(store.path("run"), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield FileStore(store.directory)
    os.close(descriptor)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("use", [load, fork])
def test_nobody_waits_for_ever_for_one_who_is_suspended_while_he_saves(
    suspended: FileStore, use: Show
) -> None:
    with pytest.raises(StoreError, match=r"the-suspended-one.*kill -CONT") as caught:
        use(suspended)
    assert str(suspended.path("run")) in str(caught.value)


@pytest.mark.usefixtures("impatient")
def test_a_tail_has_no_news_of_one_who_is_suspended(suspended: FileStore) -> None:
    assert tail(suspended) == []
    assert suspended.list_runs() == ["run"]
    assert [row.run_id for row in overviews_of(suspended, ["run"])] == ["run"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "change",
    [lambda store: store.append("run", said("4")), lambda store: store.delete("run")],
)
def test_a_change_does_not_wait_for_ever_for_one_who_reads_and_is_suspended(
    store: FileStore, change: Show
) -> None:
    descriptor = os.open(store.path("run"), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with pytest.raises(StoreError, match="another process has kept"):
        change(store)
    os.close(descriptor)
    assert texts(store) == ["1", "2", "3"]
    change(store)


def test_a_new_run_whose_name_cannot_be_brought_to_the_disk_is_not_saved(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("agentor.engine.store.file.sync_directory", failing(errno.EIO))
        with pytest.raises(StoreError, match="Nothing of this step was saved"):
            store.append("new", said("1", 1))
    assert store.load("new") == []
    store.append("new", said("1", 1))
    assert len(FileStore(store.directory).load("new")) == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_delete_that_fails_anywhere_leaves_no_question_to_the_next_run(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Syncs: of one question and the other, then of the directory that the file is gone from."""
    for kind in ("cancel", "pause"):
        store.ask("run", kind, "Bob")
    fsync, calls = os.fsync, iter(range(9))

    def failing_once(descriptor: int) -> None:
        if next(calls) == number:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_once)
        with pytest.raises(StoreError) as caught:
            store.delete("run")
    is_gone = not store.path("run").exists()
    assert is_gone == (number == 2)
    assert ("The run is gone" if is_gone else "The run is still there") in str(caught.value)
    if not is_gone:
        store.delete("run")
    assert store.asked("run") == []
    with pytest.raises(RunNotFoundError):
        store.delete("run")
    store.append("run", said("new", 1))
    assert texts(store) == ["new"]


def test_the_questions_are_gone_for_good_before_the_run_is(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    store.ask("run", "cancel", "Bob")
    del synced[:]
    unlink, before = Path.unlink, []

    def noting(path: Path, missing_ok: bool = False) -> None:
        before.append((path.name, list(synced)))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noting)
    store.delete("run")
    assert before == [("cancel", []), ("run.jsonl", ["run.asked"])]
    assert synced == ["run.asked", "runs"]


def remade_at_the_same_size(store: FileStore) -> None:
    """Another process deletes the run and makes it anew, of fewer events and as many bytes."""
    other = FileStore(store.directory)
    size = store.path("run").stat().st_size
    other.delete("run")
    padding = "y" * (size - len(said("", 1).to_json()) - 1)
    other.append("run", said(padding, 1))
    assert store.path("run").stat().st_size == size


def test_a_run_that_was_deleted_and_made_again_at_the_same_size_is_another(
    store: FileStore, synced: list[str]
) -> None:
    remade_at_the_same_size(store)
    del synced[:]
    store.append("run", said("2"))
    assert synced == ["run.jsonl", "runs", "run.jsonl"]
    assert [event.seq for event in FileStore(store.directory).load("run")] == [1, 2]


def test_even_if_it_has_the_inode_and_the_times_of_the_old_one(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of a file system is coarse, and inodes are given again at once."""
    old, fstat = os.stat(store.path("run")), os.fstat
    remade_at_the_same_size(store)
    monkeypatch.setattr(os, "fstat", lambda descriptor: old)
    monkeypatch.setattr(file_opening, "is_at", lambda *_: True)
    assert len(store.load("run")) == 1
    monkeypatch.setattr(os, "fstat", fstat)
    store.append("run", said("2", 2))
