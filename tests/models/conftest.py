"""What the tests of models share: a clock that waits for nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from model_asking import InstantClock

from agentor.engine import clock


@pytest.fixture(autouse=True)
def instant_clock() -> Iterator[InstantClock]:
    with clock.installed(InstantClock()) as installed:
        yield installed
