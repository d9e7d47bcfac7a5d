"""Disks that fail on demand, for SQLite: one that is full, and one that forgets what was not synced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name

    def xWrite(self, data: bytes, offset: int) -> None:
        if self.disk.is_full:
            raise apsw.FullError("the disk is full")
        if self.disk.is_broken:
            raise apsw.IOError("the disk is broken")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self.disk.syncs += 1
        if self.path:
            # Through SQLite's own descriptor: opening the file here would drop the locks.
            self.disk.durable[self.path] = super().xRead(super().xFileSize(), 0)


class FaultyDisk(apsw.VFS):
    """An SQLite VFS. `durable` is what would be left of each file after a power cut now."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.is_full = False
        self.is_broken = False
        self.syncs = 0
        self.durable: dict[str, bytes] = {}

    def xOpen(self, name: Any, flags: list[int]) -> FaultyFile:
        return FaultyFile(self, name, flags)

    def after_power_cut(self, directory: Path) -> None:
        """Write into `directory` what the disk would hold after a power cut."""
        for path, content in self.durable.items():
            (directory / Path(path).name).write_bytes(content)
