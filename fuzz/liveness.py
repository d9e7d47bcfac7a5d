"""The liveness phase: faults have stopped, so whoever is left ends what he does, and every run comes to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from agentor.errors import LeaseHeldError, StoreError
from fuzz import people
from fuzz.evidence import Resumed
from fuzz.ledger import Log
from fuzz.stepped_store import SteppedStore
from fuzz.worker import SKEW_MAX_S, Worker
from fuzz.world import LEASE_S, World

STEPS_TO_SETTLE: Final = (
    20_000  # loop iterations within which everybody must have ended what he did
)
STEPS_TO_END: Final = 2_000  # within which a resumed run must have ended
STEPS_TO_WORK_OFF: Final = 10_000  # within which a worker must have nothing left to do
# Of a run, when nothing fails any more: it may wait for a person in each of its turns, six at most, and needs a few more.
RESUMES_TO_END: Final = 10
DELIVERIES_TO_END: Final = 8  # rounds within which every letter must have been delivered
LETTER_WAIT_S: Final = (
    100.0  # between them: a claim of somebody dead, or a wait after failures, is over then
)
PROMPTLY_TAKEN: Final = ("unfinished", "failed")  # what a worker leaves of no run


def bring_to_end(world: World) -> None:
    """Stop the faults and play on until nothing is left to do; what does not end is evidence."""
    world.calm_down()
    _wait(world, "what was under way", STEPS_TO_SETTLE)
    for worker in list(world.workers.values()):
        world.dismiss(worker)
    world.ledger.refresh()
    try:
        finisher = world.worker("finisher")
    except StoreError as error:
        world.evidence.stuck.append(f"nobody can open the file: {error}")
        return
    end = _End(world, finisher)
    for step in (end.work_off, end.finish_all, end.deliver, end.inspect):
        if not finisher.dead:
            step()
    world.dismiss(finisher)
    world.ledger.refresh()
    world.evidence.books = world.ledger.books()


def _wait(world: World, what: str, steps_max: int) -> None:
    """Until everybody has ended what he did; who takes too long is killed."""
    last = world.timeline.steps + steps_max
    timeline = world.timeline
    while any(worker.busy for worker in world.workers.values()):
        if timeline.steps > last or not timeline.step():
            waits = timeline.deadlocked()
            why = "waits for ever" if waits else f"takes over {steps_max} steps"
            world.evidence.stuck.append(f"{what} {why}")
            break
    for worker in list(world.workers.values()):
        if worker.busy:
            world.kill(worker)


class _End:
    """What the last worker does."""

    def __init__(self, world: World, finisher: Worker) -> None:
        self._world = world
        self._finisher = finisher
        self._agent = finisher.agent

    def _logs(self) -> dict[str, Log]:
        return self._world.ledger.logs

    def work_off(self) -> None:
        """As a worker does that finds these runs. Only what waits for people may be left, and what was given up."""
        how: dict[str, Any] = {
            "until_idle": True,
            "concurrency": 2,
            "poll_s": 15.0,
            "max_attempts": 30,
        }
        self._do("work", "", lambda: self._agent.awork(**how), STEPS_TO_WORK_OFF)
        for run_id, log in self._logs().items():
            if (log.state.status or "unfinished") in PROMPTLY_TAKEN:
                self._world.evidence.left_over.append(f"{run_id}: {log.state.status}")

    def finish_all(self) -> None:
        for run_id in list(self._logs()):
            self._finish(run_id)
            self._resume_finished(run_id)

    def _finish(self, run_id: str) -> None:
        for _ in range(RESUMES_TO_END):
            if self._finisher.dead or self._logs()[run_id].state.is_complete:
                return
            self._decide_all(run_id)
            if self._resume(run_id):
                self._world.run_until(self._world.timeline.now + LEASE_S + 2 * SKEW_MAX_S)
        log = self._logs()[run_id]
        if not log.state.is_complete:
            told = f"{run_id} is {log.state.status} after {RESUMES_TO_END} resumes"
            self._world.evidence.stuck.append(told)

    def _resume(self, run_id: str) -> bool:
        """Whether somebody else still has the run."""
        task = self._do("resume", run_id, partial(self._agent.aresume, run_id))
        return not self._finisher.dead and isinstance(task.exception(), LeaseHeldError)

    def _do(
        self,
        what: str,
        run_id: str,
        work: Callable[[], Coroutine[Any, Any, Any]],
        steps_max: int = STEPS_TO_END,
    ) -> asyncio.Task[Any]:
        task = self._finisher.begin(what, run_id, work)
        _wait(self._world, f"{what} {run_id}".rstrip(), steps_max)
        self._world.ledger.refresh()
        return task

    def _decide_all(self, run_id: str) -> None:
        """Consent to whatever waits, unless it has happened."""
        for question in people.questions(self._world, run_id):
            word = people.truth(self._world, question, "approve")
            people.say(self._finisher, word, question)
            _wait(self._world, f"{word} {question.call_id} of {run_id}", STEPS_TO_END)
            self._world.ledger.refresh()

    def _resume_finished(self, run_id: str) -> None:
        if self._finisher.dead or not self._logs()[run_id].state.is_complete:
            return
        calls, events = self._world.evidence.calls, len(self._logs()[run_id].events)
        self._resume(run_id)
        written = len(self._logs()[run_id].events) - events
        self._world.evidence.resumed.append(
            Resumed(run_id, self._world.evidence.calls - calls, written)
        )

    def deliver(self) -> None:
        evidence, finisher = self._world.evidence, self._finisher
        if not isinstance(finisher.store, SteppedStore):
            return
        for _ in range(DELIVERIES_TO_END):
            self._do("deliver", "", partial(self._agent.adeliver, finisher.receive, claim_s=20.0))
            if finisher.dead:
                return
            evidence.letters_left = finisher.store.undelivered()
            if not evidence.letters_left:
                return
            self._world.run_until(self._world.timeline.now + LETTER_WAIT_S)

    def inspect(self) -> None:
        """What the store itself says of the file and of its runs."""
        evidence, store = self._world.evidence, self._finisher.store
        try:
            if isinstance(store, SteppedStore):
                evidence.damage += store.integrity_check()
                evidence.stored_usage = {row.run_id: row.usage for row in store.runs()}
            evidence.remnants = [run_id for run_id in evidence.deleted if store.load(run_id)]
        except StoreError as error:
            evidence.damage.append(str(error))
