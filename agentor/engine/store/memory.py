"""A store in a dict: for tests, notebooks and runs that need to outlive nothing but a function call.

It keeps bodies, not objects, so that what is loaded is what any other store would give back: nothing that a
caller changes later, and nothing that JSON cannot say.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Self

from agentor.engine import clock
from agentor.engine.events import COPY, Event
from agentor.engine.store.copying import check_whole
from agentor.engine.store.numbering import bodies_after, check_fork_point, check_meant, fork_tail
from agentor.engine.store.over_fork import new_lock
from agentor.engine.store.protocol import (
    Holder,
    Lease,
    Removed,
    check_asker,
    check_run_id,
    check_seq,
    check_signal,
    check_wanted,
)
from agentor.engine.store.pruning import Age, Choice, removed
from agentor.engine.store.summary import status_of
from agentor.engine.store.tailing import Bell, Found, News, Tailing, deleted_meanwhile
from agentor.errors import (
    LeaseHeldError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
)


class MemoryStore(Tailing):
    """Runs in this process's memory; safe to use from several threads, gone with the process.

    A child made by `os.fork` has a copy of its own, as it was at that moment.
    """

    blocking = False  # no call waits for a disk, so none needs a thread

    def __init__(self) -> None:
        self._runs: dict[str, list[str]] = {}  # run id -> bodies; insertion order is age
        self._leases: dict[str, Lease] = {}
        self._terms: dict[str, int] = {}  # the last term given for a run; outlives the lease
        self._signals: dict[
            str, dict[str, str | None]
        ] = {}  # run id -> kind not answered -> by whom
        self._changed_at: dict[str, float] = {}
        self._saved: list[tuple[int, str, int]] = []  # position, run id, seq
        self._positions = itertools.count(1)
        self._lock = new_lock()
        self._bell = Bell()

    def append(self, run_id: str, event: Event) -> None:
        self.append_many(run_id, [event])

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        check_run_id(run_id)
        with self._lock:
            self._check_lease(run_id, lease)
            bodies = bodies_after(run_id, len(self._runs.get(run_id, ())), events)
            if bodies:
                self._add(run_id, bodies)
        self._bell.ring(run_id)

    def load(self, run_id: str) -> list[Event]:
        check_run_id(run_id)
        with self._lock:
            bodies = list(self._runs.get(run_id, ()))
        return [Event.from_json(body) for body in bodies]

    def peek(self, run_id: str, seq: int) -> tuple[int, Event | None]:
        check_run_id(run_id)
        check_seq("seq", seq)
        with self._lock:
            bodies = self._runs.get(run_id, [])
            length = len(bodies)
            found = bodies[seq - 1] if 1 <= seq <= length else None
        return length, None if found is None else Event.from_json(found)

    def list_runs(self) -> list[str]:
        with self._lock:
            return list(self._runs)

    def fork(
        self,
        src_run_id: str,
        dst_run_id: str,
        *,
        at: int | None = None,
        event: Event | None = None,
        of: Event | None = None,
    ) -> None:
        """Copy a run, up to `at` (itself included) if given; `event` is appended in the same step. `of`: an event that
        the run has, else `RunNotFoundError`."""
        check_run_id(src_run_id)
        check_run_id(dst_run_id)
        with self._lock:
            if src_run_id not in self._runs:
                raise RunNotFoundError(src_run_id)
            if dst_run_id in self._runs:
                raise RunExistsError(dst_run_id)
            source = self._runs[src_run_id]
            check_meant(src_run_id, map(Event.from_json, source), of)
            if COPY in Event.from_json(source[0]).extra:
                check_whole(src_run_id, [Event.from_json(body) for body in source])
            copied = source[: check_fork_point(src_run_id, len(source), at)]
            own = bodies_after(dst_run_id, len(copied), fork_tail(event, len(copied)))
            self._runs[dst_run_id] = copied
            self._add(dst_run_id, own)
        self._bell.ring(dst_run_id)

    def delete(self, run_id: str) -> Removed:
        """Take a run away; forks are copies and keep all they have."""
        check_run_id(run_id)
        with self._lock:
            self._check_lease(run_id, None)
            if run_id not in self._runs:
                raise RunNotFoundError(run_id)
            bodies = self._forget(run_id)
        self._bell.ring(run_id)
        return removed([(run_id, bodies)], [])

    def prune(
        self,
        *,
        older_than: Age | None = None,
        status: str | Iterable[str] | None = None,
        keep: int | None = None,
        only: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> Removed:
        """Delete the runs that everything given applies to: see `agentor.engine.store.protocol.Deletes`."""
        choice = Choice.checked(older_than, status, keep, only)
        with self._lock:
            chosen = [run_id for run_id, _ in choice.of(self._ages())]
            held = [run_id for run_id in chosen if self._is_held(run_id)]
            free = [run_id for run_id in chosen if run_id not in held]
            take = self._runs.__getitem__ if dry_run else self._forget
            logs = [(run_id, take(run_id)) for run_id in free]
        for run_id in free:
            self._bell.ring(run_id)
        return removed(logs, held)

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        check_run_id(run_id)
        check_wanted(owner, ttl_s)
        with self._lock:
            held = self._leases.get(run_id)
            now = clock.now()
            if held is not None and held.owner != owner and held.expires_at > now:
                raise LeaseHeldError(run_id, held.owner, held.expires_at)
            if held is None or held.owner != owner:
                self._terms[run_id] = self._terms.get(run_id, 0) + 1
            lease = Lease(run_id, owner, self._terms[run_id], now + ttl_s, ttl_s)
            self._leases[run_id] = lease
            return lease

    def renew(self, lease: Lease) -> Lease:
        with self._lock:
            self._check_still_held(lease)
            renewed = Lease(
                lease.run_id, lease.owner, lease.term, clock.now() + lease.ttl_s, lease.ttl_s
            )
            self._leases[lease.run_id] = renewed
            return renewed

    def release(self, lease: Lease) -> None:
        with self._lock:
            held = self._leases.get(lease.run_id)
            if held is not None and (held.owner, held.term) == (lease.owner, lease.term):
                del self._leases[lease.run_id]

    def holder(self, run_id: str) -> Holder | None:
        with self._lock:
            return self._holder(check_run_id(run_id))

    def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
        """Ask something of a run, until it is answered."""
        check_run_id(run_id)
        by = check_asker(by)
        with self._lock:
            self._signals.setdefault(run_id, {}).setdefault(check_signal(kind), by)

    def asked(self, run_id: str) -> list[str]:
        check_run_id(run_id)
        with self._lock:
            return sorted(self._signals.get(run_id, ()))

    def runs_asked(self, kind: str) -> list[str]:
        check_signal(kind)
        with self._lock:
            return sorted(run_id for run_id, asked in self._signals.items() if kind in asked)

    def asked_by(self, run_id: str, kind: str) -> str | None:
        check_run_id(run_id)
        with self._lock:
            return self._signals.get(run_id, {}).get(check_signal(kind))

    def answered(self, run_id: str, kind: str) -> None:
        check_run_id(run_id)
        with self._lock:
            self._signals.get(run_id, {}).pop(check_signal(kind), None)

    def close(self) -> None:
        """End what follows it; the runs stay readable as long as the object lives."""
        self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, run_id: str, bodies: list[str]) -> None:
        log = self._runs.setdefault(run_id, [])
        for body in bodies:
            log.append(body)
            self._saved.append((next(self._positions), run_id, len(log)))
        self._changed_at[run_id] = clock.now()

    def last_position(self) -> int:
        with self._lock:
            return self._saved[-1][0] if self._saved else 0

    def _news(self, run_id: str | None, after: int) -> News:
        followed: list[str] | None = None  # the list itself: a run that is made anew has another

        def of_one(run_id: str) -> list[Event]:
            nonlocal after, followed
            with self._lock:
                there = self._runs.get(run_id)
                if followed is not None and there is not followed:
                    raise deleted_meanwhile(run_id)
                followed = there
                bodies = [] if there is None else there[after:]
            after += len(bodies)
            return [Event.from_json(body) for body in bodies]

        def of_all() -> list[Found]:
            nonlocal after
            with self._lock:
                first = bisect.bisect_right(self._saved, after, key=lambda saved: saved[0])
                saved = [(each, self._runs[each[1]][each[2] - 1]) for each in self._saved[first:]]
            after = saved[-1][0][0] if saved else after
            return [(position, run, Event.from_json(body)) for (position, run, _), body in saved]

        return of_all if run_id is None else partial(of_one, run_id)

    def _check_lease(self, run_id: str, lease: Lease | None) -> None:
        if lease is not None:
            if lease.run_id != run_id:
                raise LeaseLostError(run_id)
            self._check_still_held(lease)
            return
        if self._is_held(run_id):
            held = self._leases[run_id]
            raise LeaseHeldError(run_id, held.owner, held.expires_at)

    def _holder(self, run_id: str) -> Holder | None:
        held = self._leases.get(run_id)
        if held is None or held.expires_at <= clock.now():
            return None
        return Holder(held.owner, held.expires_at)

    def _is_held(self, run_id: str) -> bool:
        return self._holder(run_id) is not None

    def _ages(self) -> list[tuple[str, str, float]]:
        return [
            (run_id, status_of(map(Event.from_json, bodies)), self._changed_at[run_id])
            for run_id, bodies in self._runs.items()
        ]

    def _forget(self, run_id: str) -> list[str]:
        for kept in (self._changed_at, self._leases, self._terms, self._signals):
            kept.pop(run_id, None)
        self._saved = [saved for saved in self._saved if saved[1] != run_id]
        return self._runs.pop(run_id)

    def _check_still_held(self, lease: Lease) -> None:
        held = self._leases.get(lease.run_id)
        if held is None:
            raise LeaseLostError(lease.run_id)
        if (held.owner, held.term) != (lease.owner, lease.term):
            raise LeaseLostError(lease.run_id, held.owner, held.expires_at)
