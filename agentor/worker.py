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
from agentor.engine.result_text import error_text
from agentor.engine.store.own import loaded
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
from agentor.recorded import identity
from agentor.stopping import TAKES, LetGo, tell

logger = logging.getLogger("agentor")

LONGEST_BACKOFF_S: Final = 300.0
MOST_NAMED: Final = 100_000  # runs of each kind in a report: a worker may work for months
NEVER: Final = float("inf")  # when a run is looked at again that this process can do nothing with


@dataclass
class WorkReport:
    """What a worker has done. Runs are named by their ids, the latest 100,000 of each kind; those before are counted."""

    finished: dict[str, str] = field(default_factory=dict)  # run -> status
    failed: dict[str, str] = field(default_factory=dict)  # run -> error of its last attempt
    parked: dict[str, str] = field(default_factory=dict)  # run -> reason
    # Status, "failed", "parked" -> further runs.
    unnamed: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def has_finished(self, run_id: str, status: str) -> None:
        self.failed.pop(run_id, None)
        if (oldest := _name(self.finished, run_id, status)) is not None:
            self._count(oldest)

    def has_failed(self, run_id: str, error: str) -> None:
        if _name(self.failed, run_id, error) is not None:
            self._count("failed")

    def has_parked(self, run_id: str, reason: str) -> None:
        self.failed.pop(run_id, None)
        if _name(self.parked, run_id, reason) is not None:
            self._count("parked")

    def _count(self, what: str) -> None:
        self.unnamed[what] = self.unnamed.get(what, 0) + 1


def _name(runs: dict[str, str], run_id: str, told: str) -> str | None:
    """What was told of the oldest run, if that had to make room."""
    runs.pop(run_id, None)
    runs[run_id] = told
    return runs.pop(next(iter(runs))) if len(runs) > MOST_NAMED else None


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


