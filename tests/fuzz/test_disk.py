"""The faulty disk: what it does to files, and what a store on it survives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from fuzz import disk_cases
from fuzz.disk import SECTOR, Disk, DiskVFS, Fault, Survival
from fuzz.disk_cases import Case


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk("test")
    vfs = DiskVFS(f"test-{tmp_path.name}", disk)
    yield disk
    vfs.unregister()


def connect(disk: Disk, path: Path, synchronous: str = "FULL") -> apsw.Connection:
    connection = apsw.Connection(str(path / "file.db"), vfs=disk.vfs_name)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("journal_mode", "WAL")
    connection.pragma("synchronous", synchronous)
    return connection


def ten_commits(disk: Disk, path: Path, synchronous: str, survival: Survival) -> int:
    """How many of ten commits are there after a power cut."""
    connection = connect(disk, path, synchronous)
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(10):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    disk.cut_power()
    connection.close()
    disk.restore(survival)
    connection = connect(disk, path)
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    found: int = connection.execute("SELECT count(*) FROM t").get
    connection.close()
    return found


@pytest.mark.parametrize(
    ("synchronous", "survival", "kept"),
    [("FULL", "lost", 10), ("FULL", "mixed", 10), ("NORMAL", "lost", 0), ("NORMAL", "kept", 10)],
)
def test_a_power_cut_takes_what_was_not_synced(
    disk: Disk, tmp_path: Path, synchronous: str, survival: Survival, kept: int
) -> None:
    assert ten_commits(disk, tmp_path, synchronous, survival) == kept


def test_a_new_file_is_gone_when_its_directory_entry_was_not_synced(
    disk: Disk, tmp_path: Path
) -> None:
    connection = apsw.Connection(str(tmp_path / "file.db"), vfs=disk.vfs_name)
    connection.pragma("synchronous", "OFF")
    connection.execute("CREATE TABLE t (n)")
    disk.cut_power()
    connection.close()
    disk.restore("lost")
    assert list(tmp_path.iterdir()) == []


def test_a_torn_write_keeps_whole_sectors(disk: Disk, tmp_path: Path) -> None:
    connection = connect(disk, tmp_path, "OFF")
    connection.execute("CREATE TABLE t (n)")
    before = (tmp_path / "file.db-wal").stat().st_size
    disk.cut_power()
    connection.close()
    disk.restore("torn")
    after = (tmp_path / "file.db-wal").stat().st_size
    assert after < before
    assert (before - after) % SECTOR == 0


def test_a_full_disk_refuses_what_grows_a_file_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    connection = connect(disk, tmp_path)
    connection.execute("CREATE TABLE t (n)")
    disk.full = True
    with pytest.raises(apsw.FullError):
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    disk.full = False
    connection.execute("INSERT INTO t VALUES (1)")
    assert connection.execute("SELECT count(*) FROM t").get == 1
    connection.close()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("write", "error", 1), apsw.IOError),
        (Fault("write", "full", 1), apsw.FullError),
        (Fault("sync", "error", 1), apsw.IOError),
        (Fault("read", "error", 1), apsw.IOError),
    ],
    ids=lambda value: getattr(value, "effect", value.__name__ if isinstance(value, type) else ""),
)
def test_a_planned_fault_happens_once_at_its_call(
    disk: Disk, tmp_path: Path, fault: Fault, error: type[Exception]
) -> None:
    connection = connect(disk, tmp_path)
    connection.execute("CREATE TABLE t (n)")
    connection.close()
    connection = connect(disk, tmp_path)
    at = disk.calls[fault.call] + 1
    disk.plan = Fault(fault.call, fault.effect, at)
    with pytest.raises(error):
        connection.execute("INSERT INTO t SELECT n FROM t UNION SELECT 1")
    connection.execute("INSERT INTO t VALUES (2)")
    assert disk.faults == {f"{fault.call} {fault.effect}": 1}
    connection.close()


# The script with a fault at every call -----------------------------------------------------------------------------

# Calls of these kinds are so many that the test visits every fourth; `python -m fuzz --disk` visits all.
STEPS = {"write": 4, "read": 4, "sync": 2}
OFFSETS = {"lost": 0, "kept": 1, "torn": 2, "mixed": 3}


def test_the_script_ends_unharmed_without_faults() -> None:
    visit = disk_cases.visit(Case("delete", "error"), 1_000)
    assert not visit.happened
    assert visit.breaches == ()
    assert visit.outcome.counts["tool starts"] >= 5
    assert visit.outcome.counts["forks"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", disk_cases.ALL, ids=str)
def test_the_store_survives_a_fault_at_any_call_of_the_disk(case: Case) -> None:
    step = STEPS.get(case.call, 1)
    first = 1 + OFFSETS[case.survival] % step
    visits = list(disk_cases.visits(case, first, step))
    assert [(visit.at, str(visit.breaches[0])) for visit in visits if visit.breaches] == []
    assert not visits[-1].happened
    assert all(visit.happened for visit in visits[:-1])


def test_the_alarm_rings_when_commits_are_not_synced() -> None:
    case = Case("write", "power", "lost")
    visits = disk_cases.visits(case, 60, 10, {"synchronous": "NORMAL"})
    broken = {breach.invariant for visit in visits for breach in visit.breaches}
    assert "acknowledged_appends_survive" in broken
