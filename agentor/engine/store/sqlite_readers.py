"""Connections that only read: one per read under way, a few kept for the next."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import apsw

from agentor.engine.interrupts import Waiters, allowed, deferred
from agentor.engine.store.sqlite_forks import watch_forks
from agentor.engine.store.sqlite_guard import let_go
from agentor.errors import StoreClosedError

_IDLE_MAX = 4


class Readers:
    """Hands out reading connections. Every read fetches its rows whole, so none keeps the WAL from shrinking."""

    def __init__(
        self,
        path: str,
        connect: Callable[[], apsw.Connection],
        check: Callable[[], None],
        idle_max: int = _IDLE_MAX,
    ) -> None:
        self._path = path
        self._connect = connect
        self._check = check  # before each read, while nobody closes the file
        self._idle_max = idle_max
        self._idle: list[apsw.Connection] = []
        self._busy = 0
        self._closed = False
        self._paused = False
        self._lock = threading.Lock()
        self._changed = Waiters()
        watch_forks(self)

    @contextlib.contextmanager
    def connection(self) -> Iterator[apsw.Connection]:
        """For a block that no interrupt comes into, but for what it calls by `allowed`."""
        with deferred():
            connection = self._take()
            try:
                self._check()
                connection = connection or allowed(self._connect)
                yield connection
            except BaseException:
                if connection is not None:
                    connection.close()  # whoever keeps the error would keep a read under way
                    connection = None
                raise
            finally:
                self._give_back(connection)

    @deferred()
    def close(self) -> None:
        """Wait for reads under way, then refuse every other."""
        with self._lock:
            self._closed = True
        self._changed.tell()
        self._changed.wait_until(lambda: not self._busy)
        with self._lock:
            self._close_idle()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def pause(self, timeout_s: float) -> bool:
        """Return when no read is under way; none begins before `go_on`. False if one takes longer."""
        with self._lock:
            self._paused = True
        self._changed.wait_until(lambda: not self._busy, timeout_s)
        with self._lock:
            self._paused = not self._busy
        self._changed.tell()
        return self._paused

    def go_on(self) -> None:
        self._paused = False
        self._changed.tell()

    def abandon(self) -> None:
        """Let go of the file as it is, as a process does that is killed."""
        for connection in self._idle:
            let_go(connection)

    def connections(self) -> list[apsw.Connection]:
        return list(self._idle)

    def _take(self) -> apsw.Connection | None:
        while True:
            self._changed.wait_until(lambda: not self._paused)
            with self._lock:
                if self._closed:
                    raise StoreClosedError(self._path)
                if not self._paused:
                    self._busy += 1
                    return self._idle.pop() if self._idle else None

    def _give_back(self, connection: apsw.Connection | None) -> None:
        with self._lock:
            self._busy -= 1
            if connection is not None:
                self._idle.append(connection)
            if len(self._idle) > self._idle_max:
                self._idle.pop().close()
        self._changed.tell()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
