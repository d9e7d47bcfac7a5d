"""What a killed process leaves on a full disk can be read: nobody needs space for what is there already."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_children import Child
from store_disks import FaultyDisk

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, sqlite_guard, sqlite_makeshift, sqlite_room
from agentor.engine.store.sqlite_makeshift import holds_runs
from agentor.errors import StoreError

COMMITS = 30

# Writes until it is told to, then takes what is left of the disk, and waits to be killed.
WRITES_AND_FILLS = f"""
store = SQLiteStore(sys.argv[1])
for number in range({COMMITS}):
    store.append("run", Event("message", text=f"{{number}}" + "x" * 8000))
with open(sys.argv[2], "wb", buffering=0) as rest:
    for size in (65536, 512):
        try:
            while True:
                rest.write(b"x" * size)
                os.fsync(rest)
        except OSError:
            pass
ready()
"""

READS = """
from agentor.engine.store.sqlite_makeshift import holds_runs
say(holds_runs(sys.argv[1]))
with SQLiteStore(sys.argv[1], check=True) as store:
    say(len(store.load("run")), store.list_runs(), store.integrity_check(), len(list(store.tail("run", timeout=0))))
    try:
        store.append("run", Event("message", text="x" * 8000))
    except errors.StoreError as error:
        say("the disk is full" in str(error))
    store.backup(sys.argv[2])
with SQLiteStore(sys.argv[2]) as copy:
    say(len(copy.load("run")))
"""

# The disk has small blocks and is full, as far as the system tells.
SMALL_BLOCKS = """
import errno, tempfile
there, real = os.path.dirname(sys.argv[1]), (os.statvfs, tempfile.TemporaryFile)
def no_room(**where):
    if where["dir"] == there:
        raise OSError(errno.ENOSPC, "no room")
    return real[1](**where)
os.statvfs = lambda path: os.statvfs_result((1024, 1024) + (0,) * 8) if path == there else real[0](path)
tempfile.TemporaryFile = no_room
"""


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk("filling")
    yield disk
    disk.unregister()


def mounted(where: Path, command: list[str]) -> None:
    where.mkdir()
    try:
        done = subprocess.run([*command, str(where)], capture_output=True, timeout=60)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    if done.returncode:
        pytest.skip("no file system can be mounted here")


def in_memory(directory: Path) -> Path:
    mounted(directory / "disk", ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs"])
    return directory / "disk"


def of_blocks(size: int) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        image = directory / "image"
        with open(image, "wb") as file:
            file.truncate(8 * 1024 * 1024)
        format_it = ["mkfs.ext4", "-q", "-b", str(size), "-m", "0", str(image)]
        try:
            subprocess.run(format_it, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(str(error))
        mounted(directory / "disk", ["mount", "-o", "loop", str(image)])
        return directory / "disk"

    return make


@pytest.fixture(params=[in_memory, of_blocks(4096), of_blocks(1024)], ids=["tmpfs", "4k", "1k"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes of its own; skipped where none can be had."""
    if os.getuid():
        pytest.skip("only root can mount")
    disk = request.param(tmp_path)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=60)


def test_a_killed_process_that_has_filled_its_disk_leaves_all_that_was_saved_to_be_read(
    small_disk: Path, tmp_path: Path
) -> None:
    path, rest = small_disk / "runs.db", small_disk / "rest"
    child = Child(WRITES_AND_FILLS, path, rest)
    child.wait_until_ready()
    beside = Child(READS, path, tmp_path / "beside.db").end()
    child.kill()
    after = Child(READS, path, tmp_path / "after.db").end()
    told = [f"{COMMITS} ['run'] [] {COMMITS}", "True", f"{COMMITS}"]
    assert beside.splitlines() == after.splitlines() == ["True", *told]
    rest.unlink()
    with SQLiteStore(path) as store:
        store.append("run", Event("message"))
        assert len(store.load("run")) == COMMITS + 1


