"""Whoever is ended, and however: no process goes on with the user's tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentor.crashtest.processes import Processes
from agentor.testing import CrashtestFailedError, crashtest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc"),
]

SHOPS = Path(__file__).with_name("shops.py")


def lives(pid: int) -> bool:
    """Whether it does; one that is dead and that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(happens: Callable[[], bool]) -> None:
    """For what other processes do; the time limit of each test is the limit."""
    pause = threading.Event()
    while not happens():
        pause.wait(0.005)


@contextmanager
def crash_test_under_way(temporary: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """The program, while a tool that never returns runs; with the ids of its process and of another one that the
    tool has started in a session of its own."""
    command = [sys.executable, "-m", "agentor", "crashtest", f"{SHOPS}:waiting", "--input", "Wait."]
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as program:

        def written() -> list[Path]:
            assert program.poll() is None
            return list(temporary.glob("*/first/scratch/pids"))

        wait_until(lambda: bool(written()))
        pids = [int(pid) for pid in written()[0].read_text().split()]
        assert len(pids) == 2
        assert all(map(lives, pids))
        yield program, pids


def test_sigterm_ends_all_of_it_and_leaves_nothing(tmp_path: Path) -> None:
    with crash_test_under_way(tmp_path / "temporary") as (program, pids):
        program.terminate()
        _, told = program.communicate()
    assert program.returncode == 128 + signal.SIGTERM
    assert told.endswith(b"Broken off; no process of it is left.\n")
    assert told.count(b"\n") == 1
    assert not any(map(lives, pids))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_crash_test_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    with crash_test_under_way(tmp_path / "temporary") as (program, pids):
        program.kill()
        _, told = program.communicate()
    wait_until(lambda: not any(map(lives, pids)))
    assert told == b""


def test_a_process_does_not_outlive_the_program_that_forked_it(tmp_path: Path) -> None:
    with Processes(1) as processes, pytest.raises(CrashtestFailedError, match="has ended"):
        crashtest(f"{SHOPS}:murdering", "Hi.", processes=processes, keep=tmp_path)
    pid = int((tmp_path / "first" / "scratch" / "pids").read_text())
    wait_until(lambda: not lives(pid))


def test_what_a_tool_leaves_behind_ends_with_its_process(
    processes: Processes, tmp_path: Path
) -> None:
    crashtest(
        f"{SHOPS}:leaving", "Hi.", processes=processes, keep=tmp_path / "kept", at="after commit 1"
    )
    left = [each.read_text() for each in tmp_path.glob("kept/*/scratch/pids")]
    assert len(left) == 3
    assert not any(lives(int(pid)) for pids in left for pid in pids.split())


@pytest.mark.parametrize("used", [False, True])
def test_processes_that_have_been_ended_do_and_start_nothing_more(used: bool) -> None:
    ended = Processes(1)
    with ended:
        if used:
            crashtest(f"{SHOPS}:chatting", "Hi.", processes=ended)
    for _ in range(2):
        with pytest.raises(CrashtestFailedError, match="have been ended: run it inside"):
            crashtest(f"{SHOPS}:chatting", "Hi.", processes=ended)


def test_processes_that_are_ended_in_the_middle_of_a_crash_test_say_so(tmp_path: Path) -> None:
    shared, told = Processes(1), list[BaseException]()

    def ask() -> None:
        try:
            crashtest(f"{SHOPS}:waiting", "Wait.", processes=shared, keep=tmp_path)
        except BaseException as error:
            told.append(error)

    asking = threading.Thread(target=ask)
    with shared:
        asking.start()
        wait_until(lambda: bool(list(tmp_path.glob("**/scratch/pids"))))
    asking.join(60)
    assert [type(error) for error in told] == [CrashtestFailedError]
    assert "have been ended" in str(told[0])
