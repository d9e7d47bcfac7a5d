"""Follow one JSONL file: read only what has been added, and only when its size has changed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agentor.engine.events import Event
from agentor.engine.store.jsonl import read_jsonl


class Follower:
    """Gives the events of a file with a seq above `after`, as they come."""

    def __init__(self, run_id: str, path: Path, after: int) -> None:
        self._run_id = run_id
        self._path = path
        self._after = after
        self._file: tuple[int, int] | None = None  # which one was read: device, inode
        self._read = 0  # bytes of it
        self._size = 0  # when it was last looked at
        self._last_seq = 0

    def news(self) -> list[Event]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            return self._news(descriptor)
        finally:
            os.close(descriptor)

    def _news(self, descriptor: int) -> list[Event]:
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        if (
            file != self._file or status.st_size < self._read
        ):  # first seen, or deleted and made anew
            self._file = file
            self._read = self._size = self._last_seq = 0
        if status.st_size == self._size:
            return []
        # Shared with nobody who writes: what is half-written may yet be taken back, and is no news.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._size = os.fstat(descriptor).st_size
        content = os.pread(descriptor, max(self._size - self._read, 0), self._read)
        log = read_jsonl(self._run_id, content, self._last_seq)
        self._read += log.good_size
        self._last_seq += len(log.events)
        return [event for event in log.events if (event.seq or 0) > self._after]
