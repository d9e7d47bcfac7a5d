"""Open the file of a run for one look or one change, locked against what others do to it meanwhile.

Nobody waits for ever: whoever holds the lock may be suspended, or stand before a disk that does not answer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from agentor.engine import clock
from agentor.engine.store.file_lock import is_at
from agentor.errors import AgentorError

LONGEST_WAIT_S = 10.0  # as long as an SQLiteStore waits
_LONGEST_PAUSE_S: Final = 0.02
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def opened(
    path: Path,
    flags: int,
    kind: int,
    busy: Callable[[float], AgentorError],
    longest_s: float | None = None,
) -> Iterator[tuple[int, bool]]:
    """A locked descriptor, and whether the file is new. The lock keeps processes apart; `busy` says that it took too long."""
    longest_s = LONGEST_WAIT_S if longest_s is None else longest_s
    while True:
        is_new = not path.exists()
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if not is_locked_in_time(descriptor, kind, longest_s):
                raise busy(longest_s)
            if is_at(descriptor, path):  # else it was deleted while we waited
                yield descriptor, is_new
                return
        finally:
            unlock(descriptor)
            os.close(descriptor)


def is_locked_in_time(descriptor: int, kind: int, longest_s: float) -> bool:
    """Whether the lock could be had within some seconds."""
    waited_s, pause_s = 0.0, 0.001
    while not _is_locked(descriptor, kind):
        if waited_s >= longest_s:
            return False
        clock.pause(pause_s)
        waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, _LONGEST_PAUSE_S)
    return True


def _is_locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Where nothing can be locked nothing can be appended either, so there is nothing to keep a reader from.
        if kind != fcntl.LOCK_SH or error.errno not in _NO_LOCKS:
            raise
    return True


def unlock(descriptor: int) -> None:
    # Said and not left to the closing: a child that was forked meanwhile has the descriptor, too.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def write_at(descriptor: int, offset: int, content: bytes) -> None:
    """Put the content behind the good part of a file, and bring it to the disk."""
    # What lies beyond the good part is a torn line: never an event, and never to be glued to one.
    os.ftruncate(descriptor, offset)
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], offset + written)
    os.fsync(descriptor)


def put_in_place(scratch: Path, target: Path) -> None:
    """Give a finished file its name, unless the name is taken."""
    try:
        os.link(scratch, target)
    except FileExistsError:
        raise
    except (
        OSError
    ):  # a file system without hard links: take the name first, then fill it in one step
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.replace(scratch, target)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
