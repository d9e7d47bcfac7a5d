"""The fixture for users: a conftest that imports it gives every test `crashtest`, and all the same processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentor.crashtest.report import Report
from agentor.testing import crashtest_fixture  # noqa: F401  # as a user's conftest does

SHOPS = Path(__file__).with_name("shops.py")
pytestmark = pytest.mark.slow


def test_a_test_that_takes_crashtest_needs_no_more(crashtest: Callable[..., Report]) -> None:
    crashtest(f"{SHOPS}:chatting", "Hi.", at="after commit 1").assert_safe()


SHARED: list[object] = []  # one test's processes, kept for the other


@pytest.mark.parametrize("number", [1, 2])
def test_all_tests_share_their_processes(number: int, crashtest: Callable[..., Report]) -> None:
    SHARED.append(crashtest.keywords["processes"])  # type: ignore[attr-defined]
    assert all(one is SHARED[0] for one in SHARED)
