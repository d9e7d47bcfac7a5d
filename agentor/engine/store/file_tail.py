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
from typing import Final

from agentor.engine.events import Event
from agentor.engine.interrupts import allowed, deferred
from agentor.engine.store.file_ends import End, Ends
from agentor.engine.store.file_lock import is_at
from agentor.engine.store.file_opening import is_locked_in_time, unlock
from agentor.engine.store.file_reading import check_file, reading
from agentor.engine.store.jsonl import JsonlLog, read_jsonl
from agentor.engine.store.tailing import deleted_meanwhile

_LONGEST_WAIT_S: Final = (
    1.0  # for an append: a tail looks again anyway, and can be told to stop between two looks
)


class Follower:
    """Gives the events of a file with a seq above `after`, as they come."""

    def __init__(self, run_id: str, path: Path, after: int, ends: Ends) -> None:
        self._run_id = run_id
        self._path = path
        self._after = after
        self._ends = ends
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

    @deferred()
    def _news(self, descriptor: int) -> list[Event]:
        size = os.fstat(descriptor).st_size
        if size == self._size:
            return []
        if size < self._read:  # written anew in place
            self._let_go()
            return []
        # Shared with nobody who writes: what is half-written may yet be taken back, and is no news.
        if not is_locked_in_time(descriptor, fcntl.LOCK_SH, _LONGEST_WAIT_S):
            return []
        try:
            log = self._read_on(descriptor)
        finally:
            unlock(descriptor)
        log.warn_of_problems(self._run_id)
        return [event for event in log.events if (event.seq or 0) > self._after]

    def _read_on(self, descriptor: int) -> JsonlLog:
        size = os.fstat(descriptor).st_size
        content = os.pread(descriptor, max(size - self._read, 0), self._read)
        log = allowed(read_jsonl, self._run_id, content, self._last_seq)
        end = End(self._read + log.good_size, self._last_seq + len(log.events), log.needs_newline)
        if log.events and self._ends.known(self._run_id, descriptor) is None:
            self._ends.bring_to_disk(self._run_id, descriptor)
            self._ends.keep(self._run_id, descriptor, end, size)
        self._size, self._read, self._last_seq = size, end.size, end.last_seq
        return log

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

    @deferred()
    def __init__(self, path: Path) -> None:
        check_file(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)
