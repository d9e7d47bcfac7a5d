"""Holding a run for what could not be stopped.

A thread cannot be cancelled. When a run ends before the thread of one of its sync tools does, the call is still under way:
another worker that took the run over would start it a second time beside the first. So the lease is kept until the thread
has ended. A thread ends at the latest with its process, and the lease of a dead process is free at once.

Not every lease has an end of its own: a lock on a file has none while its process lives. So nothing but a lease that is
lost, or a store that is closed, ends the holding before the thread has ended and the lease is let go.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Final

from agentor.engine.clock import pause
from agentor.engine.store.own import answer_of
from agentor.engine.store.protocol import Lease, Leases
from agentor.errors import LeaseLostError, StoreClosedError

logger = logging.getLogger("agentor")

RENEWALS_PER_TTL: Final = 3
_RELEASES: Final = RENEWALS_PER_TTL + 1  # tried for as long as a lease lasts, if it ends by itself


def hold(store: Leases, lease: Lease, threads: Sequence[threading.Thread]) -> None:
    """Renew the lease until the last thread has ended, then release it. Returns at once.

    In a daemon thread: the loop that the run lived on may end, and the interpreter's exit waits for nothing here.
    """
    _held[id(store), lease.run_id] = threads
    _begin(store, lease, threads)


def _begin(store: Leases, lease: Lease, threads: Sequence[threading.Thread]) -> None:
    name = f"agentor-hold-{lease.run_id}"
    holder = threading.Thread(target=_hold, args=(store, lease, threads), name=name, daemon=True)
    try:
        holder.start()
    except RuntimeError as error:  # the system gives no thread now
        if any(thread.is_alive() for thread in threads):
            logger.warning("run %s: its lease is not renewed for now (%s)", lease.run_id, error)
            _not_begun.append((store, lease, threads))
        else:
            _hold(store, lease, threads, releases=1)


_held: dict[tuple[int, str], Sequence[threading.Thread]] = {}  # by store and run
_not_begun: list[tuple[Leases, Lease, Sequence[threading.Thread]]] = []


def held_for(store: object, run_id: str) -> list[str]:
    """The tools of this process whose threads the run is held for, by name; [] if it is not."""
    # Whoever was refused asks, and is not to be refused for ever.
    with contextlib.suppress(IndexError):  # another loop's thread may take them beside us
        for _ in range(len(_not_begun)):
            _begin(*_not_begun.pop(0))
    threads = _held.get((id(store), run_id), ())
    return [thread.name.removeprefix("agentor-tool-") for thread in threads if thread.is_alive()]


def _hold(
    store: Leases,
    lease: Lease,
    threads: Sequence[threading.Thread],
    releases: int = _RELEASES,
) -> None:
    try:
        _release(store, _kept(store, lease, threads), releases)
    except LeaseLostError as error:
        logger.warning("run %s: its lease was lost while a tool still ran: %s", lease.run_id, error)
    except Exception as error:
        logger.warning("run %s: its lease could not be held or released (%s)", lease.run_id, error)
    finally:
        key = id(store), lease.run_id
        if _held.get(key) is threads:
            del _held[key]


def _kept(store: Leases, lease: Lease, threads: Sequence[threading.Thread]) -> Lease:
    """The lease as it was last renewed, when the last thread has ended."""
    for thread in threads:
        while thread.is_alive():
            lease = _renewed(store, lease)
            thread.join(lease.ttl_s / RENEWALS_PER_TTL)
    return lease


def _renewed(store: Leases, lease: Lease) -> Lease:
    """The lease, renewed if the store can. `LeaseLostError`, `StoreClosedError`: it cannot be held any more."""
    try:
        return answer_of(store.renew, lease)
    except (LeaseLostError, StoreClosedError):
        raise
    except Exception as error:  # a busy or full disk, or one that does not answer: the call goes on
        logger.warning("run %s: its lease was not renewed (%s)", lease.run_id, error)
        return lease


def _release(store: Leases, lease: Lease, tries: int) -> None:
    """Let the run go, at the last of some tries a third of the lease's time apart."""
    for left in reversed(range(tries)):
        try:
            answer_of(store.release, lease)
        except (LeaseLostError, StoreClosedError):
            raise
        except Exception:
            if not left:
                raise
        else:
            return
        pause(lease.ttl_s / RENEWALS_PER_TTL)
