"""Opening the store that a command names, for reading or for going on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from agentor.engine.store import FileStore
from agentor.engine.store.jsonl import JsonlLog
from agentor.engine.store.protocol import Closes, Store
from agentor.errors import ConfigError, StoreError
from agentor.inputs import open_store

DEFAULT_STORE = "runs.db"


@contextlib.contextmanager
def existing_store(path: str | None) -> Iterator[Store]:
    """The store at `path`, closed afterwards. One that is not there is an error, not a new store; and a file that is
    somebody's database, but holds no runs, does not get our tables for having been looked at."""
    path = path or DEFAULT_STORE
    if not _is_there(path):
        raise ConfigError(
            f"there is no store at {path!r}; name one with --store PATH, or set AGENTOR_STORE"
        )
    if os.path.isfile(path) and not _holds_runs(path):
        raise ConfigError(f"{path!r} holds no runs; name another store with --store PATH")
    with _opened(path) as store:
        yield store


@contextlib.contextmanager
def made_store(path: str) -> Iterator[Store]:
    """The store at `path`, made if it is not there, closed afterwards. `ConfigError` if it is a file, but no database."""
    if os.path.isfile(path):
        _holds_runs(path)
    with _opened(path) as store:
        yield store


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Store]:
    store = open_store(path)
    assert store is not None
    try:
        yield store
    finally:
        if isinstance(store, Closes):
            store.close()


def looked_at(store: Store, run_id: str) -> JsonlLog:
    """The log of a run, with what reading it skips: a look that waits for nobody who is saving, and syncs no file. `LogCorruptError`."""
    if isinstance(store, FileStore):
        return store.read(run_id)
    return JsonlLog(store.load(run_id))


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(
            f"{path}: the store cannot be reached ({error.strerror}); check the permissions of its directories"
        ) from error
    return True


def _holds_runs(path: str) -> bool:
    from agentor.engine.store.sqlite_makeshift import (
        holds_runs,
    )  # loads apsw, which a FileStore does not need

    return holds_runs(path)
