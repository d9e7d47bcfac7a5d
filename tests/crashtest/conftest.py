"""Processes that all crash tests share: to start them takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentor.crashtest.processes import Processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    with Processes(2) as shared:
        yield shared
