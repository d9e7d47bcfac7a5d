"""Opening the store that a command names, for reading or for going on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agentor.engine.store import FileStore, SQLiteStore
from agentor.engine.store.protocol import Closes, Store
from agentor.errors import ConfigError

DEFAULT_STORE = "runs.db"


def is_directory_name(path: str) -> bool:
    return path.endswith(("/", os.sep)) or Path(path).is_dir()


@contextlib.contextmanager
def existing_store(path: str | None) -> Iterator[Store]:
    """The store at `path`, closed afterwards. One that is not there is an error, not a new store."""
    path = path or DEFAULT_STORE
    if not Path(path).exists():
        raise ConfigError(
            f"there is no store at {path!r}; name one with --store PATH, or set AGENTOR_STORE"
        )
    store: Store = FileStore(path) if is_directory_name(path) else SQLiteStore(path)
    try:
        yield store
    finally:
        if isinstance(store, Closes):
            store.close()
