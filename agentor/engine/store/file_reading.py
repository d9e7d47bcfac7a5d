"""Read a directory of logs: which runs there are, and what stands in the file of one.

A file that this process may not read, or that the disk does not give back, concerns its own run only, as a damaged one
does; and so does what is no file at all. That the process has no descriptors left says nothing of any run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentor.engine.events import FORK, RUN_END, RUN_START, Event
from agentor.engine.store.protocol import check_run_id
from agentor.engine.store.summary import UNFINISHED
from agentor.errors import ConfigError, LogCorruptError, StoreError

SUFFIX = ".jsonl"
_END = 16_384  # bytes
_OF_THIS_FILE = {errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENXIO}


@contextlib.contextmanager
def reading(path: Path, run_id: str | None = None) -> Iterator[None]:
    """Turn what the system says into a StoreError: a `LogCorruptError` if it is about the file of one run.

    A file that is not there is left to the caller.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if run_id is not None and error.errno in _OF_THIS_FILE:
            raise LogCorruptError(run_id, None, f"{path} cannot be read: {reason}") from error
        raise StoreError(
            f"{path}: {reason}. It could not be read; check that it is there and that this process may read it."
        ) from error


def check_file(path: Path) -> bool:
    """Whether anything is there. `OSError` if it is a pipe, a device or a socket, which nobody may open: that could wait for
    ever, and what a device gives need have no end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a directory the system tells
        raise OSError(errno.ENXIO, "it is no file, but a pipe, a device or a socket", str(path))
    return True


def content_of(run_id: str, path: Path) -> bytes:
    """What stands in the file of a run; nothing if there is none. `LogCorruptError` if it cannot be read."""
    with contextlib.suppress(FileNotFoundError), reading(path, run_id):
        check_file(path)
        return path.read_bytes()
    return b""


def content_up_to(descriptor: int, size: int) -> bytes:
    """The first bytes of an open file, fewer if it has fewer."""
    pieces, read = [], 0
    while read < size and (piece := os.pread(descriptor, size - read, read)):
        pieces.append(piece)
        read += len(piece)
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Version:
    """What tells a file from itself before or after a change, and from another that has its name by now."""

    changed_at_ns: int
    digest: bytes  # of every byte: the clocks of file systems are coarse


def version_of(run_id: str, path: Path) -> tuple[Version, bytes]:
    """A file as it stands, and what stands in it. `FileNotFoundError`, `LogCorruptError` if it cannot be read."""
    with reading(path, run_id):
        changed_at_ns = path.stat().st_mtime_ns  # first: what is added then is another version
    content = content_of(run_id, path)
    return Version(changed_at_ns, hashlib.blake2b(content, digest_size=16).digest()), content


def lines_of(run_id: str, path: Path) -> list[str]:
    """The lines that are events, or were."""
    *lines, last = content_of(run_id, path).split(b"\n")
    told = [*lines, last] if _is_event(last) else lines
    return [line.decode("utf-8", errors="replace") for line in told]


def holds_run(path: Path) -> bool:
    """Whether a run is there, be it damaged: not in a file that is missing, empty, or no more than one torn line."""
    try:
        check_file(path)
        with open(path, "rb") as file:
            begun = next((line for line in file if line.strip()), b"")
    except FileNotFoundError:
        return False
    except OSError:  # whoever reads it is told what is the matter
        return True
    return begun.endswith(b"\n") or _is_event(begun)


def _is_event(line: bytes) -> bool:
    try:
        Event.from_json(line)
    except ValueError:
        return False
    return True


def status_at_end(run_id: str, path: Path) -> str | None:
    """The status of a run by the last lines of its file; None if they do not tell, or cannot be read."""
    with contextlib.suppress(FileNotFoundError), reading(path, run_id):
        for line in reversed(_end_of(path).split(b"\n")):
            is_asked = b'"fork"' in line and b'"messages"' in line
            if is_asked or b"run_end" in line or b"run_start" in line:
                return _status_of(line)
    return None


def _end_of(path: Path) -> bytes:
    check_file(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # for a few bytes a file object is slow
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, _END, max(size - _END, 0))
    finally:
        os.close(descriptor)


def _status_of(line: bytes) -> str | None:
    """None of what only talks of an end, a start or a fork, and of what cannot be read: then the whole log must tell."""
    try:
        event = Event.from_json(line)
    except ValueError:
        return None
    if event.type == RUN_END:
        return event.status or "failed"
    is_open = event.type == RUN_START or (event.type == FORK and event.messages)
    return UNFINISHED if is_open else None


def last_changes(directory: Path) -> Iterator[tuple[str, int]]:
    """Every run's id and when its file changed last (ns); what else lies in the directory is none of our business."""
    for entry in os.scandir(directory):
        name = entry.name.removesuffix(SUFFIX)
        with contextlib.suppress(ConfigError):  # not a run's
            if name != entry.name and (changed_at := _last_change(entry)) is not None:
                yield check_run_id(name), changed_at


def torn(directory: Path) -> list[str]:
    """The names of runs' files that have something in them, but no run."""
    return sorted(entry.name for entry in os.scandir(directory) if _is_torn(entry))


def _is_torn(entry: os.DirEntry[str]) -> bool:
    name = entry.name.removesuffix(SUFFIX)
    with contextlib.suppress(OSError, ConfigError):  # deleted meanwhile, or not a run's
        has_content = stat.S_ISREG(entry.stat().st_mode) and entry.stat().st_size > 0
        is_a_runs = name != entry.name and check_run_id(name) == name
        return has_content and is_a_runs and not holds_run(Path(entry.path))
    return False


def _last_change(entry: os.DirEntry[str]) -> int | None:
    """None of what holds no run, and of what was deleted while we looked."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    except OSError:  # listed all the same: whoever reads it is told what is the matter
        return 0
    is_run = not stat.S_ISREG(status.st_mode) or (status.st_size and holds_run(Path(entry.path)))
    return status.st_mtime_ns if is_run else None
