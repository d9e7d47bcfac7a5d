"""Whether there is room for the index of the WAL, which SQLite maps into memory: the file -shm.

SQLite makes it by writing one byte into each page of 4,096, and says so where that fails. On a file system of smaller
blocks that allocates one block of several; the system looks for the others when the page is first written to in memory,
and if there are none it kills the process (SIGBUS). So there we try whether there is room before anything is mapped.
Nothing can be set aside: whoever opens the file first empties -shm, unless somebody has it locked by then, and a
descriptor of ours could hardly be closed again, since that would drop SQLite's locks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from typing import Final

import apsw

_PAGE_BYTES: Final = 4096  # what SQLite makes sure of by a byte
_INDEX_BYTES: Final = 32 * 1024  # of the first part, which serves some 4,000 pages in the WAL
_WAL_BYTES_PER_INDEX_BYTE: Final = 64  # 8 bytes for each page, and a page has 512 at least
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _NoRoomError(apsw.IOError):
    extendedresult = apsw.SQLITE_IOERR_SHMSIZE


def check_room(path: str) -> None:
    """Before a file is opened whose index this process may not have mapped. `apsw.IOError`, as SQLite's own: there is no room."""
    if not has_room(path):
        raise _NoRoomError("no room for the index of the WAL")


def has_room(path: str) -> bool:
    """False if there is none and SQLite would not notice. Of other disks SQLite itself tells."""
    real = os.path.realpath(path)
    directory = os.path.dirname(real)
    try:
        if os.statvfs(directory).f_frsize >= _PAGE_BYTES:
            return True
        # What is free is not what can be had: there are quotas, and parts that are kept back from some or from all.
        with tempfile.TemporaryFile(dir=directory, buffering=0) as trial:
            needed = _needed(real)
            return trial.write(bytes(needed)) == needed
    except OSError as error:
        return error.errno not in _NO_ROOM  # what else there may be is told by SQLite


def _needed(path: str) -> int:
    """Bytes; twice what the index takes, for others allocate, too, and so does what keeps account of the blocks."""
    index = _INDEX_BYTES
    with contextlib.suppress(OSError):
        index += os.stat(f"{path}-wal").st_size // _WAL_BYTES_PER_INDEX_BYTE
    return 2 * index
