"""Tools for testing agents: a scripted model, a strict fake server, and a checker of requests.

Names are loaded when they are used, so a test that needs one of them does not pay for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentor.testing.answers import Answer, calls, says
    from agentor.testing.checker import check_messages, check_request
    from agentor.testing.scripted import ScriptedModel, ScriptedRequest

_HOMES = {
    "Answer": "answers",
    "ScriptedModel": "scripted",
    "ScriptedRequest": "scripted",
    "calls": "answers",
    "check_messages": "checker",
    "check_request": "checker",
    "says": "answers",
}

__all__ = [
    "Answer",
    "ScriptedModel",
    "ScriptedRequest",
    "calls",
    "check_messages",
    "check_request",
    "says",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
