"""A disk that fails: an SQLite VFS over real files that knows what a power cut would leave of them.

A write reaches the operating system's cache at once and the platter with the next sync; so does a directory entry.
The real files show the cache, since that is what running processes see. The `Disk` beside them remembers the platter
and every write that is still on its way to it. When the power goes, each of those may be lost, kept, torn at a sector,
or overtaken by another; `restore` rewrites the real files accordingly.

Every call is counted by kind, so that a fault can be planned for the n-th of its kind.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import apsw

SECTOR: Final = 512  # bytes that a disk writes whole or not at all

Call: TypeAlias = Literal["open", "read", "write", "sync", "truncate", "delete", "lock"]
Survival: TypeAlias = Literal["lost", "kept", "torn", "mixed"]  # of what was not yet synced
Effect: TypeAlias = Literal["power", "error", "full", "busy", "short"]

SURVIVALS: Final[tuple[Survival, ...]] = ("lost", "kept", "torn", "mixed")

_JOURNALS: Final = (
    apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
)
_ERROR_CODES: Final = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "lock": apsw.SQLITE_IOERR_LOCK,
    "open": apsw.SQLITE_IOERR,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the `at`-th call of a kind (from 1), and at the `times - 1` calls of that kind after it."""

    call: Call
    effect: Effect
    at: int
    times: int = 1

    def hits(self, call: str, number: int) -> bool:
        return call == self.call and self.at <= number < self.at + self.times


