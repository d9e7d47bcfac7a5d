"""The crash test as a fixture of pytest's: all that use it share their processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from agentor.crashtest.crashing import crashtest
from agentor.crashtest.processes import Processes
from agentor.crashtest.report import Report


@pytest.fixture(name="crashtest", scope="session")
def crashtest_fixture() -> Iterator[Callable[..., Report]]:
    """`crashtest(target, input, ...)`, with processes that last as long as the tests do.

        from agentor.testing import crashtest_fixture  # in conftest.py; a test then takes `crashtest`

    They have the working directory and the environment of the first test that needs them.
    """
    with Processes() as shared:
        yield functools.partial(crashtest, processes=shared)
