"""The slow disk for a subject that calls `os.fsync` itself: one sync at a time, each with a pause before it."""

from __future__ import annotations

import os
import threading
import time


def slow_fsync(sync_ms: float) -> None:
    """From now on in this process. 0 changes nothing."""
    if not sync_ms:
        return
    fsync, disk = os.fsync, threading.Lock()

    def wait_and_sync(fd: int) -> None:
        with disk:
            time.sleep(sync_ms / 1000)
            fsync(fd)

    os.fsync = wait_and_sync  # type: ignore[assignment]
