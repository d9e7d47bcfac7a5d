"""agentor: agents whose runs survive the process.

Every step of a run is written, as it happens, into one SQLite file (or a store of your own). Another process that knows
only the run's id resumes it, finishes it, or forks it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentor.agent import Agentor
    from agentor.engine.budget import Budget
    from agentor.engine.effects import DidNotHappen, Happened, Unknown
    from agentor.engine.events import Event, PendingCall, RunResult, Usage
    from agentor.engine.models import ModelSettings
    from agentor.engine.store import FileStore, MemoryStore, SQLiteStore, Store
    from agentor.engine.tools import RunContext, Tool, function_tool
    from agentor.errors import (
        AgentorError,
        AskedAgainError,
        ConfigError,
        LeaseError,
        LeaseHeldError,
        LeaseLostError,
        LogCorruptError,
        ModelError,
        NotWaitingError,
        OutputMismatchError,
        RunExistsError,
        RunNotFoundError,
        SequenceConflictError,
        StatementError,
        StoreClosedError,
        StoreError,
        UnfinishedDeleteError,
    )
    from agentor.plan import Plan
    from agentor.streaming import StreamItem

__version__ = "0.2.0.dev0"

_HOMES = {
    "agentor.agent": ["Agentor"],
    "agentor.plan": ["Plan"],
    "agentor.streaming": ["StreamItem"],
    "agentor.engine.budget": ["Budget"],
    "agentor.engine.effects": ["DidNotHappen", "Happened", "Unknown"],
    "agentor.engine.events": ["Event", "PendingCall", "RunResult", "Usage"],
    "agentor.engine.models": ["ModelSettings"],
    "agentor.engine.store": ["FileStore", "MemoryStore", "SQLiteStore", "Store"],
    "agentor.engine.tools": ["RunContext", "Tool", "function_tool"],
    "agentor.errors": [
        "AgentorError",
        "AskedAgainError",
        "ConfigError",
        "LeaseError",
        "LeaseHeldError",
        "LeaseLostError",
        "LogCorruptError",
        "ModelError",
        "NotWaitingError",
        "OutputMismatchError",
        "RunExistsError",
        "RunNotFoundError",
        "SequenceConflictError",
        "StatementError",
        "StoreClosedError",
        "StoreError",
        "UnfinishedDeleteError",
    ],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Agentor",
    "AgentorError",
    "AskedAgainError",
    "Budget",
    "ConfigError",
    "DidNotHappen",
    "Event",
    "FileStore",
    "Happened",
    "LeaseError",
    "LeaseHeldError",
    "LeaseLostError",
    "LogCorruptError",
    "MemoryStore",
    "ModelError",
    "ModelSettings",
    "NotWaitingError",
    "OutputMismatchError",
    "PendingCall",
    "Plan",
    "RunContext",
    "RunExistsError",
    "RunNotFoundError",
    "RunResult",
    "SQLiteStore",
    "SequenceConflictError",
    "StatementError",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StreamItem",
    "Tool",
    "UnfinishedDeleteError",
    "Unknown",
    "Usage",
    "function_tool",
]


def __getattr__(name: str) -> Any:
    """Names load their module when they are first used, so that `import agentor` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'agentor' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
