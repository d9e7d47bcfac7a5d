"""Somebody deletes, replaces or overwrites a file of a live SQLiteStore: nothing acknowledged is lost without a word."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from store_children import Child

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore
from agentor.errors import StoreError

WRITER = """
store = SQLiteStore(sys.argv[1])
for number in range(50):
    store.append("run", Event("message", text=str(number)))
ready()
acknowledged = 50
try:
    for number in range(50):
        store.append("run", Event("message", text=str(number)))
        acknowledged += 1
except errors.StoreError as error:
    say(acknowledged, error)
else:
    say(acknowledged, "and no error")
sys.stdin.readline()
"""


def said(text: str) -> Event:
    return Event("message", text=text)


def companion(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def delete(*suffixes: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        for suffix in suffixes:
            companion(path, suffix).unlink()

    return act


def replace(suffix: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        other = path.with_name("other")
        shutil.copy(companion(path, suffix), other)
        os.replace(other, companion(path, suffix))

    return act


def overwrite(content: bytes) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        path.write_bytes(content)  # the same inode, as `cp` does it

    return act


@pytest.mark.parametrize(
    "harm",
    [delete("-wal"), delete("-shm"), delete("-wal", "-shm"), replace("-shm")],
    ids=["wal", "shm", "both", "another shm"],
)
def test_what_was_acknowledged_before_wal_or_shm_was_taken_away_outlives_a_kill(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "runs.db"
    child = Child(WRITER, path)
    child.wait_until_ready()
    harm(path)
    child.go()
    acknowledged, _, told = child.line().partition(" ")
    child.kill()
    assert "deleted or replaced while the store was open" in told
    with SQLiteStore(path) as store:
        assert len(store.load("run")) >= int(acknowledged) == 50
        assert store.integrity_check() == []


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (delete("-wal"), r"runs\.db-wal: .*deleted or replaced"),
        (replace("-wal"), r"runs\.db-wal: .*deleted or replaced"),
        (delete("-shm"), r"runs\.db-shm: .*deleted or replaced"),
        (delete(""), r"runs\.db: the file was deleted or replaced"),
        (replace(""), r"runs\.db: the file was deleted or replaced"),
        (overwrite(b""), r"runs\.db: the file was emptied"),
        (overwrite(b"something else\n" * 1000), r"runs\.db: the file was overwritten"),
    ],
)
def test_nothing_is_saved_to_files_that_are_no_longer_the_stores(
    tmp_path: Path, harm: Callable[[Path], None], told: str
) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        store.append("run", said("1"))
        harm(path)
        for _ in range(2):
            with pytest.raises(StoreError, match=told):
                store.append("run", said("2"))
            with pytest.raises(StoreError, match=told):
                store.load("run")


def test_a_reader_tells_of_a_deleted_wal_and_sees_to_it_that_nothing_is_lost(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    child = Child(
        """
        store = SQLiteStore(sys.argv[1])
        store.append("run", Event("message", text="1"))
        ready()
        for act in (lambda: store.load("run"), lambda: store.append("run", Event("message"))):
            try:
                act()
            except errors.StoreError as error:
                say(error)
        sys.stdin.readline()
        """,
        path,
    )
    child.wait_until_ready()
    companion(path, "-wal").unlink()
    child.go()
    assert "deleted or replaced" in child.line()
    assert "deleted or replaced" in child.line()
    child.kill()
    with SQLiteStore(path) as store:
        assert [event.text for event in store.load("run")] == ["1"]


def test_an_older_copy_written_over_the_live_file_is_noticed_at_the_next_commit(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "runs.db", tmp_path / "copy.db"
    with SQLiteStore(path) as store:
        for number in range(100):
            store.append(f"a{number}", said("x" * 500))
        store.backup(copy)
        for number in range(400):  # the WAL is folded into the file meanwhile
            store.append(f"b{number}", said("x" * 500))
        path.write_bytes(copy.read_bytes())
        with pytest.raises(StoreError, match="overwritten"):
            store.append("run", said("1"))
        with pytest.raises(StoreError, match="overwritten"):
            store.counts()


def test_whoever_opens_a_store_whose_wal_was_taken_away_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    child = Child(WRITER, path)
    child.wait_until_ready()
    companion(path, "-wal").unlink()
    with pytest.raises(StoreError, match="close it in every process"):
        SQLiteStore(path)
    child.go()
    assert child.line().startswith("50 ")
    child.kill()
    for name in ("-wal", "-shm"):
        companion(path, name).unlink(missing_ok=True)
    with SQLiteStore(path) as store:
        assert len(store.load("run")) == 50
        assert store.integrity_check() == []


def test_other_processes_may_come_and_go_and_nothing_is_taken_for_lost(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        for number in range(3):
            store.append("ours", said("x"))
            child = Child(
                """
                with SQLiteStore(sys.argv[1]) as store:
                    for number in range(300):  # enough to fold the WAL
                        store.append("theirs", Event("message", text="x" * 20_000))
                    store.delete("theirs")
                """,
                path,
            )
            child.end()
            other = apsw.Connection(str(path))
            other.execute("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")
            other.close()
            assert len(store.load("ours")) == number + 1


def test_a_closed_store_says_that_it_is_closed_and_not_that_its_files_are_gone(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    store.append("run", said("1"))
    store.close()
    for act in (lambda: store.load("run"), lambda: store.append("run", said("2"))):
        with pytest.raises(StoreError, match="this store is closed"):
            act()
