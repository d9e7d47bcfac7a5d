"""A clock for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from standing_clock import StandingClock

from agentor.engine import clock


@pytest.fixture
def standing() -> Iterator[StandingClock]:
    standing = StandingClock()
    with clock.installed(standing):
        yield standing
