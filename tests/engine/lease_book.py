"""Stores of leases that write down what they are asked, for tests of the keeper."""

from __future__ import annotations

import asyncio
import threading

from agentor.engine.store.protocol import Lease
from tests.engine.leases import TestClock


class Book:
    """A store of leases that writes down what it is asked and when, and does as it is told."""

    blocking = False
    lease_ttl_s = 60.0

    def __init__(self, time: TestClock) -> None:
        self._time, self._began = time, time.monotonic()
        self.asked: list[tuple[str, float]] = []
        self.threads: list[threading.Thread] = []
        self.owners: list[str] = []
        self.released: list[Lease] = []
        self.fault: Exception | None = None
        self.let_go_of = threading.Event()  # a lease was released

    def _note(self, verb: str) -> None:
        self.asked.append((verb, self._time.monotonic() - self._began))
        self.threads.append(threading.current_thread())
        if self.fault is not None:
            raise self.fault

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        self._note("acquire")
        self.owners.append(owner)
        return Lease(run_id, owner, 1, self._time.now() + ttl_s, ttl_s)

    def renew(self, lease: Lease) -> Lease:
        self._note("renew")
        expires_at = self._time.now() + lease.ttl_s
        return Lease(lease.run_id, lease.owner, lease.term, expires_at, lease.ttl_s)

    def release(self, lease: Lease) -> None:
        self._note("release")
        self.released.append(lease)
        self.let_go_of.set()


class Hanging(Book):
    """Its renewals hang, in a thread of their own, until they are let go."""

    blocking = True

    def __init__(self, time: TestClock) -> None:
        super().__init__(time)
        self.let_go = threading.Event()
        self.loop = asyncio.get_running_loop()
        self.renewing = asyncio.Event()

    def renew(self, lease: Lease) -> Lease:
        self.loop.call_soon_threadsafe(self.renewing.set)
        self.let_go.wait(60)
        return super().renew(lease)
