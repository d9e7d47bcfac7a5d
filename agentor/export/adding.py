"""Bring events into a store so that nobody takes a part of them for the run.

A part of a run looks like a run that has just come so far: a worker would go on with it, and do again what the rest says
is done. So a new run appears at once, and what cannot be one commit is written while the run is held.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.holding import RENEWALS_PER_TTL
from agentor.engine.lease import DEFAULT_TTL_S
from agentor.engine.store.owner import owner_id
from agentor.engine.store.protocol import AppendsMany, Creates, Lease, Leases, Store
from agentor.errors import RunExistsError

logger = logging.getLogger("agentor")


def add_events(
    store: Store, run_id: str, events: Sequence[Event], *, is_new: bool, check: Callable[[], None]
) -> None:
    """Write the events that a run lacks at its end, or all of a run that `is_new`.

    `check` raises if they are no longer what it lacks, and is asked when nobody else can write, if the store has leases.
    `SequenceConflictError`; `LeaseHeldError`: somebody works on the run; `LeaseLostError`: somebody does since.
    """
    if is_new and isinstance(store, Creates):
        with contextlib.suppress(RunExistsError):  # or a file without an event: `check` tells
            store.create_run(run_id, events)
            return
    elif is_new and isinstance(store, AppendsMany):
        store.append_many(run_id, events)
        return
    if not isinstance(store, Leases):
        _append(store, run_id, events, None)
        return
    with _held(store, run_id) as held:
        check()
        _append(store, run_id, events, held)


class _Held:
    """A lease that is renewed in time by whoever says `kept` often enough."""

    def __init__(self, store: Leases, run_id: str) -> None:
        ttl_s = float(getattr(store, "lease_ttl_s", DEFAULT_TTL_S))
        self._store = store
        self._renewed_at = clock.monotonic()
        self.lease = store.acquire(run_id, owner_id(), ttl_s)

    def kept(self) -> Lease:
        now = clock.monotonic()
        if now - self._renewed_at >= self.lease.ttl_s / RENEWALS_PER_TTL:
            self.lease = self._store.renew(self.lease)
            self._renewed_at = now
        return self.lease


@contextlib.contextmanager
def _held(store: Leases, run_id: str) -> Iterator[_Held]:
    held = _Held(store, run_id)
    try:
        yield held
    finally:
        try:
            store.release(held.lease)
        except Exception as error:
            logger.warning("run %s: its lease was not released (%s); it expires", run_id, error)


def _append(store: Store, run_id: str, events: Sequence[Event], held: _Held | None) -> None:
    if isinstance(store, AppendsMany):
        store.append_many(run_id, events, held.kept() if held else None)
        return
    for event in events:
        if held is not None:
            held.kept()
        store.append(run_id, event)
