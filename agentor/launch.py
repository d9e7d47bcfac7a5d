"""One call of run, resume or fork, from the lease to the result.

All three end on the same road: a state folded from the log (empty for a new run), the first event of a segment, and
the loop. What differs is only how they come by the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

from agentor.consent import pending_of
from agentor.definition import left_alone
from agentor.driving import drive
from agentor.engine import clock
from agentor.engine.decide import snap
from agentor.engine.events import Event, Message, RunResult
from agentor.engine.lease import Keeper
from agentor.engine.outbox import Audience
from agentor.engine.recorder import Recorder, off_loop, uninterrupted
from agentor.engine.replay import RunState, evolve
from agentor.engine.runner import AgentSpec, Runner
from agentor.engine.store.forking import fork_run, forks_at_once
from agentor.engine.store.own import loaded
from agentor.engine.store.protocol import Store, check_run_id, new_run_id
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    OutputMismatchError,
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
    StoreError,
)
from agentor.inputs import check_approvals, read_count
from agentor.opening import Opening
from agentor.output import OutputType
from agentor.plan import Limits, Plan, plan_of
from agentor.recorded import (
    Recorded,
    another_run,
    birth_seq,
    has_ended_since,
    recorded,
    recorded_still,
    reread,
    stored,
)
from agentor.stopping import OVERDUE, TAKES, Stop, Stopper, end_run
from agentor.tracing import Traced

logger = logging.getLogger("agentor")

OnChange: TypeAlias = Literal["warn", "refuse", "adopt"]

SHORTEST_WAIT_S: Final = 0.05  # between two looks at a run that somebody else has
LONGEST_WAIT_S: Final = 1.0
REFUSED: Final = "the agent has changed, and is built with on_change='refuse'"


@dataclass(frozen=True)
class Launch:
    """What every way into a run needs. `audience` is told of each event once it is recorded."""

    spec: AgentSpec
    store: Store | None
    instructions: str | None
    output: OutputType | None
    audience: Audience
    on_change: OnChange = "warn"
    by_worker: bool = False  # nobody looks on who would wonder about a warning

    @cached_property
    def _opening(self) -> Opening:
        return Opening(self.spec, self.instructions)

    async def run(self, messages: Sequence[Message], run_id: str | None = None) -> RunResult:
        """A new run. `RunExistsError` if the id that was asked for is taken."""
        check_approvals(self.spec.tools, self.store)
        if run_id is not None:
            await self._check_free(check_run_id(run_id))
        keeper = Keeper(self.store, run_id or new_run_id())
        runner = self._runner(keeper)
        start = self._opening.first(messages)
        await self._acquire_fresh(keeper)
        return await self._finish(runner, keeper, [start])

    async def resume(self, run_id: str, wait_s: float = 0.0) -> RunResult:
        """Go on with a run from its log; a finished one is returned as it is and nothing is written.

        A run that another worker has is waited for, `wait_s` seconds at most; what that worker comes to is the result.
        `RunNotFoundError` if it is deleted meanwhile.
        """
        known = await self._load(check_run_id(run_id))
        seen = len(known[1])
        until, pause_s = clock.monotonic() + wait_s, SHORTEST_WAIT_S
        while True:
            try:
                return await self._resume(run_id, known, seen=seen)
            except LeaseHeldError as error:
                left_s = until - clock.monotonic()
                if left_s <= 0:
                    if wait_s:
                        error.add_note(f"It was waited for, {wait_s:g} s.")
                    raise
            await clock.sleep(min(left_s, pause_s * (0.5 + clock.uniform() / 2)))
            pause_s = min(pause_s * 2, LONGEST_WAIT_S)
            known = await reread(stored(self.store), run_id, known)

    async def take(self, run_id: str, which: str) -> RunResult:
        """`resume` of the run with this `identity`. `RunNotFoundError` if it is gone and another has its id."""
        return await self._resume(run_id, await recorded_still(stored(self.store), run_id, which))

    async def _resume(
        self,
        run_id: str,
        known: Recorded,
        is_checked: bool = False,
        keeper: Keeper | None = None,
        seen: int | None = None,
    ) -> RunResult:
        """`seen`: how many events the caller knew when it asked; None: those that are known."""
        keeper = keeper or Keeper(self.store, run_id)
        seen = len(known[1]) if seen is None else seen
        if known[0].is_complete or has_ended_since(known, seen):
            return self._result(self._runner(keeper, *known))
        return await self._go_on(keeper, known, is_checked, seen)

    async def _go_on(
        self, keeper: Keeper, known: Recorded, is_checked: bool, seen: int
    ) -> RunResult:
        """Take the run over and go on with it, as it is now that nobody else can write. `is_checked`: the caller has
        looked whether the agent has changed."""
        if keeper.lease is None:
            await keeper.acquire()
        try:
            state, events = await reread(stored(self.store), keeper.run_id, known)
            is_over = self.by_worker and state.status not in TAKES
            if is_over or has_ended_since((state, events), seen):  # it was ended meanwhile
                await keeper.release()
                return self._result(self._runner(keeper, state, events))
            if not is_checked or self.on_change == "refuse":  # else it has been told already
                self._check_change(keeper.run_id, state, events)
            opening = self._opening.again(keeper.run_id, state)
        except BaseException:
            await keeper.release()
            raise
        return await self._finish(self._runner(keeper, state, events), keeper, opening)

    async def fork(
        self, run_id: str, messages: Sequence[Message], fork_id: str | None, at: int | None
    ) -> RunResult:
        """Branch a run and go on with the branch; without messages, a finished parent is only copied."""
        state, events = await self._load(check_run_id(run_id))
        born, nonce = birth_seq(events), clock.new_nonce()
        of = events[born - 1].with_(seq=born)
        if at is not None:
            state = _snapped(run_id, events, at)
            at, events = state.seq, events[: state.seq]
        goes_on = bool(messages) or not state.is_complete
        if goes_on:
            # Before anything is copied, and so not again of the copy.
            self._check_change(run_id, state, events, "the fork of run")
            self._opening.again(run_id, state, messages)
        keeper = Keeper(self.store, new_run_id() if fork_id is None else check_run_id(fork_id))
        agent, is_copied = self.spec.agent if goes_on else None, False

        def copy() -> None:
            nonlocal is_copied
            self._copy(run_id, keeper.run_id, at, messages, agent, of, nonce)
            is_copied = True

        try:
            return await self._go_on_with_copy(keeper, goes_on, copy, nonce)
        except BaseException as error:  # also who cancels must know what there is to go on with
            if is_copied:
                error.add_note(f"The fork is run {keeper.run_id!r}: resume it, or fork again.")
            raise

    async def _go_on_with_copy(
        self, keeper: Keeper, goes_on: bool, copy: Callable[[], None], nonce: str | None
    ) -> RunResult:
        try:
            if goes_on and forks_at_once(self.store):
                await self._acquire_unborn(keeper)
            await uninterrupted(off_loop(self.store, copy))
            known = await self._load(keeper.run_id)
            if known[0].nonce != nonce:
                raise another_run(keeper.run_id)
            return await self._resume(keeper.run_id, known, goes_on, keeper)
        finally:
            await keeper.release()

    async def read(self, run_id: str) -> RunResult:
        """The run as its log has it. Writes nothing."""
        state, events = await self._load(check_run_id(run_id))
        return self._result(self._runner(Keeper(None, run_id), state, events))

    async def plan(self, run_id: str) -> Plan:
        """What `resume` would do now. Writes nothing and asks nobody."""
        state, events = await self._load(check_run_id(run_id))
        opening = self._opening
        settles = opening.settles(state.batch)
        reopen = opening.reopening(state, settles)
        changed = [] if state.is_complete else opening.changes(state, events)
        refused = [REFUSED] if changed and self.on_change == "refuse" else []
        if (reopen is not None or state.asked) and self.spec.budget is not None:
            refused += self.spec.budget.problems(state)
        plan = Plan(
            *(run_id, state.status),
            changes=tuple(changed),
            problems=tuple(refused),
            left_alone=None if self.on_change == "adopt" else left_alone(changed, self.spec.agent),
        )
        return plan_of(plan, state, reopen, settles, opening.calling(run_id), self._limits(state))

    def _limits(self, state: RunState) -> Limits:
        ends_at, budget = self._ends_at(state), self.spec.budget
        is_overdue = ends_at is not None and clock.now() >= ends_at
        return Limits(OVERDUE.error if is_overdue else None, budget.reached if budget else None)

    async def park(self, run_id: str, which: str, reason: str) -> None:
        """End the run with this `identity` that is given up, with the reason. It can still be resumed by hand."""
        store = stored(self.store)
        known = await recorded_still(store, run_id, which)
        await end_run(store, run_id, Stop("parked", reason), known)

    async def enqueue(self, messages: Sequence[Message], run_id: str | None) -> str:
        """Write a run that a worker is to take; its id."""
        store = stored(self.store)
        if run_id is not None:
            await self._check_free(check_run_id(run_id))
        chosen = run_id or new_run_id()
        start = self._opening.first(messages).with_(seq=1, queued=True)
        try:
            await Recorder(store, chosen, "strict").save([start])
        except SequenceConflictError as error:
            raise RunExistsError(chosen) from error
        return chosen

    # What has changed ---------------------------------------------------------------------------------------------

    def _check_change(
        self, run_id: str, state: RunState, events: Sequence[Event], which: str = "run"
    ) -> None:
        if self.on_change == "adopt" or not (changed := self._opening.changes(state, events)):
            return
        what = "\n".join(map(str, changed))
        told = f"{which} {run_id!r} goes on with an agent that has changed:\n{what}"
        if self.on_change == "refuse":
            raise ConfigError(f"{told}\nBuild the agent with on_change='adopt' if that is meant.")
        if self.by_worker and (why := left_alone(changed, self.spec.agent)):
            raise ConfigError(f"workers leave run {run_id!r} alone: {why}")
        logger.warning("%s", told)

    # The store ----------------------------------------------------------------------------------------------------

    async def _check_free(self, run_id: str) -> None:
        if self.store is None:
            return
        events = await off_loop(self.store, loaded, self.store, run_id)
        if events:
            raise RunExistsError(run_id)

    async def _acquire_fresh(self, keeper: Keeper) -> None:
        """A new run goes on without a lease when the store cannot give one: nobody can contend for its id."""
        if self.spec.durability == "strict":
            await keeper.acquire()
            return
        try:
            await keeper.ensure()
        except StoreError:
            pass  # it is asked for again with the first write
        except BaseException:
            await keeper.release()
            raise

    async def _acquire_unborn(self, keeper: Keeper) -> None:
        """Take the id of a fork before the fork is there: nobody else can begin with it."""
        try:
            await keeper.acquire()
        except LeaseHeldError:
            await self._check_free(keeper.run_id)
            raise

    async def _load(self, run_id: str) -> Recorded:
        return await recorded(stored(self.store), run_id)

    def _copy(
        self,
        run_id: str,
        fork_id: str,
        at: int | None,
        messages: Sequence[Message],
        agent: str | None,
        of: Event,
        nonce: str | None,
    ) -> None:
        """Of the run that was judged, which has the event `of`."""
        store = stored(self.store)
        try:
            fork_run(
                *(store, run_id, fork_id, at), messages=messages, agent=agent, of=of, nonce=nonce
            )
        except RunNotFoundError:
            raise another_run(run_id) from None

    # The road that all take ---------------------------------------------------------------------------------------

    def _runner(
        self, keeper: Keeper, state: RunState | None = None, events: Sequence[Event] = ()
    ) -> Runner:
        return Runner(
            self.spec,
            keeper.run_id,
            self.store,
            self.audience,
            state=state,
            events=events,
            keeper=keeper,
        )

    async def _finish(self, runner: Runner, keeper: Keeper, opening: Sequence[Event]) -> RunResult:
        try:
            is_over = not opening and runner.is_answered  # then it cannot be late any more
            ends_at = None if is_over else self._ends_at(runner.state, opening)
            nonce = runner.state.nonce or (opening[0].nonce if opening else None)
            stopper = Stopper(self.store, runner.run_id, ends_at, nonce)
            await drive(runner, keeper, stopper, opening)
        except SequenceConflictError as error:
            if error.seq == 1:
                raise RunExistsError(runner.run_id) from error
            raise
        except Exception as error:
            error.add_note(self._where(runner))
            raise
        finally:
            if isinstance(self.audience, Traced):
                await self.audience.export()
        return self._result(runner)

    def _ends_at(self, state: RunState, opening: Sequence[Event] = ()) -> float | None:
        """The deadline counts from the run's first start, across resumes and forks."""
        if self.spec.deadline_s is None:
            return None
        started_at = state.started_at
        if started_at is None:
            started_at = opening[0].started_at if opening else None
        return (clock.now() if started_at is None else started_at) + self.spec.deadline_s

    def _where(self, runner: Runner) -> str:
        if self.store is None:
            return f"In run {runner.run_id} of agent {self.spec.agent!r}, which has no store."
        return f"In run {runner.run_id!r} of agent {self.spec.agent!r}: resume({runner.run_id!r}) goes on."

    def _result(self, runner: Runner) -> RunResult:
        state = runner.state
        return RunResult(
            final_output=self._final_output(runner),
            status=state.status or "unfinished",
            run_id=runner.run_id if self.store is not None else None,
            events=runner.events,
            usage=state.usage,
            messages=state.messages,
            error=state.error,
            unsaved=runner.unsaved,
            pending=pending_of(state, runner.run_id),
        )

    def _final_output(self, runner: Runner) -> object:
        text = runner.state.text
        if not runner.state.is_complete or self.output is None:
            return text if runner.state.is_complete else None
        try:
            return self.output.parse(text or "")
        except ValueError as error:
            raise OutputMismatchError(
                f"run {runner.run_id!r} ended with an answer that is no {self.output.name}: {error}"
            ) from None


def _snapped(run_id: str, events: Sequence[Event], at: int) -> RunState:
    """The state at the last seq <= at where a branch may begin. `ConfigError` if there is none."""
    if isinstance(at, bool) or not isinstance(at, int) or not 1 <= at <= len(events):
        raise ConfigError(f"run {run_id!r} has no seq {at!r}: it has 1 to {len(events)}")
    states = [RunState()]
    for event in events[:at]:
        states.append(evolve(states[-1], event))
    return states[snap(states, at)]


def with_turns(spec: AgentSpec, max_turns: int | None) -> AgentSpec:
    """The spec with another turn budget, if one is given."""
    if max_turns is None:
        return spec
    return replace(spec, max_turns=read_count("max_turns", max_turns))
