"""Where runs are written down: the protocol, three bundled stores, and what can be asked of any of them.

SQLiteStore is loaded when it is first used, so that a program without it never loads apsw.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentor.engine.store.file import FileStore
from agentor.engine.store.forking import fork_run
from agentor.engine.store.memory import MemoryStore
from agentor.engine.store.numbering import bodies_after
from agentor.engine.store.owner import owner_id
from agentor.engine.store.protocol import Lease, Store, check_run_id, new_run_id

if TYPE_CHECKING:
    from agentor.engine.replay import final_event, is_complete, replay_messages, total_usage
    from agentor.engine.store.sqlite import SQLiteStore

__all__ = [
    "FileStore",
    "Lease",
    "MemoryStore",
    "SQLiteStore",
    "Store",
    "bodies_after",
    "check_run_id",
    "final_event",
    "fork_run",
    "is_complete",
    "new_run_id",
    "owner_id",
    "replay_messages",
    "total_usage",
]

_LATE = {
    "SQLiteStore": "agentor.engine.store.sqlite",
    "final_event": "agentor.engine.replay",
    "is_complete": "agentor.engine.replay",
    "replay_messages": "agentor.engine.replay",
    "total_usage": "agentor.engine.replay",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
