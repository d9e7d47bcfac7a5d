"""Working off the unfinished runs of a store: after a crash, after a deploy, from a queue.

Several workers may share a store: each run's lease goes to one of them. A run that keeps failing is tried a bounded
number of times, counted from its log, with growing pauses, and is then parked with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from agentor.consent import pending_of
from agentor.engine import clock
from agentor.engine.events import Event, RunResult
from agentor.engine.recorder import off_loop
from agentor.engine.replay import RunState, replay
from agentor.engine.store.protocol import Store
from agentor.engine.store.summary import UNFINISHED
from agentor.errors import AgentorError, ConfigError, LeaseError, LogCorruptError
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
    max_attempts: int = 5  # of one run, by everybody, before it is parked
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
    attempt: int  # by everybody, counted from the log; 0 of a log that cannot be read
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
                waits = True
                continue
            if len(self._running) >= self._plan.concurrency:
                return True
            if (state := await self._state_of(run_id)) is None:
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
            self._refuse(Step(run_id, 0, "refused", str(error)))
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
        backoff_s = min(
            self._plan.backoff_s * 2.0 ** min(state.attempts - 1, 64), LONGEST_BACKOFF_S
        )
        return max(0.0, state.ended_at + backoff_s - clock.now())

    async def _go_on(self, run_id: str, state: RunState) -> None:
        attempt = state.attempts + 1
        try:
            if state.attempts >= self._plan.max_attempts:
                await self._give_up(run_id, state)
                return
            result = await self._resume(run_id)
        except LeaseError:
            self._not_before[run_id] = clock.monotonic() + self._plan.poll_s  # somebody has it
        except asyncio.CancelledError:
            self._tell(Step(run_id, attempt, "interrupted"))
            raise
        except ConfigError as error:  # nothing was begun, and this process cannot change that
            self._not_before[run_id] = NEVER
            self._refuse(Step(run_id, attempt, "refused", str(error)))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            self.report.failed[run_id] = told
            if isinstance(error, AgentorError):
                self._not_before[run_id] = clock.monotonic() + self._plan.poll_s
            self._tell(Step(run_id, attempt, "failed", told))
        else:
            if result.status == UNFINISHED:
                self._tell(Step(run_id, attempt, "interrupted"))
                return
            self.report.finished[run_id] = result.status
            self.report.failed.pop(run_id, None)
            self._tell(Step(run_id, attempt, result.status, result.error))

    def _refuse(self, step: Step) -> None:
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
