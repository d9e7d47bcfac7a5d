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
from agentor.engine.interrupts import allowed, deferred
from agentor.engine.store.file_lock import is_at
from agentor.engine.store.file_reading import check_file, holds_run
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
    """A locked descriptor, and whether the file is new. The lock keeps processes apart; `busy` says that it took too long.

    No interrupt comes into the block, but into what it calls by `allowed`.
    """
    longest_s = LONGEST_WAIT_S if longest_s is None else longest_s
    with deferred():
        while True:
            is_new = not check_file(path)
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            try:
                if not is_locked_in_time(descriptor, kind, longest_s):
                    raise busy(longest_s)
                if is_at(descriptor, path):  # else it was deleted while we waited
                    with _nothing_left(descriptor, path) if flags & os.O_CREAT else _as_it_is:
                        yield descriptor, is_new
                    return
            finally:
                unlock(descriptor)
                os.close(descriptor)


_as_it_is: Final = contextlib.nullcontext()


@contextlib.contextmanager
def _nothing_left(descriptor: int, path: Path) -> Iterator[None]:
    """Of what was refused or has failed no empty file stays. Nobody has it: it is locked, and who waits looks again."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_size == 0 and is_at(descriptor, path):
                os.unlink(path)
        raise


def is_locked_in_time(descriptor: int, kind: int, longest_s: float) -> bool:
    """Whether the lock could be had within some seconds."""
    waited_s, pause_s = 0.0, 0.001
    while not _is_locked(descriptor, kind):
        if waited_s >= longest_s:
            return False
        allowed(clock.pause, pause_s)
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
    put(descriptor, offset, content)
    os.fsync(descriptor)


def put(descriptor: int, offset: int, content: bytes) -> None:
    """Write all of the content, in as many writes as that takes."""
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], offset + written)


def put_in_place(scratch: Path, target: Path, busy: Callable[[float], AgentorError]) -> None:
    """Give a finished file its name. `FileExistsError` if that is a run's."""
    try:
        os.link(scratch, target)
    except OSError:  # the name is taken, if only by what a crash left; or there are no hard links
        with opened(target, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, busy):
            if holds_run(target):
                raise FileExistsError(target) from None
            os.replace(scratch, target)


@deferred()
def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
