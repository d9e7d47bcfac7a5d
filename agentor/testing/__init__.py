"""Tools for testing agents: a scripted model, a strict fake server, a checker of requests.

    ScriptedModel    replies from a list, in the process; no network
    FakeServer       the same over HTTP, for the real client, able to fail in every way (see `faults`)
    says, calls      what the model is to answer, for both
    check_request    every breach in a chat-completions request, in words
    crashtest        kills an agent at every commit, resumes it, and says what is not as it was; as a fixture of pytest's
                     it is `crashtest_fixture`, and what several can share `Processes`
    StoreContract    the tests that every store has to pass, your own included

Names are loaded when they are used, so a test that needs one of them does not pay for all. `StoreContract` and
`crashtest_fixture` need pytest; the others do without.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentor.crashtest.crashing import crashtest
    from agentor.crashtest.fixture import crashtest_fixture
    from agentor.crashtest.processes import CrashtestFailedError, Processes
    from agentor.testing import faults
    from agentor.testing.answers import Answer, calls, says
    from agentor.testing.checker import check_messages, check_request
    from agentor.testing.completions import Request, chunk, deltas
    from agentor.testing.replies import Ending, Gate, Reply, error, json_reply, sse
    from agentor.testing.scripted import ScriptedModel, ScriptedRequest
    from agentor.testing.server import FakeServer
    from agentor.testing.store_contract import StoreContract

_NAMES_BY_MODULE = {
    "answers": ("Answer", "calls", "says"),
    "checker": ("check_messages", "check_request"),
    ".crashtest.crashing": ("crashtest",),
    ".crashtest.fixture": ("crashtest_fixture",),
    ".crashtest.processes": ("CrashtestFailedError", "Processes"),
    "completions": ("Request", "chunk", "deltas"),
    "replies": ("Ending", "Gate", "Reply", "error", "json_reply", "sse"),
    "scripted": ("ScriptedModel", "ScriptedRequest"),
    "server": ("FakeServer",),
    "store_contract": ("StoreContract",),
}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "Answer",
    "CrashtestFailedError",
    "Ending",
    "FakeServer",
    "Gate",
    "Processes",
    "Reply",
    "Request",
    "ScriptedModel",
    "ScriptedRequest",
    "StoreContract",
    "calls",
    "check_messages",
    "check_request",
    "chunk",
    "crashtest",
    "crashtest_fixture",
    "deltas",
    "error",
    "faults",
    "json_reply",
    "says",
    "sse",
]

_FOR_PYTEST = ("StoreContract", "crashtest_fixture")
if importlib.util.find_spec("pytest") is None:
    for each in _FOR_PYTEST:
        __all__.remove(each)  # what `import *` brings has to be there

_WITH_ASSERTS = (
    "store_contract",
    "contract",
    *(f"contract_{part}" for part in ("deleting", "offers", "tailing")),
)
if pytest := sys.modules.get("pytest"):
    # Before any of them is loaded: else a failing assert would not show its values.
    pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _WITH_ASSERTS))


def __getattr__(name: str) -> Any:
    if name == "faults":
        return importlib.import_module(f"{__name__}.faults")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        told = f"agentor.testing.{name} is for pytest, which is not installed: pip install pytest"
        raise ModuleNotFoundError(told, name="pytest") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
