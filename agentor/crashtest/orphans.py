"""Leaving no process behind: neither when one is ended, nor when whoever would end it dies first.

What a tool has started belongs to the group of its process, unless it has made a session of its own. Linux can hand
such orphans to the program that forks the processes, and can kill a process when its parent dies; elsewhere both
are left to themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

# From linux/prctl.h.
_SET_PDEATHSIG: Final = 1
_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """From now on the orphans among our descendants become our children, where the system can do that."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent is dead, where the system can do that. For a child of it, right after the fork.

    The system looks at the thread that forked: it must be one that lives as long as the parent.
    """
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has been dead for a moment already
        os._exit(1)


def end(child: int) -> int:
    """Kill a child of ours that leads a process group, and what it has left behind. Its exit code, negative for a
    signal; the one that it had ended with if it was not waited for yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # before it had a group of its own
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _end_orphans()
    return os.waitstatus_to_exitcode(status)


def _end_orphans() -> None:
    beyond_us: set[int] = set()  # they have become another user
    while orphans := set(_children()) - beyond_us:  # of one that is killed the children come to us
        for orphan in orphans:
            try:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
            except PermissionError:
                beyond_us.add(orphan)


def _children() -> list[int]:
    """Ours, dead ones included that nobody has waited for, where the system tells."""
    with contextlib.suppress(OSError):
        told = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii")
        return [int(pid) for pid in told.split()]
    return []


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))
