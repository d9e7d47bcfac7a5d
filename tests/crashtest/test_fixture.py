"""The fixture for users: a conftest that imports it gives every test `crashtest`, and all the same processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import ConfigError
from agentor.crashtest import processes
from agentor.crashtest.report import Report
from agentor.testing import Processes, crashtest_fixture  # noqa: F401  # as a user's conftest does
from agentor.testing import crashtest as crash

SHOPS = Path(__file__).with_name("shops.py")
pytestmark = pytest.mark.slow


def test_a_test_that_takes_crashtest_needs_no_more(crashtest: Callable[..., Report]) -> None:
    crashtest(f"{SHOPS}:chatting", "Hi.", at="after commit 1").assert_safe()


SHARED: list[object] = []  # one test's processes, kept for the other


@pytest.mark.parametrize("number", [1, 2])
def test_all_tests_share_their_processes(number: int, crashtest: Callable[..., Report]) -> None:
    SHARED.append(crashtest.keywords["processes"])  # type: ignore[attr-defined]
    assert all(one is SHARED[0] for one in SHARED)


def test_a_crash_test_that_is_broken_off_does_not_spoil_the_next_one_with_the_same_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, breaks = processes._asked, iter([True])

    def interrupted(server: subprocess.Popen[str], line: str) -> str:
        if next(breaks, False):
            assert server.stdin is not None
            server.stdin.write(f"{line}\n")
            server.stdin.flush()
            raise TimeoutError  # before the answer was read
        return ask(server, line)

    monkeypatch.setattr(processes, "_asked", interrupted)
    with Processes(1) as shared:
        with pytest.raises(TimeoutError):
            crash(f"{SHOPS}:chatting", "Hi.", at="after commit 1", processes=shared)
        crash(f"{SHOPS}:chatting", "Hi.", at="after commit 1", processes=shared).assert_safe()


@pytest.mark.parametrize("jobs", [0, -1, 10**9, "2"])
def test_a_number_of_processes_that_cannot_be_is_refused(jobs: Any) -> None:
    with pytest.raises(ConfigError, match="jobs is a number of processes"):
        Processes(jobs)


def test_what_is_said_beside_shared_processes_is_not_ignored() -> None:
    with Processes(1) as shared, pytest.raises(ConfigError, match="jobs is a matter"):
        crash(f"{SHOPS}:chatting", "Hi.", jobs=2, processes=shared)
    with pytest.raises(ConfigError, match="processes is what"):
        crash(f"{SHOPS}:chatting", "Hi.", processes=2)  # type: ignore[arg-type]
