"""Disks that fail on demand, for SQLite: one that is full, and one that forgets what was not synced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw


class _BrokenError(apsw.IOError):
    extendedresult = apsw.SQLITE_IOERR_WRITE


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name

    def xWrite(self, data: bytes, offset: int) -> None:
        if self.disk.is_full:
            raise apsw.FullError("the disk is full")
        if self.disk.is_broken:
            raise _BrokenError("the disk is broken")
        super().xWrite(data, offset)
        self.disk.on_its_way(self.path).append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self.disk.on_its_way(self.path).append((size, None))

    def xSync(self, flags: int) -> None:
        changes = self.disk.on_its_way(self.path)
        if self.disk.cannot_sync:
            changes.clear()
            raise apsw.IOError("the disk cannot sync")
        super().xSync(flags)
        self.disk.syncs += 1
        if self.path:
            content = self.disk.durable.setdefault(self.path, bytearray())
            for offset, data in changes:
                put(content, offset, data)
        changes.clear()


def put(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write `data` at an offset; None cuts the content off there."""
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(offset - len(content), 0)))
    content[offset : offset + len(data)] = data


class FaultyDisk(apsw.VFS):
    """An SQLite VFS. `durable` is what would be left of each file after a power cut now.

    While it cannot sync, what was written stays in the system's cache for everyone to see, and no later sync writes
    it: that is what Linux makes of a failed fsync.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.is_full = False
        self.is_broken = False
        self.cannot_sync = False
        self.syncs = 0
        self.durable: dict[str, bytearray] = {}
        self._on_their_way: dict[str | None, list[tuple[int, bytes | None]]] = {}

    def xOpen(self, name: Any, flags: list[int]) -> FaultyFile:
        return FaultyFile(self, name, flags)

    def xDelete(self, path: str, sync_directory: bool) -> None:
        super().xDelete(path, sync_directory)
        self.durable.pop(path, None)
        self._on_their_way.pop(path, None)

    def on_its_way(self, path: str | None) -> list[tuple[int, bytes | None]]:
        """What was written to a file since its last sync."""
        return self._on_their_way.setdefault(path, [])

    def after_power_cut(self, directory: Path) -> None:
        """Write into `directory` what the disk would hold after a power cut."""
        for path, content in self.durable.items():
            (directory / Path(path).name).write_bytes(content)
