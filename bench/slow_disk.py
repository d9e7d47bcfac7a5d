"""A disk on which every sync takes a while longer: what a commit costs then hides what the code around it costs."""

from __future__ import annotations

import time
from typing import Any

import apsw

NAME = "bench-slow-disk"


class SlowDisk(apsw.VFS):
    """The machine's own VFS with a pause before each sync. Keep the object: SQLite does not."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        super().__init__(NAME, "")

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
        return _SlowFile(self.pause_s, name, flags)


class _SlowFile(apsw.VFSFile):
    def __init__(self, pause_s: float, name: Any, flags: Any) -> None:
        self._pause_s = pause_s
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        time.sleep(self._pause_s)
        super().xSync(flags)


def slow_vfs(sync_ms: float) -> tuple[SlowDisk | None, str | None]:
    """The disk and its name for SQLite; None and None for the machine's own."""
    return (SlowDisk(sync_ms / 1000), NAME) if sync_ms else (None, None)
