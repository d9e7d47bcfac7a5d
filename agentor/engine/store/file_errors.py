"""What the system says of the files of runs, as errors that say what has become of the step, and what to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agentor.errors import ConfigError, StoreError


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """What is about the file of a run, a new one or one that changes. `StoreError`."""
    try:
        yield
    except OSError as error:
        check_directory(path.parent)
        reason = error.strerror or str(error)
        raise StoreError(
            f"{path}: {reason}. Nothing of this step was saved; check that there is space and that "
            "the directory may be read and written."
        ) from error


@contextlib.contextmanager
def deleting(path: Path) -> Iterator[None]:
    """What is about a file that goes. `StoreError`."""
    try:
        yield
    except OSError as error:
        check_directory(path.parent)
        left = (
            "The run is still there, what was asked of it may be gone"
            if path.exists()
            else "The run is gone, but a power cut may bring it back"
        )
        raise StoreError(
            f"{path}: {error.strerror or error}. {left}; check that the directory may be written, and delete it again if it "
            "is there."
        ) from error


def full_path(directory: str | os.PathLike[str]) -> Path:
    """The absolute path, since a tool may change where the process stands. `ConfigError` if nothing can have that name."""
    path = os.fsdecode(directory)
    try:
        is_a_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_a_name = False
    if not is_a_name:
        raise ConfigError(
            f"{path!r}: a path cannot hold a NUL character or half a surrogate pair; choose another path"
        )
    return Path(path).absolute()


def check_directory(directory: Path) -> None:
    """`StoreError` if the directory of a store has gone: an empty one would deny the runs that were in it."""
    with contextlib.suppress(OSError):
        if not directory.exists():
            raise StoreError(
                f"{directory}: the directory is gone, and with it the runs that were there: nothing can be read or saved here. "
                "Put it back, or make a new FileStore to begin with an empty one."
            )
