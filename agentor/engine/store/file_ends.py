"""What a store knows to be on the disk for good: the lines that it has written or synced itself.

What another process wrote may still be in the memory of the system, for its writer may have died before the sync. So it
is synced once before anybody is shown it, and the end of the file is remembered. A file is the one that is remembered
if all that can be seen of it at no cost is the same: a run that was deleted and made again can have its inode and its size.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from agentor.engine.store.file_opening import put, sync_directory
from agentor.engine.store.file_reading import SUFFIX
from agentor.engine.store.jsonl import JsonlLog
from agentor.errors import StoreError

_TAIL: Final = 256  # bytes, the seq of the last line among them
_READ_ONLY: Final = {
    errno.EROFS,
    errno.EINVAL,
}  # a sync, where nothing can be written and so all is on the disk


@dataclass(frozen=True, slots=True)
class End:
    """The end of the good part of a file. `size` in bytes; torn bytes may lie behind it."""

    size: int
    last_seq: int
    needs_newline: bool = False

    @classmethod
    def of(cls, log: JsonlLog) -> End:
        """The end of a log that was read from its beginning."""
        return cls(log.good_size, len(log.events), log.needs_newline)


class _Seen(NamedTuple):
    inode: tuple[int, int]  # with its device
    size: int
    changed_at_ns: int
    tail: bytes


class Ends:
    """The ends of the files in a directory, by run id."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[_Seen, End]] = {}

    def known(self, run_id: str, descriptor: int) -> End | None:
        """Where the good part of an open file ends; None unless this store has brought it to the disk as it is now."""
        seen, end = self._known.get(run_id, (None, None))
        return end if seen is not None and seen == _seen(descriptor) else None

    def bring_to_disk(self, run_id: str, descriptor: int) -> None:
        """Sync what others wrote into a file that is locked; its name, too, unless that was done before. `StoreError`."""
        try:
            os.fsync(descriptor)
            seen, _ = self._known.get(run_id, (None, None))
            if seen is None or not _goes_on(seen, descriptor):
                sync_directory(self._directory)
        except OSError as error:
            if error.errno in _READ_ONLY:
                return
            self._write_again(run_id, descriptor)
            raise StoreError(
                f"run {run_id!r} in {self._directory}: {error.strerror or error}. What another process wrote there could not be "
                "brought to the disk, so it is not shown and nothing is added to it; look at the disk, and try again."
            ) from error

    def _write_again(self, run_id: str, descriptor: int) -> None:
        """Put the same bytes in their place once more. After a failed sync the system takes for clean what it could not
        write, so that without this the next sync, whoever's it is, would succeed and bring nothing to the disk."""
        with contextlib.suppress(OSError):  # we may only read it
            path = self._directory / f"{run_id}{SUFFIX}"
            writable = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                before = os.fstat(descriptor)
                if _inode(os.fstat(writable)) == _inode(before):
                    put(writable, 0, os.pread(descriptor, before.st_size, 0))
                    os.utime(writable, ns=(before.st_atime_ns, before.st_mtime_ns))
            finally:
                os.close(writable)

    def keep(self, run_id: str, descriptor: int, end: End, size: int) -> None:
        """Remember the end of a locked file that is on the disk, if it still has the size up to which that was done."""
        seen = _seen(descriptor)
        if seen is None or seen.size != size:
            self.forget(run_id)
        else:
            self._known[run_id] = seen, end

    def forget(self, run_id: str) -> None:
        self._known.pop(run_id, None)


def _seen(descriptor: int) -> _Seen | None:
    """None if it cannot be read: then it is looked at as a file that nobody knows."""
    try:
        status = os.fstat(descriptor)
        tail = _tail(descriptor, status.st_size)
    except OSError:
        return None
    return _Seen(_inode(status), status.st_size, status.st_ctime_ns, tail)


def _goes_on(seen: _Seen, descriptor: int) -> bool:
    """Whether an open file is the one that was seen, with more in it."""
    same = _inode(os.fstat(descriptor)) == seen.inode
    return same and _tail(descriptor, seen.size) == seen.tail


def _tail(descriptor: int, size: int) -> bytes:
    begins_at = max(size - _TAIL, 0)
    return os.pread(descriptor, size - begins_at, begins_at)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
