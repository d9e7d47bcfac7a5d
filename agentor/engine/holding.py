"""Holding a run for what could not be stopped.

A thread cannot be cancelled. When a run ends before the thread of one of its sync tools does, the call is still under way:
another worker that took the run over would start it a second time beside the first. So the lease is kept until the thread
has ended. A thread ends at the latest with its process, and the lease of a dead process is free at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from agentor.engine import clock
from agentor.engine.store.protocol import Lease, Leases
from agentor.errors import LeaseLostError

logger = logging.getLogger("agentor")

RENEWALS_PER_TTL: Final = 3


def hold(store: Leases, lease: Lease, threads: Sequence[threading.Thread]) -> None:
    """Renew the lease until the last thread has ended, then release it. Returns at once.

    In a daemon thread: the loop that the run lived on may end, and the interpreter's exit waits for nothing here.
    """
    name = f"agentor-hold-{lease.run_id}"
    key = id(store), lease.run_id
    _held[key] = threads
    threading.Thread(target=_hold, args=(store, lease, threads), name=name, daemon=True).start()


_held: dict[tuple[int, str], Sequence[threading.Thread]] = {}  # by store and run


def held_for(store: object, run_id: str) -> list[str]:
    """The tools of this process whose threads the run is held for, by name; [] if it is not."""
    threads = _held.get((id(store), run_id), ())
    return [thread.name.removeprefix("agentor-tool-") for thread in threads if thread.is_alive()]


def _hold(store: Leases, lease: Lease, threads: Sequence[threading.Thread]) -> None:
    key = id(store), lease.run_id
    try:
        for thread in threads:
            while thread.is_alive():
                lease = _renewed(store, lease)
                thread.join(lease.ttl_s / RENEWALS_PER_TTL)
        store.release(lease)
    except LeaseLostError as error:
        logger.warning("run %s: its lease was lost while a tool still ran: %s", lease.run_id, error)
    except Exception as error:  # it expires by itself
        logger.warning("run %s: its lease could not be held or released (%s)", lease.run_id, error)
    finally:
        if _held.get(key) is threads:
            del _held[key]


def _renewed(store: Leases, lease: Lease) -> Lease:
    """The lease, renewed if the store can; a busy or full disk is tried again until the lease has expired."""
    try:
        return store.renew(lease)
    except LeaseLostError:
        raise
    except Exception:
        if clock.now() >= lease.expires_at:
            raise
        return lease
