"""Who holds a lease: a string that says which process it was, exactly enough to know when it is gone.

    1234@myhost/<boot id>/<pid namespace>/<start time of the process>/<random>

Process ids are used again, so the start time is part of the name; boot id and pid namespace say where the
process id means anything. The random part tells two holders in one process apart.

That a holder has ended must be proven: there is no process of its id, or it started at another time, or is a zombie. A
/proc that is hidden, not mounted, or of another namespace proves nothing, and then the lease's own end decides.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from agentor.engine import clock

_UNKNOWN = "-"


def owner_id() -> str:
    """A new name for one holder in this process; no other call returns it."""
    pid = os.getpid()
    found = _stat(pid)
    here = "/".join((_boot_id(), _pid_namespace(), found.start_time if found else _UNKNOWN))
    return f"{pid}@{socket.gethostname()}/{here}/{clock.new_id()[:8]}"


def is_gone(owner: str) -> bool:
    """Whether the owner's process has provably ended. False when that cannot be known from here."""
    try:
        process, boot_id, namespace, start_time, _ = owner.rsplit("/", 4)
        pid = int(process.split("@", 1)[0])
    except ValueError:  # a name somebody chose for himself
        return False
    if _UNKNOWN in (boot_id, namespace, start_time):
        return False
    if (boot_id, namespace) != (_boot_id(), _pid_namespace()):
        return False
    if not _exists(pid):
        return True
    found = _stat(pid)
    return found is not None and (found.state in "ZX" or found.start_time != start_time)


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip() or _UNKNOWN


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:")
    except OSError:
        return _UNKNOWN


class _Stat(NamedTuple):
    state: str  # Z, X: it has ended, and nobody has asked yet how
    start_time: str  # clock ticks since boot


def _exists(pid: int) -> bool:
    """Whether there is a process of this id, asked of the system itself: /proc may hide those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's; no process id, so none of our names
        return True
    return True


def _stat(pid: int) -> _Stat | None:
    """None if /proc does not tell, or tells of another namespace's processes."""
    if not _is_proc_ours() or not (stat := _read(f"/proc/{pid}/stat")):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold anything
    return _Stat(fields[0], fields[19])


def _is_proc_ours() -> bool:
    """Not so in a new pid namespace that has kept the /proc of its parent."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
