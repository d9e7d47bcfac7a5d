"""Opening the store that a command names, for reading or for going on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentor.agent import open_store
from agentor.engine.store.protocol import Closes, Store
from agentor.errors import ConfigError

DEFAULT_STORE = "runs.db"


@contextlib.contextmanager
def existing_store(path: str | None) -> Iterator[Store]:
    """The store at `path`, closed afterwards. One that is not there is an error, not a new store."""
    path = path or DEFAULT_STORE
    if not Path(path).exists():
        raise ConfigError(
            f"there is no store at {path!r}; name one with --store PATH, or set AGENTOR_STORE"
        )
    store = open_store(path)
    assert store is not None
    try:
        yield store
    finally:
        if isinstance(store, Closes):
            store.close()
