"""Whether the files that SQLite has open are still those at their paths, and still its own.

SQLite writes to whatever it has opened, whatever has become of the name: a commit into a deleted -wal succeeds, and is
lost with the process. All three files keep their names while any connection is open, since only the last one that
closes takes -wal and -shm away. So a name that leads elsewhere is somebody's mistake. Looking costs a few microseconds.

A copy written over the file itself keeps name and inode. Then the header tells, unless the copy is as new as the file:
the counter of changes in it only ever grows. It is looked at with SQLite's own descriptor, for closing another would
drop its locks.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import apsw

from agentor.engine.store.sqlite_guard import Identity
from agentor.errors import StoreError

_HEAD_BYTES: Final = 28  # the magic text first, the counter of changes last
_MAGIC: Final = b"SQLite format 3\0"


class Watch:
    """The files of one store, as they were when its writing connection had opened them."""

    def __init__(self, connection: apsw.Connection, path: str, identity: Identity) -> None:
        self._connection = connection
        self._path = path
        self._identity = identity
        self._wal = connection.filename_wal
        self._shm = f"{self._wal.removesuffix('-wal')}-shm"
        # What is not there now may be made by others later, or never with a VFS of the program's own: it tells nothing.
        self._companions = {
            name: found for name in (self._wal, self._shm) if (found := _identity(name))
        }
        self._head = self._read_head()
        self._has_size = os.stat(path).st_size > 0  # False with a VFS that keeps it elsewhere
        self._overwritten: str | None = None
        self.is_lost = False

    def check(self) -> None:
        """`StoreError` if a name leads elsewhere by now, or nowhere."""
        if self._overwritten is not None:
            raise self._lost(self._overwritten)
        try:
            status = os.stat(self._path)
            is_there = (status.st_dev, status.st_ino) == self._identity
        except OSError:
            is_there = False
        if not is_there:
            raise self._lost(
                f"{self._path}: the file was deleted or replaced while it was open, so nothing more is saved to it; "
                "put it back or choose another path, and open a new store"
            )
        if self._has_size and not status.st_size:
            raise self._spoilt("emptied")
        for name, opened in self._companions.items():
            if _identity(name) != opened:
                raise self._lost(
                    f"{name}: this part of the store was deleted or replaced while the store was open, so nothing "
                    "more is saved. Close the store in every process, and open it anew; leave -wal and -shm alone "
                    "while anybody has it open"
                )

    def check_commit(self) -> None:
        """`check`, and `StoreError` if something else was written over the file."""
        self.check()
        head = self._read_head()
        if self._is_older(head):
            head = self._read_head()  # once more: others may have been in the middle of writing it
        if self._is_older(head):
            raise self._spoilt("overwritten with something else")
        self._head = head

    def rescue(self) -> None:
        """Outside of a transaction, once `is_lost`: bring what was acknowledged into the file, if it is the file still.

        What is only in a WAL without a name would end with this process. Not if others may have begun with another
        WAL: they go by the file as it is.
        """
        if not self.is_lost:
            return
        with contextlib.suppress(apsw.Error):
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if self._is_ours_alone():
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._head = self._read_head()

    def _is_ours_alone(self) -> bool:
        if _identity(self._path) != self._identity or self._read_head() != self._head:
            return False
        shm, wal = _identity(self._shm), _identity(self._wal)
        if wal not in (None, self._companions.get(self._wal)):
            # Whoever comes finds our -shm speak of a WAL that is empty now, and gets no further.
            return (
                shm is not None and shm == self._companions.get(self._shm) and not _size(self._wal)
            )
        return shm in (None, self._companions.get(self._shm))

    def _read_head(self) -> bytes:
        return self._connection.read("main", 0, 0, _HEAD_BYTES)[1]

    def _is_older(self, head: bytes) -> bool:
        before, now = (int.from_bytes(each[-4:], "big") for each in (self._head, head))
        return not head.startswith(_MAGIC) or (now - before) % 2**32 >= 2**31

    def _spoilt(self, how: str) -> StoreError:
        self._overwritten = (
            f"{self._path}: the file was {how} while it was open, so nothing more is saved to it. Close the store in "
            "every process, delete -wal and -shm beside it, which belong to what was there before, and only then put "
            "the copy there once more"
        )
        return self._lost(self._overwritten)

    def _lost(self, told: str) -> StoreError:
        self.is_lost = True
        return StoreError(told)


def _size(name: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(name).st_size
    return 0


def _identity(name: str) -> Identity | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_dev, status.st_ino
