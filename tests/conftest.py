"""What holds for every test: the same examples each time, and no way to a real provider."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from agentor.engine import interrupts

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("repeatable")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script;
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children would inherit it
    for name in [n for n in os.environ if n.startswith(("OPENAI_", "AGENTOR_"))]:
        del os.environ[name]


@pytest.fixture(autouse=True)
def no_section_is_left() -> Iterator[None]:
    """Signals are not held back beyond a test: it would be its neighbours who are surprised."""
    yield
    main = interrupts._main
    left = main.is_in_section, main.is_open, dict(main.came)
    main.is_in_section, main.is_open = False, True
    main.came.clear()
    assert left == (False, True, {})
