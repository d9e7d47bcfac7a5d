"""Taking a run over in a test, whatever the store keeps its leases in."""

from __future__ import annotations

from typing import Any

from agentor.engine import clock
from agentor.engine.clock import SystemClock
from agentor.engine.store.protocol import Lease


class Later(SystemClock):
    """Some time from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


def force_takeover(store: Any, run_id: str) -> Lease:
    """The lease as somebody gets it who finds the present one expired."""
    with clock.installed(Later(3600)):
        lease: Lease = store.acquire(run_id, "rival", 30.0)
    return lease
