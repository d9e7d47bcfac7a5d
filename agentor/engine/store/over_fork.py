"""Locks that no fork catches half-way: whoever forks takes them all first.

A child has the memory of its parent and one of its threads. A lock that another thread held would stay locked there for
ever, and what it guards would be half-done. So a fork waits for the holders; they hold for moments and wait for nothing.
"""

from __future__ import annotations

import os
import threading
import weakref

_forking = threading.Lock()
_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_taken: list[threading.Lock] = []


def new_lock() -> threading.Lock:
    """A lock that is free in a forked child, with what it guards whole."""
    lock = threading.Lock()
    with _forking:
        _locks.add(lock)
    return lock


def _before() -> None:
    _forking.acquire()
    for lock in list(_locks):
        lock.acquire()
        _taken.append(lock)


def _after() -> None:
    for lock in _taken:
        lock.release()
    _taken.clear()
    _forking.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
