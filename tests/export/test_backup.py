"""`SQLiteStore.backup`: the file as of one moment, while others write to it; whole, or not at all."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, sqlite_backup
from agentor.engine.store.whole_file import whole_file
from agentor.errors import ConfigError, StoreError
from tests.store.store_children import Child
from tests.store.store_disks import FaultyDisk


def said(text: str, seq: int | None = None) -> Event:
    return Event("message", text=text, seq=seq)


def fill(store: SQLiteStore, run_id: str = "run", events: int = 30) -> None:
    store.append_many(run_id, [said("x" * 2000) for _ in range(events)])


def once(action: Callable[[], None]) -> Callable[[int, int], None]:
    """A progress that does something in the middle of the copy, one time."""
    done: list[int] = []

    def progress(copied: int, total: int) -> None:
        if not done and copied < total:
            done.append(copied)
            action()

    return progress


@pytest.fixture
def page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_backup, "_PAGES_PER_STEP", 1)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk("failing-while-copied")
    yield disk
    disk.unregister()


def write(path: Path, text: str) -> None:
    path.write_text(text)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"runs.db", "runs.db-wal", "runs.db-shm"}


def test_a_backup_is_a_store_like_the_original(database: SQLiteStore, tmp_path: Path) -> None:
    fill(database, "one")
    database.fork("one", "two", at=5, event=Event("fork", forked_from="one"))
    database.backup(tmp_path / "copy.db")
    with SQLiteStore(tmp_path / "copy.db") as copy:
        assert copy.list_runs() == ["one", "two"]
        for run_id in ("one", "two"):
            assert copy.load(run_id) == database.load(run_id)
        assert copy.integrity_check() == []
        copy.append("two", said("it can be written to"))
    assert names(tmp_path) == {"copy.db"}


def test_a_backup_is_for_its_owner_only(database: SQLiteStore, tmp_path: Path) -> None:
    database.backup(tmp_path / "copy.db")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


@pytest.mark.usefixtures("page_by_page")
def test_a_backup_is_the_file_as_it_was_when_it_began_whatever_is_written_meanwhile(
    database: SQLiteStore, tmp_path: Path
) -> None:
    fill(database)
    before = database.load("run")
    database.backup(tmp_path / "copy.db", once(lambda: fill(database, events=50)))
    assert len(database.load("run")) == 80
    with SQLiteStore(tmp_path / "copy.db") as copy:
        assert copy.load("run") == before


@pytest.mark.usefixtures("page_by_page")
def test_progress_rises_to_the_number_of_pages(database: SQLiteStore, tmp_path: Path) -> None:
    fill(database)
    told: list[tuple[int, int]] = []
    database.backup(tmp_path / "copy.db", lambda done, total: told.append((done, total)))
    total = told[0][1]
    assert told == [(page, total) for page in range(1, total + 1)]


def test_a_backup_never_replaces_a_file(database: SQLiteStore, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for taken in ("notes", "runs.db"):
        with pytest.raises(ConfigError, match="exists already"):
            database.backup(tmp_path / taken)
    assert (tmp_path / "notes").read_text() == "mine"
    assert names(tmp_path) == {"notes"}


def test_a_file_that_comes_while_copying_is_not_replaced_either(
    database: SQLiteStore, tmp_path: Path, page_by_page: None
) -> None:
    fill(database)
    copy = tmp_path / "copy.db"
    with pytest.raises(ConfigError, match="exists already"):
        database.backup(copy, once(lambda: write(copy, "mine")))
    assert copy.read_text() == "mine"
    assert names(tmp_path) == {"copy.db"}


@pytest.mark.parametrize("companion", ["-wal", "-shm", "-journal"])
def test_a_name_that_sqlite_itself_uses_is_refused(
    database: SQLiteStore, tmp_path: Path, companion: str
) -> None:
    with pytest.raises(ConfigError, match="SQLite itself uses this name"):
        database.backup(tmp_path / f"runs.db{companion}")


def test_a_place_that_is_not_there_is_named(database: SQLiteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"copy\.db: No such file or directory"):
        database.backup(tmp_path / "missing" / "copy.db")
    with pytest.raises(ConfigError, match="is a directory"):
        database.backup(tmp_path)


@pytest.mark.usefixtures("page_by_page")
@pytest.mark.parametrize("fault", ["is_full", "is_broken"])
def test_a_disk_that_fails_while_copying_leaves_nothing_behind_and_the_store_well(
    disk: FaultyDisk, tmp_path: Path, fault: str
) -> None:
    with SQLiteStore(tmp_path / "runs.db", vfs="failing-while-copied") as store:
        fill(store)
        with pytest.raises(StoreError, match=r"copy\.db: the disk"):
            store.backup(tmp_path / "copy.db", once(lambda: setattr(disk, fault, True)))
        assert names(tmp_path) == set()
        setattr(disk, fault, False)
        fill(store)
        store.backup(tmp_path / "copy.db")
        with SQLiteStore(tmp_path / "copy.db") as copy:
            assert copy.load("run") == store.load("run")


def test_an_interrupted_backup_leaves_nothing_behind(database: SQLiteStore, tmp_path: Path) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    fill(database)
    with pytest.raises(KeyboardInterrupt):
        database.backup(tmp_path / "copy.db", interrupt)
    assert names(tmp_path) == set()
    assert len(database.load("run")) == 30


def test_a_closed_store_makes_no_backup(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.backup(tmp_path / "copy.db")
    assert names(tmp_path) == set()


APPENDING = """
from pathlib import Path
path, stop, own = sys.argv[1:]
with SQLiteStore(path) as store:
    ready()
    seq = 0
    while not Path(stop).exists():
        seq += 1
        store.append(own, Event("message", text=own * 300, seq=seq))
        store.append("shared", Event("message", text=own * 300))