@dataclass(eq=False, slots=True)
class _Run:
    """What a worker remembers of a run. Another run of the same id is another, and begins with nothing of it."""

    run_id: str
    created_at: float | None = None  # as the store lists it; None where it lists ids only
    which: str = ""  # its `identity`, once its log was read
    not_before: float = 0.0  # on the monotonic clock
    paused: int = 0  # the seq of the failure after which it was last left alone for a while
    unmoved: int | None = None  # it waits for others: the last seq seen
    in_vain: int = 0  # attempts in a row that left nothing in the log

    @property
    def is_plain(self) -> bool:
        """Whether one that is seen for the first time would be treated the same."""
        is_left_alone = self.not_before > clock.monotonic() or self.unmoved is not None
        return not is_left_alone and not self.in_vain and not self.paused

    def wait(self, seconds: float) -> None:
        self.not_before = max(self.not_before, clock.monotonic() + seconds)


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
        resume: Callable[[str, str], Awaitable[RunResult]],
        park: Callable[[str, str, str], Awaitable[None]],
    ) -> None:
        """`resume` gets a run's id and its `identity`, `park` the reason as well."""
        self._store = store
        self._agent = agent
        self._plan = plan
        self._resume = resume
        self._park = park
        self._running: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, _Run] = {}
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
            which = self._known[run_id].which
            if not tell(self._store, run_id, LetGo(), which):  # it has not begun, or has just ended
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
        for run_id, created_at in await self._candidates():
            if run_id in self._running:
                continue
            run = await self._remembered(run_id, created_at)
            if run.not_before == NEVER:
                continue
            if run.not_before > clock.monotonic():
                waits = waits or not self._is_set_aside(run)
                continue
            if len(self._running) >= self._plan.concurrency:
                return True
            if (state := await self._state_of(run)) is None:
                waits = waits or run.not_before != NEVER
                continue
            if not self._may_go_on(state):
                self._pass_over(run, state)
                continue
            if run.paused != state.seq and (pause_s := self._pause_s(state)) > 0:
                run.not_before, run.paused = clock.monotonic() + pause_s, state.seq
                waits = True
                continue
            self._start(run, state)
            waits = True
        return waits

    def _start(self, run: _Run, state: RunState) -> None:
        run.paused = 0
        task = asyncio.create_task(self._go_on(run, state))
        self._running[run.run_id] = task
        task.add_done_callback(lambda _: self._running.pop(run.run_id, None))

    async def _remembered(self, run_id: str, created_at: float | None) -> _Run:
        run = self._known.get(run_id)
        if run is None or await self._is_another(run, created_at):
            run = self._known[run_id] = _Run(run_id, created_at)
        return run

    async def _is_another(self, run: _Run, created_at: float | None) -> bool:
        """Whether the id is another run's by now. Where ids are all that is listed, the log is asked if it matters."""
        if created_at is not None:
            return created_at != run.created_at
        if not run.in_vain and run.not_before <= clock.monotonic():
            return False
        try:
            return (await self._read(run.run_id))[1] != run.which
        except StoreError:
            return False

    async def _candidates(self) -> list[tuple[str, float | None]]:
        """The ids, and when each run was created, if the store says so."""
        running = set(self._running)  # before the look: it may miss what changes meanwhile
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
            self._forget({row.run_id for row in rows}, running)
            return [(r.run_id, r.created_at) for r in rows if not self._is_unmoved(r)]
        ids = await off_loop(self._store, self._store.list_runs)
        self._forget(set(ids), running)
        return [(run_id, None) for run_id in (ids[::-1] if self._plan.newest_first else ids)]

    def _forget(self, listed: set[str], running: set[str]) -> None:
        """What has ended or was deleted, and what there is nothing to know of: there is no end of runs."""
        self._known = {
            run_id: run
            for run_id, run in self._known.items()
            if run_id in running or (run_id in listed and not run.is_plain)
        }

    def _pass_over(self, run: _Run, state: RunState) -> None:
        """Until it has moved; where only its id is listed, it is read again to know that."""
        if run.created_at is None:
            self._known.pop(run.run_id, None)
        else:
            run.unmoved = state.seq

    def _is_unmoved(self, row: Any) -> bool:
        run = self._known.get(row.run_id)
        return run is not None and (run.created_at, run.unmoved) == (row.created_at, row.last_seq)

    async def _state_of(self, run: _Run) -> RunState | None:
        try:
            state, run.which = await self._read(run.run_id)
            return state
        except (LogCorruptError, ConfigError) as error:  # no run can have an id that is damaged
            run.not_before = NEVER
            self._fail(Step(run.run_id, 0, "refused", str(error)))
        except StoreError as error:  # of this run: whoever lists them is told if it is the store
            logger.warning("run %s is looked at again later: %s", run.run_id, error)
            run.wait(self._plan.poll_s)
        return None

    async def _read(self, run_id: str) -> tuple[RunState, str]:
        """The run and its `identity`, "" of one that is gone."""
        events: list[Event] = await off_loop(self._store, loaded, self._store, run_id)
        state = replay(events, run_id)
        return state, identity(events) if events else ""

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
        if state.attempts >= self._plan.max_attempts:
            return 0.0  # it is not tried again but parked
        backoff_s = self._backoff_s(state.attempts)
        left_s = state.ended_at + backoff_s - clock.now()
        return min(max(0.0, left_s), backoff_s)  # the clock that wrote the end may have been ahead

    def _backoff_s(self, attempts: int) -> float:
        return min(self._plan.backoff_s * 2.0 ** min(attempts - 1, 64), LONGEST_BACKOFF_S)

    async def _go_on(self, run: _Run, state: RunState) -> None:
        run_id, attempt = run.run_id, state.attempts + 1
        try:
            if state.attempts >= self._plan.max_attempts:
                await self._give_up(run, state)
                return
            result = await self._resume(run_id, run.which)
        except LeaseError:
            run.wait(self._plan.poll_s)  # somebody has it
        except RunNotFoundError:  # deleted since it was listed, so there is nothing to do
            logger.info("run %s was deleted before it was begun", run_id)
        except asyncio.CancelledError:
            self._tell(Step(run_id, attempt, "interrupted"))
            raise
        except ConfigError as error:  # nothing was begun, and this process cannot change that
            run.not_before = NEVER
            self._fail(Step(run_id, attempt, "refused", str(error)))
        except Exception as error:
            told = error_text(error)
            if isinstance(error, AgentorError):
                run.wait(self._plan.poll_s)
            self._fail(Step(run_id, attempt, "failed", told))
            self._count(run, attempt, await self._has_moved(run_id, state), told)
        else:
            self._ended(run, Step(run_id, attempt, result.status, result.error), state, result)

    def _ended(self, run: _Run, step: Step, state: RunState, result: RunResult) -> None:
        has_moved = len(result.events) - result.unsaved > state.seq
        if result.unsaved:
            told = f"{result.status}, but {result.unsaved} of its events could not be saved"
            run.wait(self._plan.poll_s)
            self._fail(replace(step, outcome="failed", error=told))
            self._count(run, step.attempt, has_moved, told)
        elif result.status == UNFINISHED:
            self._tell(replace(step, outcome="interrupted"))
        elif result.status in TAKES and not has_moved:
            told = f"{result.status}, and a resume found nothing to do, so another will not either"
            self._set_aside(run, step.attempt, told)
        else:
            run.in_vain = 0
            self.report.has_finished(run.run_id, result.status)
            self._tell(step)

    # Attempts that the log does not count ------------------------------------------------------------------------

    async def _has_moved(self, run_id: str, state: RunState) -> bool:
        """Whether there is more in its log than the attempt began with."""
        try:
            events = await off_loop(self._store, loaded, self._store, run_id)
            return len(without_repeats(events)) > state.seq
        except Exception:  # a store that fails, which is why nothing moves
            return False

    def _count(self, run: _Run, attempt: int, has_moved: bool, told: str) -> None:
        if has_moved:
            run.in_vain = 0
            return
        run.in_vain += 1
        if run.in_vain < self._plan.max_attempts:
            run.wait(self._backoff_s(run.in_vain))
            return
        reason = f"{run.in_vain} attempts in a row left nothing in its log; the last: {told}"
        self._set_aside(run, attempt, reason)

    def _set_aside(self, run: _Run, attempt: int, reason: str) -> None:
        """Parking would have to be written, too: look at the run again after the longest pause, and wait for nothing."""
        run.in_vain = self._plan.max_attempts
        run.wait(LONGEST_BACKOFF_S)
        self._fail(Step(run.run_id, attempt, "refused", reason))

    def _is_set_aside(self, run: _Run) -> bool:
        return run.in_vain >= self._plan.max_attempts

    # Telling -----------------------------------------------------------------------------------------------------

    def _fail(self, step: Step) -> None:
        self.report.has_failed(step.run_id, step.error or step.outcome)
        self._tell(step)

    def _tell(self, step: Step) -> None:
        try:
            self.watch(step)
        except Exception:  # whoever looks on harms no run
            logger.exception("run %s: its step could not be told", step.run_id)

    async def _give_up(self, run: _Run, state: RunState) -> None:
        run_id = run.run_id
        last = f"; the last error: {state.error}" if state.error else ""
        reason = f"Gave up after {state.attempts} attempts{last}"
        await self._park(run_id, run.which, reason)
        self.report.has_parked(run_id, reason)
        self._tell(Step(run_id, state.attempts, "parked", reason))
