"""One world: a file, a disk, a few workers, a script of what happens to them, and what came of it.

First the safety phase: the script is played, with all its faults. Then the liveness phase: faults stop, whoever is
left ends what he does, and a fresh worker resumes every run that is not finished. Then everything is judged.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from agentor.engine.events import RunResult
from agentor.engine.store import sqlite_guard as guard
from agentor.engine.store.protocol import Lease
from agentor.errors import StoreError
from fuzz import actions
from fuzz.disk import Disk, Survival
from fuzz.evidence import Evidence, Forked, Marked
from fuzz.file_disk import FileSystem
from fuzz.file_store import FileLedger
from fuzz.invariants import Breach, judge
from fuzz.ledger import Ledger, Standing
from fuzz.loop import Timeline
from fuzz.people import Question
from fuzz.rival import Rival
from fuzz.script import SAFETY_S, Action
from fuzz.virtual_clock import VirtualClock
from fuzz.worker import Worker

LEASE_S: Final = 30.0
# The look at the mounted file systems, of which a world has none of its own, would cost as much as a commit.
STORE_OPTIONS: Final = {"lease_ttl_s": LEASE_S, "allow_network_filesystem": True}
WAKES_WITHIN_S: Final = (
    0.003  # of the take-over that wakes it, on average: while the other still reads
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a world. `digest` is equal for equal histories."""

    seed: int
    breaches: tuple[Breach, ...]
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    digest: str = ""


