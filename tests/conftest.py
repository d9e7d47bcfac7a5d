"""What holds for every test: the same examples each time, and no way to a real provider."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("repeatable")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script;
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children would inherit it
    for name in [n for n in os.environ if n.startswith(("OPENAI_", "AGENTOR_"))]:
        del os.environ[name]