class _Change(NamedTuple):
    """A write (data at an offset) or a truncation (to a size) that is not on the platter yet."""

    offset: int
    data: bytes | None

    def applied_to(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            return
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data

    def torn(self, sectors: int) -> _Change:
        """Only the first sectors of it."""
        return self if self.data is None else _Change(self.offset, self.data[: sectors * SECTOR])


@dataclass(eq=False, slots=True)
class Inode:
    platter: bytearray = field(default_factory=bytearray)
    unsynced: list[_Change] = field(default_factory=list)
    syncs_directory: bool = False  # SQLite's own journals sync their directory when first synced

    def changed(self, offset: int, data: bytes | None) -> None:
        """Data was written at an offset, or (None) the file was cut off there: so far in the cache only."""
        self.unsynced.append(_Change(offset, data))


class Disk:
    """One disk: its platter, its cache, and the faults it is to have."""

    def __init__(self, seed: int | str = 0) -> None:
        self.calls: Counter[str] = Counter()
        self.writes = 0  # by anybody
        self.faults: Counter[str] = Counter()  # that have happened, by "call effect"
        self.plan: Fault | None = None
        self.full = False  # nothing more can be allocated
        self.powered = True
        self.on_sleep: Callable[[float], None] | None = None  # told of seconds waited for a lock
        self.vfs_name: str | None = None
        self._spared = False
        self._random = random.Random(seed)
        self._cached: dict[str, Inode] = {}  # the directory as processes see it
        self._on_platter: dict[str, Inode] = {}

    # What the VFS asks ---------------------------------------------------------------------------------------------

    def enter(self, call: Call) -> Effect | None:
        """Count a call and raise what is planned for it. "power" and "short" are left to the caller."""
        if not self.powered:
            if call != "lock":  # so that connections can be closed
                raise _PlannedError(call)
            return None
        if self._spared:
            return None
        number = self.calls[call] = self.calls[call] + 1
        plan = self.plan
        if plan is None or not plan.hits(call, number):
            return None
        self.faults[f"{call} {plan.effect}"] += 1
        match plan.effect:
            case "error":
                raise _PlannedError(call)
            case "full":
                raise apsw.FullError("planned: the disk is full")
            case "busy":
                raise apsw.BusyError("planned: locked")
        return plan.effect

    def inode(self, path: str, *, created: bool, journal: bool) -> Inode:
        """The file behind a path; one made behind SQLite's back and not empty counts as on the platter."""
        known = self._cached.get(path)
        if known is not None and not created:
            return known
        inode = self._cached[path] = Inode(syncs_directory=created and journal)
        if not created and os.path.getsize(path):
            with open(path, "rb") as file:
                inode.platter.extend(file.read())
            self._on_platter[path] = inode
        return inode

    def synced(self, inode: Inode) -> None:
        for change in inode.unsynced:
            change.applied_to(inode.platter)
        inode.unsynced.clear()
        if inode.syncs_directory:
            inode.syncs_directory = False
            self._on_platter = dict(self._cached)

    def deleted(self, path: str, syncs_directory: bool) -> None:
        self._cached.pop(path, None)
        if syncs_directory:
            self._on_platter = dict(self._cached)

    def directory_synced(self, directory: str) -> None:
        """The names in a directory are on the platter as they stand, those that are gone too."""
        elsewhere = {p: i for p, i in self._on_platter.items() if os.path.dirname(p) != directory}
        here = {p: i for p, i in self._cached.items() if os.path.dirname(p) == directory}
        self._on_platter = elsewhere | here

    def named(self, path: str, name: str) -> None:
        """A file has another name as well."""
        self._cached[name] = self._cached[path]

    def cut_power(self) -> None:
        self.powered = False

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """For somebody who only looks: calls inside are neither counted nor hit by a planned fault."""
        self._spared = True
        try:
            yield
        finally:
            self._spared = False

    # After a power cut ----------------------------------------------------------------------------------------------

    def restore(self, survival: Survival) -> None:
        """Turn the power on: what was not synced has this fate. No connection may be open."""
        chosen = {path: self._entry(path, survival) for path in self._cached | self._on_platter}
        for path, inode in chosen.items():
            _forget(path + "-shm")
            if inode is None:
                _forget(path)
                continue
            self._settle(inode, survival)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "r+b" if os.path.exists(path) else "wb") as file:
                file.write(inode.platter)
                file.truncate()
        self._cached = {path: inode for path, inode in chosen.items() if inode is not None}
        self._on_platter = dict(self._cached)
        self.powered = True

    def _entry(self, path: str, survival: Survival) -> Inode | None:
        cached, settled = self._cached.get(path), self._on_platter.get(path)
        match survival:
            case "lost":
                return settled
            case "mixed":
                return self._random.choice((cached, settled))
        return cached

    def _settle(self, inode: Inode, survival: Survival) -> None:
        for change in self._survivors(inode.unsynced, survival):
            change.applied_to(inode.platter)
        inode.unsynced.clear()

    def _survivors(self, changes: list[_Change], survival: Survival) -> Iterator[_Change]:
        match survival:
            case "lost":
                return
            case "kept":
                yield from changes
            case "torn":
                yield from changes[:-1]
                for last in changes[-1:]:
                    yield self._torn(last)
            case "mixed":
                kept = [change for change in changes if self._random.random() < 0.5]
                self._random.shuffle(kept)
                for change in kept:
                    yield self._torn(change) if self._random.random() < 0.3 else change

    def _torn(self, change: _Change) -> _Change:
        sectors = 1 if change.data is None else max(1, len(change.data) // SECTOR)
        return change.torn(self._random.randrange(sectors))


class DiskVFS(apsw.VFS):
    """Registers a disk with SQLite under a name, until `unregister`."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        disk.vfs_name = name
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile("", name, flags)  # a temporary file: gone after any crash
        if self._disk.enter("open") == "power":
            self._disk.cut_power()
            raise _PlannedError("open")
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        existed = os.path.exists(path)
        return _DiskFile(self._disk, path, name, flags, existed)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._disk.enter("delete") == "power":
            self._disk.cut_power()
            raise _PlannedError("delete")
        super().xDelete(filename, syncdir)
        self._disk.deleted(filename, syncdir)

    def xSleep(self, microseconds: int) -> int:
        if self._disk.on_sleep is not None:
            self._disk.on_sleep(microseconds / 1e6)
        return microseconds


_read: Final = apsw.VFSFile.xRead  # quicker than by way of `super`
_write: Final = apsw.VFSFile.xWrite


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, path: str, name: Any, flags: list[int], existed: bool) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        self._inode = disk.inode(path, created=not existed, journal=bool(flags[0] & _JOURNALS))

    def xRead(self, amount: int, offset: int) -> bytes:
        effect = self._disk.enter("read")
        if effect == "short" and not self._is_wal:
            # Inside a database or a journal, SQLite takes what is missing for the end of the file: a disk that says so
            # lies, and nothing above it can tell. The unix VFS reads on, and fails if that brings nothing.
            raise _PlannedError("read")
        content = _read(self, amount, offset)
        return content[: len(content) // 2] if effect == "short" else content

    def xWrite(self, data: Any, offset: int) -> None:
        disk = self._disk
        effect = disk.enter("write")
        content = bytes(data)
        if disk.full and offset + len(content) > self.xFileSize():
            disk.faults["write full"] += 1
            raise apsw.FullError("the disk is full")
        disk.writes += 1
        self._inode.unsynced.append(_Change(offset, content))
        if effect == "power":
            disk.cut_power()
            raise _PlannedError("write")
        _write(self, content, offset)

    def xTruncate(self, size: int) -> None:
        effect = self._disk.enter("truncate")
        self._inode.unsynced.append(_Change(size, None))
        if effect == "power":
            self._disk.cut_power()
            raise _PlannedError("truncate")
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        try:
            effect = self._disk.enter("sync")
        except apsw.IOError:
            # As on Linux: what could not be written counts as clean from now on, and no later sync writes it.
            if self._disk.powered:
                self._inode.unsynced.clear()
            raise
        if effect == "power":
            self._disk.cut_power()
            raise _PlannedError("sync")
        self._disk.synced(self._inode)

    def xLock(self, level: int) -> None:
        self._disk.enter("lock")
        super().xLock(level)


class _PlannedError(apsw.IOError):
    """apsw tells SQLite the extended code that it finds here."""

    def __init__(self, call: str) -> None:
        super().__init__(f"planned: {call} failed")
        self.extendedresult = _ERROR_CODES[call]


def _forget(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