class World:
    """See the head of this file. `store_options` go to every `SQLiteStore` in it; `trace` is told of every step.

    `on_files`: the runs are in a `FileStore`. It has no table for the bank, and its leases do not run out.
    """

    def __init__(
        self,
        seed: int,
        directory: str,
        store_options: dict[str, Any] | None = None,
        trace: Callable[[str], None] | None = None,
        on_files: bool = False,
    ) -> None:
        self.seed = seed
        self.path = os.path.join(directory, "runs" if on_files else "runs.db")
        self.store_options = STORE_OPTIONS | (store_options or {})
        self.timeline = Timeline(random.Random(f"{seed}/order"))
        self.decided: list[Question] = []  # that a person has decided upon
        self.clock = VirtualClock(self.timeline, f"{seed}/clock")
        self.disk = Disk(f"{seed}/disk")
        self.files = FileSystem(self, self.path) if on_files else None
        self.ledger = (FileLedger if on_files else Ledger)(self.path, self.disk)
        self.evidence = Evidence()
        self.workers: dict[str, Worker] = {}  # by the place where they work
        self.rival: Rival | None = None  # who holds the file's write lock
        self.calm = False  # nothing fails any more
        self.disk_is_slow = False
        self.somebody_died = False  # and is still among the workers
        self.survival: Survival = "lost"  # of what is not synced when the power goes
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._trace = trace
        self._born = 0
        self._gone: set[str] = set()  # names of dead workers that are known to be dead
        self._history = hashlib.blake2b(digest_size=8)
        self._started = self.timeline.now
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    # Workers --------------------------------------------------------------------------------------------------------

    def worker(self, place: str) -> Worker:
        """Who works at a place; somebody new if nobody is left there."""
        worker = self.workers.get(place)
        if worker is None:
            self._born += 1
            worker = self.workers[place] = Worker(self, f"{place}.{self._born}")
        return worker

    def victim(self, place: str) -> Worker | None:
        """Who works at a place; if nobody does, somebody else who is at work."""
        at_place = self.workers.get(place)
        if at_place is not None and at_place.busy:
            return at_place
        return next((each for each in self.workers.values() if each.busy), at_place)

    def orphan(self) -> str | None:
        """A run that somebody has who is suspended; else one that nobody works on and that has not ended."""
        workers = list(self.workers.values())
        asleep = [run for worker in workers if worker.loop.suspended for run in worker.runs]
        working = {run_id for worker in workers for run_id in worker.runs}
        self.ledger.refresh()
        left = [
            run_id
            for run_id, log in self.ledger.logs.items()
            if run_id not in working and not log.state.is_complete
        ]
        return next(iter([*asleep, *left]), None)

    def is_locked_by_another(self, worker: Worker) -> bool:
        """Whether another process, awake, is in the middle of a tool's transaction."""
        return any(
            each.store.holds_lock and not each.loop.suspended
            for each in self.workers.values()
            if each is not worker
        )

    def owner_id(self) -> str:
        """The name of a new lease holder in the process that is running."""
        process = self.timeline.current
        return f"{process.name if process else 'nobody'}/{self.clock.new_id()[:8]}"

    def is_gone(self, owner: str) -> bool:
        """Whether the holder's process is known to be dead."""
        return owner.split("/")[0] in self._gone

    def kill(self, worker: Worker) -> None:
        """A process dies."""
        self.counts["crashes"] += 1
        self.note(worker, "crash")
        worker.kill()
        if worker.known_dead:
            self._gone.add(worker.name)
        self._forget(worker)

    def dismiss(self, worker: Worker) -> None:
        """Close a worker that has ended its work."""
        worker.store.close()
        worker.loop.end()
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self.workers = {place: each for place, each in self.workers.items() if each is not worker}

    # What workers tell ------------------------------------------------------------------------------------------------

    def note(self, worker: Worker, *what: object) -> None:
        """One line of the world's history."""
        words = " ".join(map(str, what))
        line = f"{self.timeline.now - self._started:8.3f}  {worker.name:12} {words}"
        self._history.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def finished(self, worker: Worker, what: str, result: object) -> None:
        if not isinstance(result, RunResult):
            self.note(worker, what, "done")
            return
        tokens = result.usage.total_tokens
        self.note(worker, what, result.status, f"{len(result.events)} events, {tokens} tokens")
        self.evidence.results.append(result)

    def granted(self, worker: Worker, lease: Lease) -> None:
        if self.disk.powered and not worker.dead:
            self.evidence.newest_terms[lease.run_id] = lease.term
        for other in self.workers.values():
            if other is not worker and other.wakes_when_taken and lease.run_id in other.runs:
                self.after(other.rng.expovariate(1 / WAKES_WITHIN_S), other.wake)

    def forked(self, parent: str, fork: str, at: int | None) -> None:
        self.ledger.refresh()
        source, own = self.ledger.logs.get(parent), self.ledger.logs.get(fork)
        if source is None:  # deleted meanwhile
            return
        # The parent may have gone on since: where they part is what the fork's row says, if nobody asked for a place.
        seq = at or (own.inherited if own else 0)
        self.evidence.forks.append(Forked(fork, parent, seq, tuple(source.bodies)))

    def cancel_asked(self, run_id: str, known: int) -> None:
        """Somebody was told that whoever works on a run will hear of a cancel. It had `known` events before."""
        before, log = self.evidence.asked_cancels.get(run_id), self.ledger.logs.get(run_id)
        if before is None or log is None or log.has_ended_since(before):
            self.evidence.asked_cancels[run_id] = known

    def look_for_cancel(self, run_id: str, standing: Standing) -> None:
        """Of a run that somebody goes on with: whether a cancel that it was asked for has gone unanswered."""
        known = self.evidence.asked_cancels.get(run_id)
        if known is None or standing.cancel_asked_at is not None:
            return
        log = self.ledger.logs.get(run_id)
        if log is not None and not log.has_ended_since(known):
            self.evidence.lost_cancels.append(f"{run_id} goes on, and nobody knows of its cancel")

    def look_at_files(self, run_ids: Iterable[str]) -> None:
        """How runs in files stand that are to be deleted now."""
        if self.files is None:
            return
        self.ledger.refresh()
        workers = self.workers.values()
        for run_id in run_ids:
            log = self.ledger.logs.get(run_id)
            status = (log.state.status if log else None) or "unfinished"
            holder = next((each.name for each in workers if each.holds(run_id)), None)
            self.evidence.marked[run_id] = Marked(run_id, status, holder)

    def fault_count(self) -> int:
        """Of all kinds, so far."""
        return self.faults.total() + self.disk.faults.total()

    @property
    def has_fault_now(self) -> bool:
        asleep = any(each.loop.suspended for each in self.workers.values())
        return self.disk.full or self.disk_is_slow or self.rival is not None or asleep

    # Time -------------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back from outside every process."""
        self._later.append((self.timeline.now + seconds, len(self._later), callback))
        self._later.sort(key=lambda entry: entry[:2])

    def run_until(self, when: float) -> None:
        """Let everybody work until then."""
        timeline, disk = self.timeline, self.disk
        while True:
            due = min(when, self._later[0][0]) if self._later else when
            if timeline.step(due):
                if self.somebody_died or not disk.powered:
                    self._bury()
                continue
            self.timeline.now = max(self.timeline.now, due)
            if not self._later or self._later[0][0] > when:
                return
            self._later.pop(0)[2]()

    def _bury(self) -> None:
        """Whoever has died in the last step is taken away."""
        if not self.disk.powered:
            self._cut_power()
        if self.somebody_died:
            self.somebody_died = False
            for worker in [each for each in self.workers.values() if each.dead]:
                self.kill(worker)

    def lose_power(self, survival: Survival) -> None:
        """The power goes, and comes back."""
        self.survival = survival
        self.disk.cut_power()
        self._cut_power()

    def _cut_power(self) -> None:
        self.faults["power cut"] += 1
        for worker in list(self.workers.values()):
            worker.known_dead = True
            self.kill(worker)
        self._send_rival_away()
        self.ledger.close()
        self._let_go_of_leftovers()
        self.disk.plan = None
        self.disk.restore(self.survival)
        if self.files is not None:
            self.files.restored()
            self.evidence.newest_terms.clear()  # lock files are not brought to the disk; nobody holds one
        self.ledger.start_anew()

    def _send_rival_away(self) -> None:
        if self.rival is not None:
            self.rival.leave()

    def _let_go_of_leftovers(self) -> None:
        """Connections of a store that was just being opened when its process died."""
        known = {id(each) for worker in self.workers.values() for each in worker.store.connections}
        for connection in apsw.connections():
            is_ours = id(connection) in known or connection is self.ledger.connection
            is_ours |= self.rival is not None and connection is self.rival.connection
            if connection.filename == self.path and not is_ours:
                guard.let_go(connection)

    # The two phases ---------------------------------------------------------------------------------------------------

    def play(self, script: Sequence[Action]) -> None:
        """The safety phase."""
        for action in script:
            self.run_until(self._started + action.at_s)
            self.counts["actions"] += 1
            try:
                actions.ALL[action.kind](self, **action.details)
            except (StoreError, apsw.Error):  # a store that cannot be opened now
                self.faults["store not opened"] += 1
                self._let_go_of_leftovers()
            self._bury()
        self.run_until(self._started + SAFETY_S)

    def calm_down(self) -> None:
        """The liveness phase begins: nothing fails any more, and whoever was suspended is awake."""
        self.calm = True
        self._later.clear()
        self._send_rival_away()
        self.disk.full = self.disk_is_slow = False
        self.disk.plan = None
        for worker in self.workers.values():
            worker.dies_at = None
            worker.wake()

    # The end ----------------------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """What came of it."""
        for breach in (breaches := judge(self.evidence, self.ledger)):
            self._history.update(str(breach).encode())
        for run_id, log in self.ledger.logs.items():
            self._history.update("\n".join([run_id, *log.bodies]).encode())
        self.counts["runs"] = len(self.ledger.logs)
        self.counts["acknowledged"] = len(self.evidence.acknowledged)
        self.counts["tool starts"] = len(self.evidence.tool_starts)
        self.counts["forks"] = len(self.evidence.forks)
        self.counts["transfers"] = self.evidence.books.transfers.total()
        self.counts["letters"] = len(self.evidence.letters)
        self.counts["shown"] = len(self.evidence.shown)
        self.counts["settled"] = len(self.evidence.settled)
        self.counts["deleted"] = len(self.evidence.deleted)
        self.counts["on files"] = int(self.files is not None)
        self.counts["steps"] = self.timeline.steps
        return Outcome(
            self.seed,
            tuple(breaches),
            dict(sorted(self.counts.items())),
            dict(sorted((self.faults + self.disk.faults).items())),
            self._history.hexdigest(),
        )

    def close(self) -> None:
        self._send_rival_away()
        for worker in list(self.workers.values()):
            self.kill(worker)
        self.ledger.close()
