"""Every interleaving of two workers and a clock, to a depth: the real keeper on a real store, one step at a time.

A state is what the workers believe and what the store holds, with times counted from now; a state seen before is not
explored again. Each path is played on a run of its own, so one store serves for all.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.lease import Keeper
from agentor.engine.store import fork_run, sqlite_leases
from agentor.engine.store.protocol import Lease
from agentor.errors import LeaseError, LeaseHeldError, LeaseLostError, SequenceConflictError
from fuzz.loop import ProcessLoop, Timeline
from fuzz.virtual_clock import VirtualClock

TICK_S: Final = 9.0  # three renewals fit into a lease, and four ticks end it
TTL_S: Final = 30.0

Step = tuple[str, int]


@dataclass
class Worker:
    """One of the two: its keeper while it has a run, and the seq it believes to be the next."""

    name: str
    keeper: Keeper | None = None
    next_seq: int = 0

    @property
    def lease(self) -> Lease | None:
        return None if self.keeper is None else self.keeper.lease

    @property
    def owner(self) -> str | None:
        return None if self.lease is None else self.lease.owner


class SlowStore:
    """A store that does what it is asked after `delay_s`: time passes between the asking and the doing."""

    blocking = False
    lease_ttl_s = TTL_S

    def __init__(self, store: Any, timeline: Timeline) -> None:
        self._store = store
        self._timeline = timeline
        self.delay_s = 0.0

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        self._timeline.now += self.delay_s
        lease: Lease = self._store.acquire(run_id, owner, ttl_s)
        return lease

    def renew(self, lease: Lease) -> Lease:
        self._timeline.now += self.delay_s
        renewed: Lease = self._store.renew(lease)
        return renewed

    def release(self, lease: Lease) -> None:
        self._store.release(lease)


class Model:
    """One run of a store, two workers, a clock. A step that cannot be taken changes nothing."""

    def __init__(self, store: Any, run_id: str, timeline: Timeline, gone: set[str]) -> None:
        self.store = store
        self.run_id = run_id
        self.problems: list[str] = []
        self._timeline = timeline
        self._process = ProcessLoop(timeline)
        self._slow = SlowStore(store, timeline)
        self._gone = gone  # owners that are known to be dead
        self._workers = [Worker("a"), Worker("b")]
        self._held: Lease | None = None  # what the store has granted last and not got back
        self._newest_term = 0
        self._written = 0

    def take(self, step: Step) -> None:
        name, number = step
        getattr(self, f"_{name}")(self._workers[number])
        self._check()

    def key(self) -> tuple[Any, ...]:
        """What matters of this state for what may follow; times are counted from now."""
        now = self._timeline.now
        beliefs = (self._belief(worker, now) for worker in self._workers)
        if self._held is None:
            return (*beliefs, self._written)
        left_s = round(max(self._held.expires_at - now, 0.0), 3)
        owners = [worker.owner for worker in self._workers]
        is_gone = self._held.owner in self._gone
        holder = owners.index(self._held.owner) if self._held.owner in owners else None
        return (*beliefs, self._written, left_s, holder, is_gone)

    def _belief(self, worker: Worker, now: float) -> tuple[Any, ...] | None:
        if worker.lease is None or worker.keeper is None:
            return None
        trusted_s = round(max(worker.keeper._trusted_until - now, 0.0), 3)
        return self._newest_term - worker.lease.term, trusted_s, worker.next_seq - self._written

    # Steps ------------------------------------------------------------------------------------------------------------

    def _tick(self, _: Worker) -> None:
        self._timeline.now += TICK_S

    def _acquire(self, worker: Worker, delay_s: float = 0.0) -> None:
        """As a start or a resume does: take the run, then read it."""
        if worker.keeper is not None:
            return
        keeper = Keeper(self._slow, self.run_id)
        with self._delayed(delay_s), contextlib.suppress(LeaseHeldError):
            self._process.run_until_complete(keeper.acquire())
            self._granted(keeper.lease)
            worker.keeper = keeper
            worker.next_seq = len(self.store.load(self.run_id)) + 1

    def _acquire_slowly(self, worker: Worker) -> None:
        self._acquire(worker, TICK_S)

    def _renew(self, worker: Worker, delay_s: float = 0.0) -> None:
        if worker.keeper is None or worker.lease is None:
            return
        with self._delayed(delay_s):
            self._process.run_until_complete(worker.keeper._renew(self._slow, worker.lease))
        if worker.keeper.lost is not None:
            worker.keeper = None
        else:
            self._held = worker.lease

    def _renew_slowly(self, worker: Worker) -> None:
        self._renew(worker, TICK_S)

    def _append(self, worker: Worker) -> None:
        """Without looking whether the lease is still trusted, as a worker does that was asleep."""
        if (lease := worker.lease) is None:
            return
        event = Event("message", text=worker.name, seq=worker.next_seq)
        try:
            self.store.append_many(self.run_id, [event], lease)
        except (LeaseLostError, SequenceConflictError):
            worker.keeper = None
            return
        if lease.term < self._newest_term:
            self.problems.append(f"term {lease.term} wrote in term {self._newest_term}")
        worker.next_seq += 1
        self._written += 1

    def _release(self, worker: Worker) -> None:
        if worker.keeper is not None and worker.lease is not None:
            if worker.lease.term == self._newest_term:
                self._held = None
            self._process.run_until_complete(worker.keeper.release())
            worker.keeper = None

    def _crash(self, worker: Worker) -> None:
        worker.keeper = None

    def _crash_seen(self, worker: Worker) -> None:
        """Others can see that the process is gone."""
        if worker.owner is not None:
            self._gone.add(worker.owner)
            worker.keeper = None

    def _fork(self, _: Worker) -> None:
        before = [event.to_json() for event in self.store.load(self.run_id)]
        if not before:
            return
        fork = fork_run(self.store, self.run_id, at=len(before))
        if [event.to_json() for event in self.store.load(self.run_id)] != before:
            self.problems.append("a fork changed its parent")
        if [event.to_json() for event in self.store.load(fork)][:-1] != before:
            self.problems.append("a fork is not its parent and one event more")

    # What must hold ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if all(_may_act(worker.keeper) for worker in self._workers):
            self.problems.append("both workers may act at the same time")
        seqs = [event.seq for event in self.store.load(self.run_id)]
        if seqs != list(range(1, self._written + 1)):
            self.problems.append(f"the log has the seqs {seqs}, {self._written} were acknowledged")

    def _granted(self, lease: Lease | None) -> None:
        assert lease is not None
        if lease.term <= self._newest_term:
            self.problems.append(f"term {lease.term} was given after term {self._newest_term}")
        self._newest_term, self._held = lease.term, lease

    @contextlib.contextmanager
    def _delayed(self, delay_s: float) -> Iterator[None]:
        self._slow.delay_s = delay_s
        try:
            yield
        finally:
            self._slow.delay_s = 0.0


def _may_act(keeper: Keeper | None) -> bool:
    if keeper is None or keeper.lease is None:
        return False
    try:
        keeper.check()
    except LeaseError:
        return False
    return True


ONE_SIDED: Final = ("tick", "fork")
EACH_WORKERS: Final = (
    *("acquire", "acquire_slowly", "renew", "renew_slowly", "append"),
    *("release", "crash", "crash_seen"),
)
STEPS: Final[tuple[Step, ...]] = (
    *((name, 0) for name in ONE_SIDED),
    *((name, number) for name in EACH_WORKERS for number in (0, 1)),
)


@dataclass
class Explored:
    """How much was seen, and the paths that broke something."""

    states: int = 0
    steps: int = 0
    failed: list[tuple[tuple[Step, ...], str]] = field(default_factory=list)


def explore(store: Any, depth: int, *, sees_dead_owners: bool) -> Explored:
    """Every interleaving of `depth` steps, states that were seen before being explored once.

    `sees_dead_owners`: the store gives a lease away at once when its owner is known to be gone.
    """
    found, seen = Explored(), set()
    frontier: list[tuple[Step, ...]] = [()]
    steps = [step for step in STEPS if sees_dead_owners or step[0] != "crash_seen"]
    for _ in range(depth):
        reached = []
        for path in frontier:
            for step in steps:
                model = _played(store, (*path, step), f"path-{found.steps}")
                found.steps += 1
                if model.problems:
                    found.failed.append(((*path, step), model.problems[0]))
                elif (key := model.key()) not in seen:
                    seen.add(key)
                    reached.append((*path, step))
        frontier = reached
    found.states = len(seen)
    return found


def _played(store: Any, path: tuple[Step, ...], run_id: str) -> Model:
    timeline = Timeline(random.Random(0))
    gone: set[str] = set()
    with (
        clock.installed(VirtualClock(timeline, run_id)),
        mock.patch.object(sqlite_leases, "is_gone", gone.__contains__),
    ):
        model = Model(store, run_id, timeline, gone)
        for step in path:
            model.take(step)
    return model
