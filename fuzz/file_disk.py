"""The simulated disk under a file store: what its modules call `os`, with the faults of `fuzz.disk`.

Real files show what running processes see; the `Disk` knows what is on the platter, names of files included: those are
there when their directory was synced. Files change at virtual times, so that their order and age are the world's.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

import apsw

from fuzz.disk import Call, Disk, Inode
from fuzz.threads import ProcessEnded

if TYPE_CHECKING:
    from fuzz.worker import Worker
    from fuzz.world import World

_TICK_NS: Final = 1_000  # between two changes at one virtual moment


class FileSystem:
    """In place of the module `os`, for the files below one directory."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._disk: Disk = world.disk
        self._directory = directory
        self._open: dict[int, tuple[str, Inode | None]] = {}  # None: a directory
        self._owners: dict[int, Worker | None] = {}  # of what is open

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        name = os.fspath(path)
        is_new = not os.path.exists(name)
        if is_new and flags & os.O_CREAT:
            self._begin()
        descriptor = os.open(name, flags, mode, **more)
        if not name.startswith(self._directory):
            return descriptor
        self._owners[descriptor] = self._running()
        if os.path.isdir(name):
            self._open[descriptor] = name, None
        else:
            self._open[descriptor] = name, self._disk.inode(name, created=is_new, journal=False)
            if is_new:
                self._changed(name)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._owners.pop(descriptor, None)
        os.close(descriptor)

    def killed(self, worker: Worker) -> None:
        """What a process had open is closed, and its locks are gone."""
        for descriptor in [each for each, owner in self._owners.items() if owner is worker]:
            self.close(descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._enter("read")
        return os.pread(descriptor, size, offset)

    def write(self, descriptor: int, content: bytes) -> int:
        return self.pwrite(descriptor, content, os.fstat(descriptor).st_size)

    def pwrite(self, descriptor: int, content: bytes, offset: int) -> int:
        worker = self._begin()
        if worker is not None and worker.dies_at == "in a write":
            if worker.rng.random() < 0.5:
                self._put(descriptor, content[: worker.rng.randrange(len(content) + 1)], offset)
                worker.die()
                raise ProcessEnded
            worker.dies_at = "before a sync"
        effect = self._enter("write")
        if self._disk.full and offset + len(content) > os.fstat(descriptor).st_size:
            self._disk.faults["write full"] += 1
            raise OSError(errno.ENOSPC, "planned: the disk is full")
        if effect == "power":
            self._inode(descriptor).changed(offset, content)
            self._cut("write")
        return self._put(descriptor, content, offset)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._begin()
        effect = self._enter("truncate")
        if os.fstat(descriptor).st_size != size:
            self._inode(descriptor).changed(size, None)
        if effect == "power":
            self._cut("truncate")
        os.ftruncate(descriptor, size)
        self._changed(self._open[descriptor][0])

    def fsync(self, descriptor: int) -> None:
        worker = self._begin()
        if worker is not None and worker.dies_at == "before a sync" and worker.rng.random() < 0.5:
            worker.die()
            raise ProcessEnded
        name, inode = self._open.get(descriptor) or self._followed(descriptor)
        try:
            effect = self._enter("sync")
        except OSError:
            if inode is not None and self._disk.powered:  # see `xSync` of the SQLite disk
                inode.unsynced.clear()
            raise
        if effect == "power":
            self._cut("sync")
        if inode is None:
            self._disk.directory_synced(name)
        else:
            self._disk.synced(inode)

    def link(self, source: Any, target: Any) -> None:
        self._begin()
        os.link(source, target)
        self._disk.named(os.fspath(source), os.fspath(target))
        self._changed(os.fspath(target))

    def replace(self, source: Any, target: Any) -> None:
        self._begin()
        os.replace(source, target)
        self._disk.named(os.fspath(source), os.fspath(target))
        self._disk.deleted(os.fspath(source), syncs_directory=False)
        self._changed(os.fspath(target))

    def unlink(self, path: Any, **more: Any) -> None:
        name = os.fspath(path)
        if not name.startswith(self._directory):
            os.unlink(path, **more)
            return
        self._begin()
        os.unlink(name)
        self._disk.deleted(name, syncs_directory=False)
        self._disk.writes += 1

    def restored(self) -> None:
        """The power is back: nobody has anything open, and what is there is as old as it may be."""
        for place, _, names in os.walk(self._directory):
            for name in names:
                self._changed(os.path.join(place, name))

    def _put(self, descriptor: int, content: bytes, offset: int) -> int:
        name, _ = self._open[descriptor]
        self._inode(descriptor).changed(offset, content)
        written = os.pwrite(descriptor, content, offset)
        self._changed(name)
        return written

    def _followed(self, descriptor: int) -> tuple[str, Inode]:
        """What a tail has open, which is not opened here, and still lies at its path."""
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        return name, self._disk.inode(name, created=False, journal=False)

    def _inode(self, descriptor: int) -> Inode:
        inode = self._open[descriptor][1]
        assert inode is not None
        return inode

    def _begin(self) -> Worker | None:
        """Whoever changes something; nobody who is dead does."""
        worker = self._running()
        if worker is not None and worker.dead:
            raise ProcessEnded
        return worker

    def _running(self) -> Worker | None:
        process = self._world.timeline.current
        found = (each for each in self._world.workers.values() if each.loop is process)
        return next(found, None)

    def _enter(self, call: Call) -> str | None:
        try:
            return self._disk.enter(call)
        except apsw.FullError:
            raise OSError(errno.ENOSPC, "planned: the disk is full") from None
        except apsw.Error as error:
            raise OSError(errno.EIO, str(error)) from None

    def _cut(self, call: str) -> None:
        self._disk.cut_power()
        raise OSError(errno.EIO, f"planned: the power went at a {call}")

    def _changed(self, name: str) -> None:
        self._disk.writes += 1
        at_ns = int(self._world.timeline.now * 1e9) + self._disk.writes * _TICK_NS
        os.utime(name, ns=(at_ns, at_ns))
