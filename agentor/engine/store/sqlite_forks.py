"""What becomes of open stores when the process is forked.

Nothing may be under way when the process is copied, and the child lets go of all it inherits: SQLite would else believe
that the child has the locks which only the parent has, also for a new connection. So a fork waits for what is under way,
but not for ever: what it waits for may be waiting for the fork, as in a transactional tool that starts a process. Then the
child keeps everything as it is, and may not use SQLite at all.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable
from typing import Final, Protocol

import apsw

from agentor.engine import clock
from agentor.engine.store import sqlite_guard as guard

WAIT_S: Final = 2.0  # in all, for whatever is under way


class Forkable(Protocol):
    """What holds connections, and what it does around os.fork."""

    def pause(self, timeout_s: float) -> bool:
        """Return when nothing is under way, and let nothing begin before `go_on`; False if that takes too long."""

    def go_on(self) -> None: ...

    def connections(self) -> Iterable[apsw.Connection]:
        """Those that no read under way is using."""


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_paused: list[Forkable] = []
_busy: list[Forkable] = []
_holds_openings = False


def watch_forks(holder: Forkable) -> None:
    _watched.add(holder)


def _before_fork() -> None:
    global _holds_openings
    until = clock.monotonic() + WAIT_S
    _holds_openings = guard.hold_openings(WAIT_S)
    for holder in list(_watched):
        is_paused = holder.pause(max(until - clock.monotonic(), 0.0))
        (_paused if is_paused else _busy).append(holder)


def _after_in_parent() -> None:
    for holder in _paused:
        holder.go_on()
    _paused.clear()
    _busy.clear()
    if _holds_openings:
        guard.go_on_opening()


def _after_in_child() -> None:
    is_spoilt = bool(_busy) or not _holds_openings
    for holder in [*_paused, *_busy]:
        for connection in holder.connections():
            if is_spoilt:
                _keep_for_ever(connection)
            else:
                guard.let_go(connection)
    _paused.clear()
    _busy.clear()
    guard.begin_anew(is_spoilt)


def _keep_for_ever(connection: apsw.Connection) -> None:
    """Closing it would wait for a thread that the child does not have, or undo in shared memory what the parent does."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
