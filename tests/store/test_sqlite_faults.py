"""What SQLiteStore does when the disk does not: full, broken, cut off, read-only, damaged, gone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from store_disks import FaultyDisk

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, fork_run, sqlite_guard
from agentor.engine.store import sqlite_file as opening
from agentor.errors import LogCorruptError, SequenceConflictError, StoreError


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk("faulty")
    yield disk
    disk.unregister()


def said(text: str, seq: int | None = None) -> Event:
    return Event("message", text=text, seq=seq)


def texts(store: SQLiteStore, run_id: str = "run") -> list[str | None]:
    return [event.text for event in store.load(run_id)]


@pytest.mark.parametrize(("synchronous", "kept"), [("FULL", 5), ("EXTRA", 5), ("NORMAL", 0)])
def test_what_was_acknowledged_survives_a_power_cut(
    disk: FaultyDisk, tmp_path: Path, synchronous: str, kept: int
) -> None:
    # NORMAL is here to prove that the test would notice if somebody lowered the default.
    (tmp_path / "after").mkdir()
    store = SQLiteStore(tmp_path / "runs.db", vfs="faulty", synchronous=synchronous)
    for seq in range(1, 6):
        store.append("run", said(f"{seq}", seq))
    disk.after_power_cut(tmp_path / "after")
    store.close()
    with SQLiteStore(tmp_path / "after" / "runs.db") as left:
        assert len(left.load("run")) == kept
        assert left.integrity_check() == []


def test_the_default_syncs_each_commit(disk: FaultyDisk, tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db", vfs="faulty") as store:
        store.append("run", said("1"))
        before = disk.syncs
        for _ in range(10):
            store.append("run", said("more"))
        assert disk.syncs - before == 10


def test_what_is_acknowledged_after_a_failed_sync_and_a_restart_survives_a_power_cut(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    (tmp_path / "after").mkdir()
    path = tmp_path / "runs.db"
    store = SQLiteStore(path, vfs="faulty")
    store.append("run", said("1", 1))
    disk.cannot_sync = True
    with pytest.raises(StoreError):
        store.append("run", said("2", 2))
    disk.cannot_sync = False
    abandon(store)
    with SQLiteStore(path, vfs="faulty") as store:
        acknowledged = len(store.load("run")) + 1
        store.append("run", said("after the restart", acknowledged))
        disk.after_power_cut(tmp_path / "after")
    with SQLiteStore(tmp_path / "after" / "runs.db") as left:
        assert len(left.load("run")) == acknowledged
        assert texts(left)[-1] == "after the restart"
        assert left.integrity_check() == []


def abandon(store: SQLiteStore) -> None:
    """Let go of the file as a killed process does: nothing is written any more."""
    store._finalizer.detach()
    store._readers.abandon()
    store._writer.abandon()
    sqlite_guard.closed(store._identity)


def test_a_store_that_cannot_be_set_up_keeps_nothing_open(disk: FaultyDisk, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    empty = apsw.Connection(str(path), vfs="faulty")
    empty.pragma("journal_mode", "WAL")
    empty.close()
    disk.is_full = True
    with pytest.raises(StoreError, match="full") as caught:
        SQLiteStore(path, vfs="faulty")
    open_still = [each.filename for each in apsw.connections()]
    assert str(path) not in open_still
    assert (
        caught.value.__traceback__ is not None
    )  # kept until here, and with it whatever it refers to


@pytest.mark.parametrize("fault", ["is_full", "is_broken"])
def test_a_failing_disk_is_told_and_nothing_is_half_saved(
    disk: FaultyDisk, tmp_path: Path, fault: str
) -> None:
    with SQLiteStore(tmp_path / "runs.db", vfs="faulty") as store:
        store.append_many("run", [said("1", 1), said("2", 2)])
        setattr(disk, fault, True)
        for _ in range(3):
            with pytest.raises(StoreError, match=r"runs\.db: the disk"):
                store.append_many("run", [said("3", 3), said("x" * 50_000, 4)])
        assert texts(store) == ["1", "2"]
        setattr(disk, fault, False)
        store.append_many("run", [said("3", 3), said("4", 4)])
        assert texts(store) == ["1", "2", "3", "4"]
        assert store.integrity_check() == []


def test_a_failed_commit_fails_everyone_in_it_also_those_it_had_refused(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    with SQLiteStore(tmp_path / "runs.db", vfs="faulty") as store:
        store.append("run", said("1", 1))
        store._writer.pause()  # the thread takes the batch, but waits before its transaction
        disk.is_full = True
        futures = [store.submit("run", [said(f"{n}", 2)]) for n in range(3)]
        store._writer.go_on()
        for future in futures:
            error = future.exception(timeout=30)
            # "seq 2 is taken" would be a lie: what had taken it was not saved.
            assert isinstance(error, StoreError)
            assert not isinstance(error, SequenceConflictError)
        disk.is_full = False
        store.append("run", said("2", 2))


def test_a_file_that_somebody_keeps_locked_is_told_after_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path, busy_timeout_s=0) as store:
        store.append("run", said("1", 1))
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked beyond busy_timeout_s"):
            store.append("run", said("2", 2))
        assert texts(store) == ["1"]
        other.close()
        store.append("run", said("2", 2))


def test_a_full_disk_cannot_open_a_new_store_and_can_when_there_is_space(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    disk.is_full = True
    with pytest.raises(StoreError, match="full"):
        SQLiteStore(tmp_path / "runs.db", vfs="faulty")
    disk.is_full = False
    with SQLiteStore(tmp_path / "runs.db", vfs="faulty") as store:
        store.append("run", said("1"))


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.append("run", said("1"))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    path.touch(mode=0o640)
    os.chmod(path, 0o640)
    SQLiteStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        SQLiteStore(tmp_path)


def test_a_missing_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="check that its directory exists"):
        SQLiteStore(tmp_path / "missing" / "runs.db")


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 100)
    with pytest.raises(StoreError, match=r"notes\.txt: this is no SQLite database"):
        SQLiteStore(path)
    assert path.read_text() == "remember the milk\n" * 100
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_memory_is_the_business_of_another_store(path: str) -> None:
    with pytest.raises(ValueError, match="MemoryStore"):
        SQLiteStore(path)


@pytest.mark.parametrize(
    "setting", [{"synchronous": "MAYBE"}, {"busy_timeout_s": -1}, {"lease_ttl_s": 0}]
)
def test_a_setting_that_cannot_be_is_refused(tmp_path: Path, setting: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        SQLiteStore(tmp_path / "runs.db", **setting)  # type: ignore[arg-type]


class ReadOnlyDisk(apsw.VFS):
    """Opens whatever exists for reading only, as for a user without the right to write."""

    def __init__(self) -> None:
        super().__init__("read-only", "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            flags[0] &= ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            flags[0] |= apsw.SQLITE_OPEN_READONLY
            flags[1] |= apsw.SQLITE_OPEN_READONLY
        return apsw.VFSFile("", name, flags)


def test_a_read_only_file_can_be_read_and_says_why_it_cannot_be_written(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.append("run", said("1", 1))
    vfs = ReadOnlyDisk()
    try:
        with SQLiteStore(tmp_path / "runs.db", vfs="read-only") as store:
            assert texts(store) == ["1"]
            with pytest.raises(StoreError, match="cannot be written; check its permissions"):
                store.append("run", said("2", 2))
    finally:
        vfs.unregister()


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_deleted_under_a_live_store_is_loud(tmp_path: Path, replace: bool) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        store.append("run", said("1", 1))
        path.unlink()
        if replace:
            path.touch()
        with pytest.raises(StoreError, match="deleted or replaced"):
            store.append("run", said("2", 2))
        with pytest.raises(StoreError, match="deleted or replaced"):
            store.load("run")


def damage(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    trigger = "SELECT sql FROM sqlite_schema WHERE name = 'agentor_events_no_update'"
    restoring = str(connection.execute(trigger).get)
    connection.execute("DROP TRIGGER agentor_events_no_update; PRAGMA ignore_check_constraints=ON")
    connection.execute(statement)
    connection.execute(restoring)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        (
            'UPDATE agentor_events SET body = \'{"type": "mess\' WHERE run = 1 AND seq = 2',
            2,
        ),
        ("UPDATE agentor_events SET body = '[1]' WHERE run = 1 AND seq = 3", 3),
        ("DELETE FROM agentor_events WHERE run = 1 AND seq = 2", 2),
        (
            "UPDATE agentor_events SET body = json_set(body, '$.seq', 7) WHERE run = 1 AND seq = 1",
            1,
        ),
    ],
)
def test_a_damaged_run_is_named_with_its_seq_and_the_others_are_fine(
    tmp_path: Path, statement: str, seq: int
) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        for run_id in ("run", "other"):
            store.append_many(run_id, [said("1"), said("2"), said("3")])
    damage(path, statement)
    with SQLiteStore(path) as store:
        with pytest.raises(LogCorruptError) as caught:
            store.load("run")
        assert (caught.value.run_id, caught.value.seq) == ("run", seq)
        assert texts(store, "other") == ["1", "2", "3"]
        assert any("run 'run'" in problem for problem in store.integrity_check())


def test_a_lost_tail_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        store.append_many("run", [said("1"), said("2"), said("3")])
    damage(path, "DELETE FROM agentor_events WHERE seq = 3")
    with SQLiteStore(path) as store:
        with pytest.raises(LogCorruptError) as caught:
            store.load("run")
        assert caught.value.seq == 3
        assert store.integrity_check() == [str(caught.value)]


def test_a_database_with_a_damaged_page_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        for seq in range(1, 200):
            store.append("run", said("x" * 200, seq))
    content = bytearray(path.read_bytes())
    content[4096 * 18 :] = b"\xff" * (len(content) - 4096 * 18)  # behind the schema's own pages
    path.write_bytes(content)
    with (
        SQLiteStore(path) as store,
        pytest.raises(StoreError, match="damaged") as caught,
    ):
        store.load("run")
    assert str(path) in str(caught.value)


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_OLDEST_SQLITE", (99, 0, 0))
    with pytest.raises(StoreError, match="install apsw"):
        SQLiteStore(tmp_path / "runs.db")


def test_a_run_that_is_its_own_ancestor_sends_nobody_round_in_circles(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        store.append_many("run", [said("1"), said("2")])
        for name in ("a", "b"):
            fork_run(store, "run", name)
    damage(path, "UPDATE agentor_runs SET parent = 'a' WHERE run_id = 'a'")
    with SQLiteStore(path) as store:
        with pytest.raises(LogCorruptError):
            store.load("a")
        assert len(store.load("b")) == 3
        assert any("not older than itself" in problem for problem in store.integrity_check())
        store.delete("a")
        assert store.list_runs() == ["run", "b"]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DROP TABLE agentor_leases", "agentor_leases is missing"),
        ("DROP TRIGGER agentor_events_no_gap", "agentor_events_no_gap is missing"),
        ("DROP INDEX agentor_runs_by_status", "agentor_runs_by_status is missing"),
        ("UPDATE agentor_events SET type = 'x' WHERE seq = 2", "the event at seq 2 is kept as x"),
        ("UPDATE agentor_runs SET run_id = 'a b/c'", "bad run id 'a b/c'"),
    ],
)
def test_what_is_missing_or_disagrees_is_found(tmp_path: Path, statement: str, told: str) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        store.append_many("run", [said("1"), said("2")])
    connection = apsw.Connection(str(path))
    connection.execute("DROP TRIGGER agentor_events_no_update")
    connection.execute(statement)
    connection.close()
    with SQLiteStore(path) as store:
        found = store.integrity_check()
    assert any(told in problem for problem in found)
    assert any("agentor_events_no_update is missing" in problem for problem in found)
