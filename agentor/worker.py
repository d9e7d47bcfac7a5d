"""Working off the unfinished runs of a store: after a crash, after a deploy, from a queue.

Several workers may share a store: each run's lease goes to one of them. A run that keeps failing is tried a bounded
number of times, counted from its log, with growing pauses, and is then parked with the reason. Attempts that leave
nothing in the log are counted here, so that every attempt moves the log, or brings its run nearer to being left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agentor.consent import pending_of
from agentor.engine import clock
from agentor.engine.events import Event, RunResult, without_repeats
from agentor.engine.recorder import off_loop
from agentor.engine.replay import RunState, replay
from agentor.engine.store.protocol import Store
from agentor.engine.store.summary import UNFINISHED
from agentor.errors import (
    AgentorError,
    ConfigError,
    LeaseError,
    LogCorruptError,
    RunNotFoundError,
    StoreError,
)
from agentor.stopping import LetGo, tell

logger = logging.getLogger("agentor")

LONGEST_BACKOFF_S: Final = 300.0
TAKES: Final = (None, "failed", "paused")  # statuses of runs that a worker may go on with
NEVER: Final = float("inf")  # when a run is looked at again that this process can do nothing with


@dataclass
class WorkReport:
    """What a worker has done. Runs are named by their ids."""

    finished: dict[str, str] = field(default_factory=dict)  # run -> status
    failed: dict[str, str] = field(default_factory=dict)  # run -> error of its last attempt
    parked: dict[str, str] = field(default_factory=dict)  # run -> reason

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class WorkPlan:
    """How to work."""

    concurrency: int = 4  # runs at the same time
    newest_first: bool = False
    max_attempts: int = 5  # of one run, in a row, by everybody, before it is parked
    backoff_s: float = 1.0  # before the second attempt; doubled each time
    poll_s: float = 1.0  # between two looks for work
    until_idle: bool = False  # end when nothing is left to do, instead of waiting for more
    grace_s: float = 0.0  # once it is stopped, how long what runs may go on before it is broken off

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_attempts"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is a whole number of at least 1, not {value!r}")
        for name in ("backoff_s", "poll_s", "grace_s"):
            if not (
                isinstance(getattr(self, name), int | float) and 0 <= getattr(self, name) < NEVER
            ):
                raise ConfigError(
                    f"{name} is a number of seconds from 0 on, not {getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True)
class Step:
    """How one attempt at a run ended. A run that somebody else has is not an attempt."""

    run_id: str
    attempt: int  # by everybody since it last ended well, counted from the log; 0 of a log that cannot be read
    outcome: str  # the run's status; "interrupted": by a stop; "refused": this process can do nothing with it
    error: str | None = None


def _log(step: Step) -> None:
    if step.outcome in ("failed", "refused"):
        told = (step.run_id, step.attempt, step.outcome, step.error)
        logger.warning("run %s: attempt %d %s: %s", *told)


class Worker:
    """Takes runs of one agent from one store until it is stopped."""

    def __init__(
        self,
        store: Store,
        agent: str,
        plan: WorkPlan,
        resume: Callable[[str], Awaitable[RunResult]],
        park: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._agent = agent
        self._plan = plan
        self._resume = resume
        self._park = park
        self._running: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}  # on the monotonic clock
        self._unmoved: dict[str, int] = {}  # runs that wait for others -> the last seq seen
        self._in_vain: dict[str, int] = {}  # attempts in a row that left nothing in the log
        self._stopped = asyncio.Event()
        self.report = WorkReport()
        self.watch: Callable[[Step], None] = _log  # told of every step, on the worker's loop

    def stop(self) -> None:
        """Take nothing more; what still runs after `grace_s` ends where it is recorded. Call it on the worker's loop."""
        self._stopped.set()

    async def work(self) -> WorkReport:
        """Return when stopped, or when nothing is left to do and that was asked for."""
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            while not stopped.done():
                waiting = await self._take()
                if self._plan.until_idle and not self._running and not waiting:
                    break
                pause = asyncio.ensure_future(clock.sleep(self._plan.poll_s))
                await asyncio.wait(
                    {stopped, pause, *self._running.values()}, return_when=asyncio.FIRST_COMPLETED
                )
                pause.cancel()
        finally:
            stopped.cancel()
            await self._end()
        return self.report

    async def _end(self) -> None:
        if self._running and self._plan.grace_s and self._stopped.is_set():
            grace = asyncio.create_task(self._all_ended())
            pause = asyncio.create_task(clock.sleep(self._plan.grace_s))
            await asyncio.wait({pause, grace}, return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
            grace.cancel()
        for run_id, task in self._running.items():
            if not tell(self._store, run_id, LetGo()):  # it has not begun, or has just ended
                task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())

    async def _all_ended(self) -> None:
        while self._running:
            await asyncio.wait(self._running.values())

    async def _take(self) -> bool:
        """Start as many runs as there is room for; whether another look is needed: some wait for their time, or were
        under way, and may have ended meanwhile with something left to do."""
        waits = bool(self._running)
        for run_id in await self._candidates():
            if run_id in self._running or self._not_before.get(run_id) == NEVER:
                continue
            if self._not_before.get(run_id, 0.0) > clock.monotonic():
                waits = waits or not self._is_set_aside(run_id)
                continue
            if len(self._running) >= self._plan.concurrency:
                return True
            if (state := await self._state_of(run_id)) is None:
                waits = waits or self._not_before.get(run_id) != NEVER
                continue
            if not self._may_go_on(state):
                self._unmoved[run_id] = state.seq
                continue
            if (pause_s := self._pause_s(state)) > 0:
                self._not_before[run_id] = clock.monotonic() + pause_s
                waits = True
                continue
            self._start(run_id, state)
            waits = True
        return waits

    def _start(self, run_id: str, state: RunState) -> None:
        task = asyncio.create_task(self._go_on(run_id, state))
        self._running[run_id] = task
        task.add_done_callback(lambda _: self._running.pop(run_id, None))

    async def _candidates(self) -> list[str]:
        runs = getattr(self._store, "runs", None)
        if callable(runs):
            rows = [
                row
                for status in ("unfinished", "failed", "paused")
                for row in await off_loop(
                    self._store, lambda s=status: runs(status=s, agent=self._agent)
                )
            ]
            rows.sort(key=lambda row: row.created_at, reverse=self._plan.newest_first)
            return [r.run_id for r in rows if self._unmoved.get(r.run_id) != r.last_seq]
        ids = await off_loop(self._store, self._store.list_runs)
        return ids[::-1] if self._plan.newest_first else list(ids)

    async def _state_of(self, run_id: str) -> RunState | None:
        try:
            events: list[Event] = await off_loop(self._store, self._store.load, run_id)
            return replay(events, run_id)
        except LogCorruptError as error:
            self._not_before[run_id] = NEVER
            self._fail(Step(run_id, 0, "refused", str(error)))
        except StoreError as error:  # of this run: whoever lists them is told if it is the store
            logger.warning("run %s is looked at again later: %s", run_id, error)
            self._wait(run_id, self._plan.poll_s)
        return None

    def _may_go_on(self, state: RunState) -> bool:
        if state.agent != self._agent or state.status not in TAKES:
            return False
        batch = state.batch
        if state.status != "paused" or batch is None:  # its last open call was settled
            return True
        return len(pending_of(state)) < len(batch.missing)

    def _pause_s(self, state: RunState) -> float:
        """Seconds until a run that failed may be tried again, counted from its end as the log has it."""
        if state.status != "failed" or state.ended_at is None:
            return 0.0
        return max(0.0, state.ended_at + self._backoff_s(state.attempts) - clock.now())

    def _backoff_s(self, attempts: int) -> float:
        return min(self._plan.backoff_s * 2.0 ** min(attempts - 1, 64), LONGEST_BACKOFF_S)

    def _wait(self, run_id: str, seconds: float) -> None:
        until = clock.monotonic() + seconds
        self._not_before[run_id] = max(self._not_before.get(run_id, 0.0), until)

    async def _go_on(self, run_id: str, state: RunState) -> None:
        attempt = state.attempts + 1
        try:
            if state.attempts >= self._plan.max_attempts:
                await self._give_up(run_id, state)
                return
            result = await self._resume(run_id)
        except LeaseError:
            self._wait(run_id, self._plan.poll_s)  # somebody has it
        except RunNotFoundError:  # deleted since it was listed, so there is nothing to do
            logger.info("run %s was deleted before it was begun", run_id)
        except asyncio.CancelledError:
            self._tell(Step(run_id, attempt, "interrupted"))
            raise
        except ConfigError as error:  # nothing was begun, and this process cannot change that
            self._not_before[run_id] = NEVER
            self._fail(Step(run_id, attempt, "refused", str(error)))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if isinstance(error, AgentorError):
                self._wait(run_id, self._plan.poll_s)
            self._fail(Step(run_id, attempt, "failed", told))
            self._count(run_id, attempt, await self._has_moved(run_id, state), told)
        else:
            self._ended(Step(run_id, attempt, result.status, result.error), state, result)

    def _ended(self, step: Step, state: RunState, result: RunResult) -> None:
        run_id, has_moved = step.run_id, len(result.events) - result.unsaved > state.seq
        if result.unsaved:
            told = f"{result.status}, but {result.unsaved} of its events could not be saved"
            self._wait(run_id, self._plan.poll_s)
            self._fail(replace(step, outcome="failed", error=told))
            self._count(run_id, step.attempt, has_moved, told)
        elif result.status == UNFINISHED:
            self._tell(replace(step, outcome="interrupted"))
        elif result.status in TAKES and not has_moved:
            told = f"{result.status}, and a resume found nothing to do, so another will not either"
            self._set_aside(run_id, step.attempt, told)
        else:
            self._in_vain.pop(run_id, None)
            self.report.finished[run_id] = result.status
            self.report.failed.pop(run_id, None)
            self._tell(step)

    # Attempts that the log does not count ------------------------------------------------------------------------

    async def _has_moved(self, run_id: str, state: RunState) -> bool:
        """Whether there is more in its log than the attempt began with."""
        try:
            events = await off_loop(self._store, self._store.load, run_id)
            return len(without_repeats(events)) > state.seq
        except Exception:  # a store that fails, which is why nothing moves
            return False

    def _count(self, run_id: str, attempt: int, has_moved: bool, told: str) -> None:
        if has_moved:
            self._in_vain.pop(run_id, None)
            return
        self._in_vain[run_id] = count = self._in_vain.get(run_id, 0) + 1
        if count < self._plan.max_attempts:
            self._wait(run_id, self._backoff_s(count))
            return
        reason = f"{count} attempts in a row left nothing in its log; the last: {told}"
        self._set_aside(run_id, attempt, reason)

    def _set_aside(self, run_id: str, attempt: int, reason: str) -> None:
        """Parking would have to be written, too: look at the run again after the longest pause, and wait for nothing."""
        self._in_vain[run_id] = self._plan.max_attempts
        self._wait(run_id, LONGEST_BACKOFF_S)
        self._fail(Step(run_id, attempt, "refused", reason))

    def _is_set_aside(self, run_id: str) -> bool:
        return self._in_vain.get(run_id, 0) >= self._plan.max_attempts

    # Telling -----------------------------------------------------------------------------------------------------

    def _fail(self, step: Step) -> None:
        self.report.failed[step.run_id] = step.error or step.outcome
        self._tell(step)

    def _tell(self, step: Step) -> None:
        try:
            self.watch(step)
        except Exception:  # whoever looks on harms no run
            logger.exception("run %s: its step could not be told", step.run_id)

    async def _give_up(self, run_id: str, state: RunState) -> None:
        last = f"; the last error: {state.error}" if state.error else ""
        reason = f"Gave up after {state.attempts} attempts{last}"
        await self._park(run_id, reason)
        self.report.parked[run_id] = reason
        self.report.failed.pop(run_id, None)
        self._tell(Step(run_id, state.attempts, "parked", reason))
