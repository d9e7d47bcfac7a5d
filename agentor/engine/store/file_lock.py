"""Leases of the FileStore: an OS lock on a file beside the log, which dies with the process that holds it.

The lock file also remembers the term, so that it grows from holder to holder, and says who holds the run.
Unlike a lease in SQLite the lock does not expire while its process lives: it keeps workers apart, and a
worker that hangs keeps the run until it is killed.

Whoever lets a run go takes the lock file away, while the lock is still held: so nobody can have locked it meanwhile, and
whoever waited for it finds that what is locked is no longer what lies at the path, and begins again. The terms of a run
then start anew in the next process. That is safe, since a lease is good only in the store that holds its lock.

Should somebody else take the file away (a cleaning of dot files, a restore), then the lock keeps nobody out any more, and the
lease is lost: whoever holds it learns so by his next write or renewal.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentor.engine import clock
from agentor.engine.interrupts import deferred, held
from agentor.engine.store.file_errors import check_directory
from agentor.engine.store.file_reading import check_file
from agentor.engine.store.over_fork import new_lock
from agentor.engine.store.owner import is_gone
from agentor.engine.store.protocol import Holder, Lease
from agentor.errors import LeaseHeldError, LeaseLostError

_log = logging.getLogger("agentor.store")

_ANOTHER_USER = "a process of another user"  # whose lock file may not be read


class FileLocks:
    """The leases this store has given out, each with the open file that holds its lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, tuple[int, Lease]] = {}  # run id -> descriptor, lease
        self._terms: dict[str, int] = {}  # run id -> the last term given out here
        self._lock = new_lock()
        _all_locks.add(self)

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        with held(self._lock):
            if self._is_held(run_id) and self._held[run_id][1].owner == owner:
                return self._renewed(run_id, ttl_s)
            descriptor = self._locked(run_id)
            try:
                term = max(_read(descriptor).get("term", 0), self._terms.get(run_id, 0)) + 1
                lease = Lease(run_id, owner, term, clock.now() + ttl_s, ttl_s)
                _write(descriptor, _content(lease))
            except BaseException:
                os.close(descriptor)
                raise
            self._held[run_id] = (descriptor, lease)
            self._terms[run_id] = term
            return lease

    def renew(self, lease: Lease) -> Lease:
        with held(self._lock):
            self._check(lease)
            return self._renewed(lease.run_id, lease.ttl_s)

    def release(self, lease: Lease) -> None:
        with held(self._lock), contextlib.suppress(LeaseLostError):
            self._check_current(lease)
            self._let_go(lease.run_id)

    @deferred()
    def check(self, run_id: str, lease: Lease | None) -> None:
        """Refuse an append: with a lease unless it is the current one, without one while somebody holds the run."""
        if lease is None:
            self._check_free(run_id)
            return
        if lease.run_id != run_id:
            raise LeaseLostError(run_id)
        with held(self._lock):
            self._check(lease)

    @deferred()
    def holder(self, run_id: str) -> Holder | None:
        """Told by what is written in the lock file: even a short look at the lock itself would keep a worker out."""
        try:
            descriptor = self._open(run_id, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except LeaseHeldError as held:
            return Holder(held.owner or _ANOTHER_USER, None)
        try:
            told = _read(descriptor)
        finally:
            os.close(descriptor)
        owner = told.get("owner")
        return None if owner is None or is_gone(owner) else Holder(owner, None)

    @contextlib.contextmanager
    def removing(self, run_id: str) -> Iterator[None]:
        """Hold a run that nobody else holds, while it is taken away; its lock goes with it. `LeaseHeldError`."""
        with deferred():
            with held(self._lock):
                descriptor = self._locked(run_id)
            try:
                yield  # without our own lock: whoever waits for one file must not keep the other runs waiting
            finally:
                self._take_away(run_id, descriptor)

    def forget(self, run_id: str) -> None:
        """The run is gone, and with it the terms of its leases."""
        with held(self._lock):
            self._terms.pop(run_id, None)

    def close(self) -> None:
        with held(self._lock):
            for run_id in list(self._held):
                self._let_go(run_id)

    def drop(self) -> None:
        """In a forked child: close what is the parent's, and leave the locks to it."""
        for descriptor, _ in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _let_go(self, run_id: str) -> None:
        descriptor, lease = self._held.pop(run_id)
        try:
            # For those who have it open, and should it stay: nobody has this run.
            _write(descriptor, {"term": lease.term})
        finally:
            self._take_away(run_id, descriptor)

    def _take_away(self, run_id: str, descriptor: int) -> None:
        """Unlink a lock file while it is locked, and unlock it."""
        try:
            if is_at(descriptor, self._path(run_id)):
                os.unlink(self._path(run_id))
        except OSError:  # a directory that cannot be written any more: then it stays, as nobody's
            _log.debug("the lock file of run %r cannot be taken away", run_id, exc_info=True)
        finally:
            os.close(descriptor)

    def _renewed(self, run_id: str, ttl_s: float) -> Lease:
        descriptor, lease = self._held[run_id]
        renewed = Lease(run_id, lease.owner, lease.term, clock.now() + ttl_s, ttl_s)
        self._held[run_id] = (descriptor, renewed)
        _write(descriptor, _content(renewed))
        return renewed

    def _check(self, lease: Lease) -> None:
        self._check_current(lease)
        if not self._is_held(lease.run_id):
            holder = self.holder(lease.run_id)
            by = None if holder is None or holder.owner == lease.owner else holder.owner
            raise LeaseLostError(lease.run_id, by)

    def _is_held(self, run_id: str) -> bool:
        """Whether a run is ours, and the file that we have locked is still the one that others would lock."""
        if run_id not in self._held:
            return False
        if is_at(self._held[run_id][0], self._path(run_id)):
            return True
        check_directory(self._directory.parent)
        os.close(self._held.pop(run_id)[0])
        return False

    def _check_current(self, lease: Lease) -> None:
        held = self._held.get(lease.run_id)
        if held is None:
            raise LeaseLostError(lease.run_id)
        current = held[1]
        if (current.owner, current.term) != (lease.owner, lease.term):
            raise LeaseLostError(lease.run_id, current.owner, current.expires_at)

    def _check_free(self, run_id: str) -> None:
        try:
            descriptor = self._open(run_id, os.O_RDWR)
        except FileNotFoundError:  # nobody holds it
            return
        try:
            if "owner" in _read(
                descriptor
            ):  # alive, or dead without having said so: the lock tells
                _take(descriptor, run_id, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _locked(self, run_id: str) -> int:
        """A descriptor with the lock. A file that was deleted while we waited for it locks nobody out."""
        while True:
            # Alone: the store's own was made when it was opened.
            self._directory.mkdir(exist_ok=True)
            descriptor = self._open(run_id, os.O_RDWR | os.O_CREAT)
            try:
                _take(descriptor, run_id, fcntl.LOCK_EX)
            except BaseException:
                os.close(descriptor)
                raise
            if is_at(descriptor, self._path(run_id)):
                return descriptor
            os.close(descriptor)

    def _path(self, run_id: str) -> Path:
        return self._directory / f"{run_id}.lock"

    def _open(self, run_id: str, flags: int) -> int:
        path = self._path(run_id)
        try:
            check_file(path)
            return os.open(path, flags | os.O_CLOEXEC, 0o600)
        except PermissionError:
            if path.exists():  # it is there as long as somebody holds the run
                raise LeaseHeldError(run_id, _ANOTHER_USER, None) from None
            raise


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _take(descriptor: int, run_id: str, kind: int) -> None:
    # flock belongs to the open file, so it also keeps two holders in one process apart.
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _read(descriptor)
        raise LeaseHeldError(run_id, holder.get("owner"), holder.get("expires_at")) from None


def _read(descriptor: int) -> dict[str, Any]:
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    try:
        told = json.loads(content or b"{}")
    except ValueError:
        told = None
    # Torn by a crash, or just being written: somebody's, and whose is not known. The term starts anew.
    return told if isinstance(told, dict) else {"owner": None}


def _write(descriptor: int, content: dict[str, Any]) -> None:
    # Padded to one length: a shorter text would leave the end of the longer one before it.
    text = json.dumps(content).ljust(512).encode() + b"\n"
    if os.fstat(descriptor).st_size > len(text):  # of a holder with a long name
        os.ftruncate(descriptor, len(text))
    os.pwrite(descriptor, text, 0)


def _content(lease: Lease) -> dict[str, Any]:
    return {"term": lease.term, "owner": lease.owner, "expires_at": lease.expires_at}


_all_locks: weakref.WeakSet[FileLocks] = weakref.WeakSet()


def _drop_in_child() -> None:
    # A forked child shares the locked files; closing its copies leaves the lock to the parent alone.
    for locks in list(_all_locks):
        locks.drop()


os.register_at_fork(after_in_child=_drop_in_child)
