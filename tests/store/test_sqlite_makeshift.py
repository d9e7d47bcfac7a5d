"""A file whose disk is full, or where nothing can be written, can be read all the same; and nothing is missing in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_children import Child

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore
from agentor.errors import StoreError

# No file can grow beyond this many bytes: as on a full disk, there is no room for -shm.
FULL_DISK = """
import resource
def fill(bytes_max=8192):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))
def make_space():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
def refused(act):
    try:
        act()
    except errors.StoreError as error:
        return str(error)
"""

ANYBODY = """
import tempfile
def be_nobody():
    with tempfile.TemporaryDirectory() as elsewhere:  # what is imported late, Python may not let nobody read
        with SQLiteStore(elsewhere + "/runs.db", check=True) as store:
            store.append("run", Event("message"))
            store.integrity_check()
            store.backup(elsewhere + "/copy.db")
    if os.getuid() == 0:  # who may write anywhere
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for directory in (path, *(each for each in path.rglob("*") if each.is_dir())):
        directory.chmod(0o755)
    shutil.rmtree(path)


def made(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append_many("run", [Event("run_start"), Event("message", text="1")])


def killed(path: Path) -> None:
    """The last event is in the WAL alone, as a killed process leaves it."""
    made(path)
    child = Child(
        """
        store = SQLiteStore(sys.argv[1])
        store.append("run", Event("message", text="2"))
        ready()
        """,
        path,
    )
    child.wait_until_ready()
    child.kill()
    path.with_name(f"{path.name}-shm").unlink()


def give_away(path: Path, mode: int, directory_mode: int) -> None:
    for each in (path.parent, *path.parent.iterdir()):
        if os.getuid() == 0:
            os.chown(each, 65534, 65534)
        each.chmod(mode)
    path.parent.chmod(directory_mode)


@pytest.mark.parametrize(("make", "events"), [(made, 2), (killed, 3)])
def test_on_a_full_disk_what_is_there_can_be_read_and_is_saved_again_when_there_is_space(
    tmp_path: Path, make: object, events: int
) -> None:
    path = tmp_path / "runs.db"
    assert callable(make)
    make(path)
    child = Child(
        FULL_DISK
        + """
from agentor.engine.store.sqlite_makeshift import holds_runs
fill()
say(holds_runs(sys.argv[1]))
with SQLiteStore(sys.argv[1], check=True) as store, SQLiteStore(sys.argv[1]) as second:
    say(len(store.load("run")), store.list_runs(), store.integrity_check(), len(second.load("run")))
    say(refused(lambda: store.append("run", Event("message"))))
    say(refused(lambda: store.delete("run")))
    say(len(list(store.tail("run", timeout=0))))
    make_space()
    store.append("run", Event("message"))
    say(len(store.load("run")), len(second.load("run")))
try:
    store.append("run", Event("message"))
except errors.StoreClosedError:
    say("closed")
""",
        path,
    )
    told = child.end().splitlines()
    assert told[:2] == ["True", f"{events} ['run'] [] {events}"]
    assert "the disk is full" in told[2]
    assert "the disk is full" in told[3]
    assert told[4:] == [f"{events}", f"{events + 1} {events + 1}", "closed"]
    with SQLiteStore(path) as store:
        assert len(store.load("run")) == events + 1


def test_a_new_run_on_a_full_disk_goes_on_and_says_how_much_is_unsaved(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    made(path)
    child = Child(
        FULL_DISK
        + """
from agentor import Agentor
from agentor.testing import ScriptedModel
fill()
with SQLiteStore(sys.argv[1]) as store:
    result = Agentor("A", model=ScriptedModel(["done"] * 2), store=store).run("go")
    say(result.status, result.unsaved, len(result.events))
""",
        path,
    )
    status, unsaved, events = child.end().split()
    assert (status, unsaved) == ("completed", events)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_in_a_directory_that_cannot_be_written_can_be_read(place: Path, mode: int) -> None:
    path = place / "media" / "runs.db"
    path.parent.mkdir()
    made(path)
    give_away(path, mode, 0o500)
    (place / "out").mkdir(mode=0o777)
    (place / "out").chmod(0o777)
    child = Child(
        FULL_DISK
        + ANYBODY
        + """
be_nobody()
from agentor.engine.store.sqlite_makeshift import holds_runs
say(holds_runs(sys.argv[1]))
with SQLiteStore(sys.argv[1], check=True) as store:
    say(len(store.load("run")), store.list_runs(), store.integrity_check())
    say(refused(lambda: store.append("run", Event("message"))))
    store.backup(sys.argv[2])
with SQLiteStore(sys.argv[2]) as copy:
    say(len(copy.load("run")))
""",
        path,
        place / "out" / "copy.db",
    )
    told = child.end().splitlines()
    assert told[:2] == ["True", "2 ['run'] []"]
    assert "nothing can be written where it lies" in told[2]
    assert told[3] == "2"
    assert [each.name for each in path.parent.iterdir()] == ["runs.db"]


@pytest.mark.parametrize(("mode", "told"), [(0o600, "3"), (0o400, "cannot be opened")])
def test_commits_that_are_still_in_the_wal_are_read_or_the_file_is_refused(
    place: Path, mode: int, told: str
) -> None:
    path = place / "media" / "runs.db"
    path.parent.mkdir()
    killed(path)
    give_away(path, mode, 0o500)
    child = Child(
        FULL_DISK
        + ANYBODY
        + """
be_nobody()
say(refused(lambda: say(len(SQLiteStore(sys.argv[1]).load("run")))))
""",
        path,
    )
    assert told in child.end()


def test_a_file_that_is_written_to_after_all_is_not_read_as_if_it_stood_still(place: Path) -> None:
    path = place / "media" / "runs.db"
    path.parent.mkdir()
    made(path)
    give_away(path, 0o600, 0o500)
    child = Child(
        FULL_DISK
        + ANYBODY
        + """
be_nobody()
store = SQLiteStore(sys.argv[1])
say(len(store.load("run")))
ready()
say(refused(lambda: store.load("run")))
store.append("run", Event("message", text="3"))
say(len(store.load("run")))
""",
        path,
    )
    assert child.line() == "2"
    child.wait_until_ready()
    path.parent.chmod(0o700)
    with SQLiteStore(path) as other:
        other.append("run", Event("message", text="2"))
    child.go()
    told = child.end().splitlines()
    assert "somebody writes there now" in told[0]
    assert told[1] == "4"


def test_a_directory_that_may_not_be_entered_is_a_store_error(place: Path) -> None:
    path = place / "shut" / "runs.db"
    path.parent.mkdir()
    made(path)
    give_away(path, 0o600, 0o600)
    child = Child(
        FULL_DISK
        + ANYBODY
        + """
from agentor.cli.stores import existing_store
from agentor.inputs import open_store
be_nobody()
for open_it in (SQLiteStore, open_store, lambda path: existing_store(path).__enter__()):
    say(refused(lambda: open_it(sys.argv[1])))
""",
        path,
    )
    for line in child.end().splitlines():
        assert "cannot be reached (Permission denied)" in line


def test_a_pipe_a_device_and_a_dangling_link_are_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "runs.db")
    for path, told in (
        (tmp_path / "pipe", "is a pipe, a device or a socket"),
        (Path("/dev/zero"), "is a pipe, a device or a socket"),
        (tmp_path / "link", "is a link that leads nowhere"),
    ):
        with pytest.raises(StoreError, match=told):
            SQLiteStore(path)


@pytest.mark.parametrize("name", ["runs\udcff.db", "runs\0.db", b"runs\xff.db"])
def test_a_name_that_sqlite_cannot_have_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, name: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="choose another path"):
        SQLiteStore(name)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with SQLiteStore("runs.db") as store:
        with pytest.raises(ValueError, match="choose another path"):
            store.backup(name)  # type: ignore[arg-type]
        assert {path.name for path in tmp_path.iterdir()} == {
            "runs.db",
            "runs.db-wal",
            "runs.db-shm",
        }


@pytest.mark.parametrize("companion", ["-wal", "-shm", "-journal"])
def test_a_store_is_not_made_of_what_sqlite_keeps_of_another(
    tmp_path: Path, companion: str
) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.append("run", Event("run_start"))
        before = {path.name: path.read_bytes() for path in tmp_path.glob("*-wal")}
        with pytest.raises(ValueError, match="SQLite itself uses this name"):
            SQLiteStore(tmp_path / f"runs.db{companion}")
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*-wal")} == before
        assert len(store.load("run")) == 1
