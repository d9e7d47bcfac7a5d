"""What would lose commits without a sound is refused: a second SQLite, a foreign descriptor, a network disk, a second name."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import apsw
import pytest

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, sqlite_guard
from agentor.engine.store.sqlite_makeshift import holds_runs
from agentor.errors import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a file.db"


def spellings(path: Path) -> list[object]:
    link = path.with_name("link.db")
    link.symlink_to(path)
    return [
        *(str(path), path, os.fsencode(path), os.path.relpath(path), str(link)),
        *(
            f"file:{path}?mode=ro",
            path.as_uri(),
            f"file://localhost{path}",
            f"{path.as_uri()}?immutable=1#x",
            f"{path.as_uri()}%00.txt",
            f"file:{path}%00%00/x?mode=ro",
        ),
    ]


def test_sqlite3_is_refused_on_an_open_store_however_the_path_is_spelled(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append("run", Event("message", text="kept"))
        for spelling in spellings(path):
            with pytest.raises(StoreError, match="second SQLite"):
                sqlite3.connect(spelling, uri=str(spelling).startswith("file:"))  # type: ignore[call-overload]
        assert len(store.load("run")) == 1


def test_sqlite3_may_have_any_other_file_and_ours_once_it_is_closed(path: Path) -> None:
    with SQLiteStore(path) as store, SQLiteStore(path):
        sqlite3.connect(":memory:").close()
        sqlite3.connect(path.with_name("other.db")).close()
        store.close()
        with pytest.raises(StoreError, match="second SQLite"):
            sqlite3.connect(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM agentor_runs").fetchone() == (0,)
    connection.close()


def test_a_file_that_sqlite3_has_open_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="already has the file open"):
        SQLiteStore(path)
    connection.close()
    SQLiteStore(path).close()


def test_a_file_that_is_open_as_a_file_is_refused(path: Path) -> None:
    with path.open("w"), pytest.raises(StoreError, match="already has the file open"):
        SQLiteStore(path)
    SQLiteStore(path).close()


def test_tables_of_the_program_live_in_the_same_file_over_apsw(path: Path) -> None:
    mine = apsw.Connection(str(path))
    mine.set_busy_timeout(10_000)
    mine.execute("CREATE TABLE customers (name); INSERT INTO customers VALUES ('Ada')")
    with SQLiteStore(path) as store:
        store.append("run", Event("message", text="hi"))
        mine.execute("INSERT INTO customers VALUES ('Grace')")
        assert mine.execute("SELECT count(*) FROM agentor_events").get == 1
        assert store.integrity_check() == []
    mine.close()


def mounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    table = tmp_path / "mounts"
    table.write_bytes(os.fsencode(text))
    monkeypatch.setattr(sqlite_guard, "_MOUNTS", str(table))


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused_unless_asked_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts(monkeypatch, tmp_path, f"disk / ext4 rw 0 0\nserver:/x {path.parent} {kind} rw 0 0\n")
    with pytest.raises(StoreError, match=f"network file system .{kind}.*allow_network_filesystem"):
        SQLiteStore(path)
    assert not path.exists()
    SQLiteStore(path, allow_network_filesystem=True).close()


def test_the_innermost_mount_decides_and_the_last_one_at_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "with space"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    mounts(
        monkeypatch,
        tmp_path,
        f"s:/ {tmp_path} nfs rw 0 0\nd {escaped} nfs rw\nd {escaped} ext4 rw\n",
    )
    SQLiteStore(inner / "runs.db").close()
    with pytest.raises(StoreError):
        SQLiteStore(tmp_path / "runs.db")


NAMES = [
    "plain",
    "two  words",
    "a\\040b",
    "a\ttab",
    "line\nend",
    "mé",
    "m\udcff",
    "\x85",
    "#",
    "\\",
    "\r",
]


def escaped(path: Path) -> str:
    """As Linux writes a mount point in its table."""
    return "".join(f"\\{ord(each):03o}" if each in " \t\n\\#" else each for each in str(path))


@pytest.mark.parametrize("name", NAMES)
def test_a_mount_is_recognised_whatever_its_name_and_harms_nobody_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    inner = tmp_path / name
    lines = ["disk / nfs rw 0 0", f"d {escaped(tmp_path)} ext4 rw 0 0"]
    mounts(monkeypatch, tmp_path, "\n".join([*lines, f"d {escaped(inner)} nfs4 rw 0 0", ""]))
    SQLiteStore(tmp_path / "runs.db").close()
    assert sqlite_guard._file_system(str(inner / "runs.db")) == "nfs4"
    assert sqlite_guard._file_system(str(tmp_path / f"{name}x")) == "ext4"


def test_a_system_that_does_not_tell_its_mounts_is_trusted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_guard, "_MOUNTS", str(tmp_path / "missing"))
    SQLiteStore(path).close()


def test_a_file_with_a_second_name_is_refused_by_both_before_its_wal_is_touched(path: Path) -> None:
    SQLiteStore(path).close()
    other = path.with_name("other.db")
    other.hardlink_to(path)
    before = path.read_bytes(), sorted(path.parent.iterdir())
    for name in (path, other):
        for look in (SQLiteStore, lambda name: holds_runs(str(name))):
            with pytest.raises(StoreError, match=r"2 names.*Remove the other names.*copy the file"):
                look(name)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == before
    other.unlink()
    SQLiteStore(path).close()


def test_a_backup_whose_process_was_killed_before_it_took_the_scratch_name_away_can_be_opened(
    path: Path,
) -> None:
    with SQLiteStore(path) as store:
        store.append("run", Event("message"))
        copy = path.with_name("copy.db")
        store.backup(copy)
    scratch = copy.with_name(f".{copy.name}.0123.tmp")
    another = copy.with_name(f".{copy.name}.4567.tmp")
    scratch.hardlink_to(copy)
    another.write_text("of a process that is at work")
    with SQLiteStore(copy) as store:
        assert store.list_runs() == ["run"]
    assert (scratch.exists(), another.exists()) == (False, True)


def test_a_name_that_a_file_gets_while_it_is_open_is_refused_and_its_first_goes_on(
    path: Path,
) -> None:
    other = path.with_name("other.db")
    with SQLiteStore(path) as store:
        other.hardlink_to(path)
        with pytest.raises(StoreError, match="2 names"):
            SQLiteStore(other)
        store.append("run", Event("message"))
    other.unlink()
    with SQLiteStore(path) as store:
        assert store.list_runs() == ["run"]


def test_a_file_that_is_mounted_alone_is_refused_and_one_in_a_mounted_directory_is_not(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SQLiteStore(path).close()
    link = path.with_name("link.db")
    link.symlink_to(path)
    escaped = str(path).replace(" ", "\\040")
    mounts(monkeypatch, tmp_path, f"disk / ext4 rw 0 0\ndisk {escaped} ext4 rw 0 0\n")
    for name in (path, link):
        with pytest.raises(StoreError, match=r"itself is a mount point.*Mount the directory"):
            SQLiteStore(name, allow_network_filesystem=True)
    mounts(monkeypatch, tmp_path, f"disk / ext4 rw 0 0\ndisk {path.parent} ext4 rw 0 0\n")
    for name in (path, link):
        SQLiteStore(name).close()


def test_a_store_that_was_dropped_without_close_gives_the_file_back(path: Path) -> None:
    SQLiteStore(path).append("run", Event("message"))
    sqlite3.connect(path).close()