def abandoned(path: Path) -> None:
    """As a killed process leaves it: what was saved is in the WAL alone."""
    store = SQLiteStore(path, vfs="filling")
    store.append_many("run", [Event("run_start"), Event("message", text="x" * 50_000)])
    store._finalizer.detach()
    store._readers.abandon()
    store._writer.abandon()
    sqlite_guard.closed(store._identity)


@pytest.mark.parametrize(
    ("fault", "told"),
    [("is_full", "the disk is full"), ("is_broken", "the disk refuses what is written")],
)
@pytest.mark.parametrize("check", [False, True])
def test_a_wal_that_cannot_be_brought_into_the_file_is_read_and_saved_to_when_that_works(
    disk: FaultyDisk, tmp_path: Path, fault: str, told: str, check: bool
) -> None:
    path = tmp_path / "runs.db"
    abandoned(path)
    setattr(disk, fault, True)
    with SQLiteStore(path, vfs="filling", check=check) as store:
        assert len(store.load("run")) == 2
        assert store.list_runs() == ["run"]
        assert store.integrity_check() == []
        for _ in range(2):
            with pytest.raises(StoreError, match=told):
                store.append("run", Event("message", text="3"))
        assert len(store.load("run")) == 2
        setattr(disk, fault, False)
        store.append("run", Event("message", text="3"))
        assert len(store.load("run")) == 3
    with SQLiteStore(path) as store:
        assert len(store.load("run")) == 3
        assert store.integrity_check() == []


def test_what_no_sync_has_brought_to_the_disk_is_not_shown_by_who_finds_it(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    abandoned(tmp_path / "runs.db")
    disk.cannot_sync = True
    with pytest.raises(StoreError, match="the disk failed"):
        SQLiteStore(tmp_path / "runs.db", vfs="filling")


def test_tables_of_an_older_version_on_a_full_disk_are_refused_by_name(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path, vfs="filling")
    store._write(lambda db: db.execute("UPDATE agentor_schema SET version = 1").get)
    store._finalizer.detach()
    store._readers.abandon()
    store._writer.abandon()
    sqlite_guard.closed(store._identity)
    disk.is_full = True
    with pytest.raises(StoreError, match="have to be lifted"):
        SQLiteStore(path, vfs="filling")


@pytest.mark.parametrize("others", [False, True])
def test_where_sqlite_would_not_notice_that_there_is_no_room_it_is_not_let_to_make_an_index(
    tmp_path: Path, others: bool
) -> None:
    path = tmp_path / "place" / "runs.db"
    path.parent.mkdir()
    child = Child(WRITES_AND_FILLS, path, "/dev/full")
    child.wait_until_ready()
    if not others:
        child.kill()
        path.with_name("runs.db-shm").unlink()
    reader = Child(
        SMALL_BLOCKS
        + READS
        + "say(os.path.exists(sys.argv[1] + '-shm'))\n"
        + "tempfile.TemporaryFile = real[1]\n"
        + "with SQLiteStore(sys.argv[1]) as store: store.append('run', Event('message')); say(len(store.load('run')))\n",
        path,
        tmp_path / "copy.db",
    )
    told = [f"{COMMITS} ['run'] [] {COMMITS}", "True", f"{COMMITS}", f"{others}", f"{COMMITS + 1}"]
    assert reader.end().splitlines() == ["True", *told]
    if others:
        child.go()
        child.end()


def test_a_second_store_of_a_process_reads_beside_the_first_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(tmp_path / "runs.db") as first:
        first.append("run", Event("message"))
        monkeypatch.setattr(sqlite_makeshift, "has_room", lambda path: False)
        monkeypatch.setattr(sqlite_room, "has_room", lambda path: False)
        with SQLiteStore(tmp_path / "runs.db") as second:
            assert holds_runs(str(tmp_path / "runs.db"))
            first.append("run", Event("message"))
            assert len(second.load("run")) == 2
            with pytest.raises(StoreError, match="the disk is full"):
                second.append("run", Event("message"))
