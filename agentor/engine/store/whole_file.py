"""A file that appears whole, or not at all.

It is written under another name beside its place, brought to the disk, and only then given its name. Whoever is
killed on the way leaves a hidden scratch file, never half a file that looks like a whole one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agentor.engine import clock
from agentor.errors import ConfigError, StoreError

# What SQLite may leave beside a file when it is stopped.
_COMPANIONS = ("", "-journal", "-wal", "-shm")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """A new, empty file to write to, for its owner only; at the end of the block it takes the name `path`.

    If the block raises, nothing is left. `ConfigError`: `path` exists, and `replace` was not said.
    `StoreError`: the file cannot be made or finished; the message says why.
    """
    target = Path(path)
    refuse_taken(target, replace=replace)
    scratch = target.with_name(f".{target.name}.{clock.new_id()}.tmp")
    try:
        with file_errors(target):
            os.close(os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield scratch
        with file_errors(target):
            _sync(scratch, os.O_RDWR)
            _give_name(scratch, target, replace)
    finally:
        for companion in _COMPANIONS:
            with contextlib.suppress(OSError):
                os.unlink(f"{scratch}{companion}")


def refuse_taken(path: Path, *, replace: bool) -> None:
    """`ConfigError` if something is in the way: a directory always, a file unless it may be replaced, and what SQLite
    keeps beside a database in any case."""
    refuse_companion(path)
    if os.path.isdir(path):
        raise ConfigError(f"{path} is a directory; name a file in it")
    if not replace and os.path.lexists(path):
        raise ConfigError(f"{path} exists already; choose another name, or move it away first")
    _refuse_left_over(path)


def refuse_companion(path: Path) -> None:
    """`ConfigError` if SQLite keeps a part of a database under this name: another file there would destroy that."""
    real = os.path.realpath(path)
    for companion in _COMPANIONS[1:]:
        database = real.removesuffix(companion)
        if database != real and os.path.lexists(database):
            raise ConfigError(
                f"{path}: SQLite itself uses this name, for {database}; choose another name"
            )


def _refuse_left_over(path: Path) -> None:
    """What lies beside the name as if it belonged to it: SQLite would take it for a part of the new file."""
    real = os.path.realpath(path)
    for beside in (f"{real}{companion}" for companion in _COMPANIONS[1:]):
        if os.path.lexists(beside):
            raise ConfigError(
                f"{path}: {beside} is there, which SQLite would take for a part of the new file; choose another name, "
                "or delete it if no process uses it"
            )


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    with file_errors(directory):
        _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn what the system says into a StoreError that says what to do."""
    try:
        yield
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already; choose another name, or move it away first"
        ) from None
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror or error}; nothing was left there. Check that its directory exists and "
            "may be written, and that there is space"
        ) from error


def _give_name(scratch: Path, target: Path, replace: bool) -> None:
    if replace:
        os.replace(scratch, target)
        return
    try:
        os.link(scratch, target)  # unlike a rename it never replaces what came in the meantime
    except FileExistsError:
        raise
    except OSError:  # no hard links here, as on a memory stick
        refuse_taken(target, replace=False)
        os.rename(scratch, target)


def left_its_scratch(path: Path) -> bool:
    """Whether a file that was made whole still had its scratch name, of a process that was killed before it took that away.
    It has not by now."""
    begins, is_left = f".{path.name}.", False
    for entry in os.scandir(path.parent):
        if entry.name.startswith(begins) and entry.name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if os.path.samefile(entry.path, path):
                    os.unlink(entry.path)
                    is_left = True
    return is_left


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
