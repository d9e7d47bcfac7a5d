"""Follow one JSONL file: read only what has been added, and only when its size has changed.

The file stays open while it is followed. So no other file can get its inode, and what lies at the path is this file or
another run's: a deletion is seen, whatever has been written there since.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from agentor.engine.events import Event
from agentor.engine.store.file_lock import is_at
from agentor.engine.store.file_reading import reading
from agentor.engine.store.jsonl import read_jsonl
from agentor.engine.store.tailing import deleted_meanwhile


class Follower:
    """Gives the events of a file with a seq above `after`, as they come."""

    def __init__(self, run_id: str, path: Path, after: int) -> None:
        self._run_id = run_id
        self._path = path
        self._after = after
        self._file: _Open | None = None
        self._read = 0  # bytes of it
        self._size = 0  # when it was last looked at
        self._last_seq = 0

    def news(self) -> list[Event]:
        """`RunNotFoundError` if what was followed so far is not there any more."""
        if self._file is not None and not is_at(self._file.descriptor, self._path):
            self._let_go()
        with contextlib.suppress(FileNotFoundError), reading(self._path, self._run_id):
            self._file = self._file or _Open(self._path)
            return self._news(self._file.descriptor)
        return []

    def _news(self, descriptor: int) -> list[Event]:
        size = os.fstat(descriptor).st_size
        if size == self._size:
            return []
        if size < self._read:  # written anew in place
            self._let_go()
            return []
        # Shared with nobody who writes: what is half-written may yet be taken back, and is no news.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            self._size = os.fstat(descriptor).st_size
            content = os.pread(descriptor, max(self._size - self._read, 0), self._read)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        log = read_jsonl(self._run_id, content, self._last_seq)
        self._read += log.good_size
        self._last_seq += len(log.events)
        log.warn_of_problems(self._run_id)
        return [event for event in log.events if (event.seq or 0) > self._after]

    def _let_go(self) -> None:
        """Of a file that held no event yet nobody has seen anything: what comes at its path is the run."""
        had_events = self._last_seq > 0
        if self._file is not None:
            self._file.close()
        self._file = None
        self._read = self._size = self._last_seq = 0
        if had_events:
            raise deleted_meanwhile(self._run_id)


class _Open:
    """A file that is closed at the latest when nobody has it any more, as when a tail is left."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)
