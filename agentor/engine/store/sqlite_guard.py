"""Refuse what would lose committed rows without a sound.

The file locks of POSIX belong to a process, not to a descriptor: closing *any* descriptor of a file drops all
locks the process has on it. apsw brings an SQLite of its own, so the stdlib's `sqlite3` on the same file in the
same process is a second library that knows nothing of the first one's locks, and takes them away. A forked
child inherits connections whose locks it does not have. A network file system may not lock at all. And the WAL, where
the last commits are, belongs to the file's name and not to the file: by another name they are not there.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import apsw

from agentor.engine.interrupts import held
from agentor.engine.store.whole_file import left_its_scratch
from agentor.errors import StoreError

Identity = tuple[int, int]  # device, inode

_NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "ncpfs", "nfs", "nfs4"}
)
_NETWORK_PREFIXES = ("smb", "fuse.gluster", "fuse.ceph", "fuse.s3", "fuse.gcs", "fuse.rclone")
_MOUNTS = "/proc/self/mounts"
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")  # a space is written \040
_BY_NAME = (
    "SQLite keeps the last commits beside the name a file was opened by, so whoever opens it by another name misses "
    "them, and writes over them."
)

_in_use: Counter[Identity] = Counter()  # files that stores of this process have open
_lock = threading.RLock()
_is_spoilt = False  # this process was forked while SQLite was at work in its parent


def identity(path: str) -> Identity:
    status = os.stat(path)
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def opening(path: str) -> Iterator[Identity]:
    """Hold while a store opens its file; the file counts as in use from then on, until `closed`."""
    if _is_spoilt:
        raise StoreError(
            f"{path}: this process was forked while SQLite was at work in its parent, whose locks it would take for "
            "its own, so it cannot use SQLite. Fork while no store is in use, or start the process anew (spawn)"
        )
    with held(_lock):
        found = identity(path)
        if not _in_use[found]:
            _refuse_foreign_descriptors(path, found)
        _in_use[found] += 1
        try:
            yield found
        except BaseException:
            closed(found)
            raise


def opening_again() -> contextlib.AbstractContextManager[object]:
    """Hold while a store that has its file in use already opens it once more."""
    return held(_lock)


def closed(found: Identity) -> None:
    with held(_lock):
        _in_use[found] -= 1


def refuse_network_file_system(path: str) -> None:
    kind = _file_system(path)
    if kind in _NETWORK or kind.startswith(_NETWORK_PREFIXES):
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks and WAL cannot be trusted; "
            "choose a local disk, or pass allow_network_filesystem=True if only one process ever opens it"
        )


def refuse_second_name(path: str) -> None:
    """`StoreError` if the file at `path` has another name, by a hard link or since it is mounted alone."""
    names = os.stat(path).st_nlink
    if names > 1 and left_its_scratch(Path(path)):
        names = os.stat(path).st_nlink
    if names > 1:
        raise StoreError(
            f"{path}: the file has {names} names (hard links). {_BY_NAME} Remove the other names, but keep the one that has "
            f"a -wal beside it (`find DIRECTORY -samefile {path}` finds them), make them symbolic links, or close the "
            "store everywhere and copy the file"
        )
    real = os.path.realpath(path)
    if any(point == real for point, _ in _mounts()):
        raise StoreError(
            f"{path}: the file itself is a mount point, so that it has another name elsewhere. {_BY_NAME} Mount the "
            "directory that the file is in, or copy the file once the store is closed everywhere"
        )


def _file_system(path: str) -> str:
    """The type of the file system that `path` is on, '' where the system does not tell."""
    real = os.path.realpath(path)
    kind, longest = "", -1
    for point, found in _mounts():
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # a later mount hides an earlier one at the same place
            kind, longest = found, len(point)
    return kind


def _mounts() -> list[tuple[str, str]]:
    """Mount points and their types, as the system tells them; [] where it does not."""
    try:
        with open(_MOUNTS, "rb") as mounts:  # names are bytes, and need not be text
            entries = [line.split(b" ")[1:3] for line in mounts]
    except OSError:
        return []
    return [(os.fsdecode(_ESCAPED.sub(_byte, point)), kind.decode()) for point, kind in entries]


def _byte(escaped: re.Match[bytes]) -> bytes:
    return bytes([int(escaped[1], 8)])


def _refuse_foreign_descriptors(path: str, found: Identity) -> None:
    if any(_same_file(connection, found) for connection in apsw.connections()):
        return  # the program's own apsw connections share our locks; which descriptors are theirs cannot be told
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == found:
                raise StoreError(
                    f"{path}: this process already has the file open otherwise (descriptor {descriptor}, "
                    "perhaps the stdlib's sqlite3 or open()). Closing that would drop SQLite's locks and lose "
                    "commits: close it first, or read a copy of the file"
                )


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return []


def _same_file(connection: apsw.Connection, found: Identity) -> bool:
    try:
        return identity(connection.filename) == found
    except (OSError, apsw.Error):
        return False


def _refuse_second_sqlite(event: str, args: tuple[Any, ...]) -> None:
    if event != "sqlite3.connect" or not +_in_use:
        return
    path = _path_of(args[0])
    with contextlib.suppress(OSError, ValueError):
        if _in_use[identity(path)] > 0:
            raise StoreError(
                f"{path}: a SQLiteStore of this process has this file open, and the stdlib's sqlite3 is a second "
                "SQLite that would drop its locks and lose commits. Read it through the store, from another "
                "process, or from a copy; for your own tables use apsw"
            )


def _path_of(database: Any) -> str:
    path = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else ""
    if path.startswith("file:"):
        path = unquote(path.removeprefix("file:").split("?")[0].split("#")[0])
        path = path.split("\0")[0]  # SQLite reads no further
        if path.startswith("//"):  # file://localhost/path, file:///path
            path = "/" + path[2:].partition("/")[2]
    return path


sys.addaudithook(_refuse_second_sqlite)


def hold_openings(timeout_s: float) -> bool:
    """Let no store open its file until `go_on_opening`; False if one has been at it for longer."""
    return _lock.acquire(timeout=timeout_s)


def go_on_opening() -> None:
    _lock.release()


def begin_anew(is_spoilt: bool) -> None:
    """In a forked child: no store is open here."""
    global _lock, _is_spoilt
    _lock = threading.RLock()
    _is_spoilt = _is_spoilt or is_spoilt
    _in_use.clear()


def let_go(connection: apsw.Connection) -> None:
    """Close an inherited connection without touching the WAL, which still belongs to the parent."""
    with contextlib.suppress(apsw.Error):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