"""


@pytest.mark.slow
def test_each_backup_taken_while_two_processes_append_is_whole_and_a_prefix_of_each_run(
    tmp_path: Path, page_by_page: None
) -> None:
    path, stop = tmp_path / "runs.db", tmp_path / "stop"
    with SQLiteStore(path) as store:
        children = [Child(APPENDING, path, stop, own) for own in ("a", "b")]
        for child in children:
            child.wait_until_ready()
        for child in children:
            child.go()
        while set(store.list_runs()) != {"a", "b", "shared"}:
            pass
        lengths = [
            backed_up_while_others_append(store, tmp_path / f"{each}.db") for each in range(6)
        ]
        stop.touch()
        for child in children:
            child.end()
        assert lengths == sorted(lengths)
        assert lengths[0] < lengths[-1]
        for each in range(6):
            check_prefix(tmp_path / f"{each}.db", store)


def backed_up_while_others_append(store: SQLiteStore, path: Path) -> int:
    """Take a backup that is not over before the others have written more; the events in all when it began."""
    began = store.counts()["events"]

    def wait_for_more() -> None:
        while store.counts()["events"] < began + 20:
            pass

    store.backup(path, once(wait_for_more))
    return began


def check_prefix(path: Path, store: SQLiteStore) -> None:
    with SQLiteStore(path) as copy:
        assert copy.integrity_check() == []
        for run_id in ("a", "b", "shared"):
            events = copy.load(run_id)
            assert events == store.load(run_id)[: len(events)]


def test_a_whole_file_needs_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    with whole_file(tmp_path / "file") as scratch:
        scratch.write_text("content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "content"
    with pytest.raises(ConfigError), whole_file(tmp_path / "file"):
        pass


def test_a_whole_file_that_fails_half_way_leaves_the_earlier_one(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with whole_file(path, replace=True) as scratch:
            scratch.write_text("half")
            raise RuntimeError

    path = tmp_path / "file"
    path.write_text("earlier")
    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "earlier"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
