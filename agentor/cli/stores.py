"""Opening the store that a command names, for reading or for going on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from agentor.cli.wording import WHERE, some
from agentor.engine.store import FileStore
from agentor.engine.store.jsonl import JsonlLog
from agentor.engine.store.protocol import Closes, Store
from agentor.errors import ConfigError, StoreError
from agentor.inputs import open_store

DEFAULT_STORE = "runs.db"
_NAMED_MAX = 3


@contextlib.contextmanager
def existing_store(path: str | None) -> Iterator[Store]:
    """The store at `path`, closed afterwards. One that is not there is an error, not a new store; and a file that is
    somebody's database, but holds no runs, does not get our tables for having been looked at."""
    path = path or DEFAULT_STORE
    note_where(path)  # what keeps it from being opened names commands, too
    if not _is_there(path):
        raise ConfigError(
            f"there is no store at {path!r}{_others(path)}; name one with --store PATH, or set AGENTOR_STORE"
        )
    if os.path.isfile(path) and not _holds_runs(path):
        raise ConfigError(f"{path!r} holds no runs; name another store with --store PATH")
    with _opened(path) as store:
        yield store


@contextlib.contextmanager
def made_store(path: str) -> Iterator[Store]:
    """The store at `path`, made if it is not there, closed afterwards. `ConfigError` if it is a file, but no database."""
    note_where(path)
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


def note_where(path: str) -> None:
    """Remember which store this command is about, for the commands that it names: they name it where that was named, or
    where they would look for another."""
    verb = click.get_current_context(silent=True)
    if verb is None:
        return
    is_named = verb.get_parameter_source("store_path") is ParameterSource.COMMANDLINE
    usual = os.environ.get("AGENTOR_STORE") or DEFAULT_STORE
    is_found = Path(path) == Path(usual) and not is_named
    verb.meta[WHERE] = None if is_found else path


def note_own(store: object) -> None:
    """`note_where` of a store that a program has opened by itself; nothing of one in memory."""
    if isinstance(store, FileStore):
        note_where(f"{_nearer(store.directory)}/")
    elif path := getattr(store, "path", None):
        note_where(_nearer(path))


def _nearer(path: str | Path) -> str:
    """As one would write it from here, if it lies below the current directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative


def _others(path: str) -> str:
    """Where else there are runs in this directory, for whoever has named no store."""
    if path != DEFAULT_STORE:
        return ""
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = [name for name in sorted(os.listdir()) if _may_be_meant(name)]
    return f" (but there is {some(found, _NAMED_MAX)})" if found else ""


def _may_be_meant(name: str) -> bool:
    # Whoever works in a directory of files makes one for their locks.
    if os.path.isdir(os.path.join(name, ".locks")):
        return True
    if not (name.endswith(".db") and os.path.isfile(name)):
        return False
    with contextlib.suppress(ConfigError, StoreError):
        return _holds_runs(name)
    return False


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
