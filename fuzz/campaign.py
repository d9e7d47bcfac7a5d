"""Many worlds: played on every core, counted, and the first failures shrunk."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz import canaries, disk_cases, stage
from fuzz.canaries import Canary
from fuzz.disk_cases import Case, Visit
from fuzz.invariants import Breach
from fuzz.script import Action, draw
from fuzz.shrink import shrink
from fuzz.world import Outcome

WORLDS_PER_CHUNK: Final = 20
CANARY_WORLDS: Final = 1_000  # within which each canary's alarm must ring
FAILURES_SHOWN: Final = 3
TRIES_TO_SUCCEED: Final = 50  # of a kind of operation, one of which must succeed
NO_SUCCESS: Final = "every_operation_succeeds_at_times"
NO_CANARY: Final = Canary("nothing", frozenset())


@dataclass(frozen=True)
class Failure:
    """A world that broke an invariant, and the least of its script that still does."""

    seed: int
    breaches: tuple[Breach, ...]
    script: tuple[Action, ...]
    kept: tuple[int, ...]  # positions of the actions in the whole script
    actions: int  # of the whole script
    worlds: int = 1  # that it takes to see it

    @property
    def command(self) -> str:
        if self.worlds > 1:
            return f"python -m fuzz --seed {self.seed} --worlds {self.worlds}"
        only = ",".join(map(str, self.kept)) or "none"
        return f"python -m fuzz --seed {self.seed} --only {only}"


@dataclass
class Tally:
    """What a campaign has seen."""

    worlds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.counts.update(outcome.counts)
        self.faults.update(outcome.faults)
        if outcome.breaches:
            self.failed.append(outcome)

    def judge(self, first: int) -> None:
        """What no world can tell by itself: an operation that is tried often, and always fails, is broken."""
        kinds = sorted(name.removesuffix(" tried") for name in self.counts if " tried" in name)
        vain = [
            Breach(NO_SUCCESS, f"{kind}: none of {tried} succeeded")
            for kind in kinds
            if (tried := self.counts[f"{kind} tried"]) >= TRIES_TO_SUCCEED
            and not self.counts[f"{kind} done"]
        ]
        if vain:
            self.failed.append(Outcome(first, tuple(vain), {"worlds": self.worlds}))

    def add_all(self, other: Tally) -> None:
        self.worlds += other.worlds
        self.counts.update(other.counts)
        self.faults.update(other.faults)
        self.failed += other.failed


def play(
    seed: int,
    script: Sequence[Action],
    canary: Canary | None = None,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Play one world. An exception of the simulation's own is a failure of that world, not of the campaign."""
    canary = canary or NO_CANARY
    try:
        with canary.planted():
            return stage.play(seed, script, canary.store_options, trace, canary.on_files)
    except Exception:
        return Outcome(seed, (Breach("the_simulation_works", traceback.format_exc()),))


def play_all(seeds: Iterable[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.add(play(seed, draw(seed)))
    return tally


def only_play() -> None:
    """For a process that does nothing but play: it ends at an interrupt, and what a world leaves is small and soon collected."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@contextlib.contextmanager
def on_every_core() -> Iterator[ProcessPoolExecutor]:
    """Processes that only play. Who is interrupted waits for what they are at, and for nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, context, only_play) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def play_in_parallel(
    first: int, *, worlds: int | None = None, seconds: float | None = None
) -> Tally:
    """The worlds of `first`, `first + 1` ... on all cores, so many of them or for so long. Stops at failures."""
    tally, deadline = Tally(), None if seconds is None else time.monotonic() + seconds
    chunks = _chunks(first, worlds)
    workers = os.cpu_count() or 1
    with on_every_core() as pool:
        running: set[Future[Tally]] = set()
        while True:
            is_over = tally.failed or (deadline is not None and time.monotonic() >= deadline)
            wanted = 0 if is_over else 2 * workers - len(running)
            running |= {pool.submit(play_all, chunk) for chunk in itertools.islice(chunks, wanted)}
            if not running:
                tally.judge(first)
                return tally
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                tally.add_all(future.result())


def visit_all(case: Case) -> list[Visit]:
    return list(disk_cases.visits(case))


def visit_in_parallel(cases: Sequence[Case]) -> Iterator[tuple[Case, list[Visit]]]:
    """Every call of the disk for each case, on all cores."""
    with on_every_core() as pool:
        yield from zip(cases, pool.map(visit_all, cases), strict=True)


def explained(outcome: Outcome, canary: Canary | None = None) -> Failure:
    """The failure with its script shrunk, if it is one world's."""
    if outcome.breaches[0].invariant == NO_SUCCESS:
        return Failure(outcome.seed, outcome.breaches, (), (), 0, outcome.counts["worlds"])
    script = list(enumerate((canary or NO_CANARY).script(outcome.seed)))
    broken = outcome.breaches[0].invariant

    def fails(part: list[tuple[int, Action]]) -> bool:
        again = play(outcome.seed, [action for _, action in part], canary)
        return any(breach.invariant == broken for breach in again.breaches)

    kept = shrink(script, fails)
    return Failure(
        seed=outcome.seed,
        breaches=outcome.breaches,
        script=tuple(action for _, action in kept),
        kept=tuple(position for position, _ in kept),
        actions=len(script),
    )


def first_ring(canary: Canary, first: int) -> Outcome | None:
    """The first world in which all of the canary's alarms ring; None if they never do."""
    for seed in range(first, first + CANARY_WORLDS):
        outcome = play(seed, canary.script(seed), canary)
        if canary.rings <= {breach.invariant for breach in outcome.breaches}:
            return outcome
    return None


def rings(first: int) -> dict[Canary, Outcome | None]:
    """For each canary the world in which it rang."""
    return {canary: first_ring(canary, first) for canary in canaries.ALL}


def _chunks(first: int, worlds: int | None) -> Iterator[list[int]]:
    seeds: Iterator[int] = (
        itertools.count(first) if worlds is None else iter(range(first, first + worlds))
    )
    while chunk := list(itertools.islice(seeds, WORLDS_PER_CHUNK)):
        yield chunk


def summary(tally: Tally) -> dict[str, Any]:
    """The numbers of a campaign, for people and programs."""
    return {
        "worlds": tally.worlds,
        "crashes": tally.counts["crashes"],
        "faults": dict(sorted(tally.faults.items())),
        "counts": dict(sorted(tally.counts.items())),
        "failed": [outcome.seed for outcome in tally.failed],
    }
