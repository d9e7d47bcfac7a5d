"""One call of run, resume or fork, from the lease to the result.

All three end on the same road: a state folded from the log (empty for a new run), the first event of a segment, and
the loop. What differs is only how they come by the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from agentor.engine import clock
from agentor.engine import events as ev
from agentor.engine.asking import name_of
from agentor.engine.calling import digest_of
from agentor.engine.decide import resumption, snap
from agentor.engine.events import Event, Message, PendingCall, RunResult
from agentor.engine.lease import Keeper
from agentor.engine.outbox import Audience
from agentor.engine.recorder import Recorder, off_loop
from agentor.engine.replay import Batch, RunState, evolve, with_messages
from agentor.engine.runner import Plan, Runner
from agentor.engine.store import fork_run
from agentor.engine.store.protocol import Store, check_run_id, new_run_id
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LogCorruptError,
    OutputMismatchError,
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
    StoreError,
)
from agentor.output import OutputType
from agentor.tracing import Traced

SHORTEST_WAIT_S: Final = 0.05  # between two looks at a run that somebody else has
LONGEST_WAIT_S: Final = 1.0


@dataclass(frozen=True)
class Launch:
    """What every way into a run needs. `audience` is told of each event once it is recorded."""

    plan: Plan
    store: Store | None
    instructions: str | None
    output: OutputType | None
    audience: Audience

    async def run(self, messages: Sequence[Message], run_id: str | None = None) -> RunResult:
        """A new run. `RunExistsError` if the id that was asked for is taken."""
        if run_id is not None:
            await self._check_free(check_run_id(run_id))
        keeper = Keeper(self.store, run_id or new_run_id())
        runner = self._runner(keeper)
        await self._acquire_fresh(keeper)
        start = self._run_start(self._with_instructions(messages))
        return await self._finish(runner, keeper, [start])

    async def resume(self, run_id: str, wait_s: float = 0.0) -> RunResult:
        """Go on with a run from its log; a finished one is returned as it is and nothing is written.

        A run that another worker has is waited for, `wait_s` seconds at most.
        """
        check_run_id(run_id)
        until, pause_s = clock.monotonic() + wait_s, SHORTEST_WAIT_S
        while True:
            try:
                return await self._resume(run_id)
            except LeaseHeldError:
                if clock.monotonic() + pause_s > until:
                    raise
            await clock.sleep(pause_s * (0.5 + clock.uniform() / 2))
            pause_s = min(pause_s * 2, LONGEST_WAIT_S)

    async def _resume(self, run_id: str) -> RunResult:
        state, events = await self._load(run_id)
        keeper = Keeper(self.store, run_id)
        if state.is_complete:
            return self._result(self._runner(keeper, state, events))
        return await self._go_on(keeper, ())

    async def _go_on(self, keeper: Keeper, messages: Sequence[Message]) -> RunResult:
        """Take the run over and go on with it, as it is now that nobody else can write."""
        await keeper.acquire()
        try:
            state, events = await self._load(keeper.run_id)
            opening = self._reopening(state, messages)
        except BaseException:
            await keeper.release()
            raise
        return await self._finish(self._runner(keeper, state, events), keeper, opening)

    async def fork(
        self, run_id: str, messages: Sequence[Message], fork_id: str | None, at: int | None
    ) -> RunResult:
        """Branch a run and go on with the branch; without messages, a finished parent is only copied."""
        _, events = await self._load(check_run_id(run_id))
        if at is not None:
            at = _snapped(run_id, events, at)
        copy = await asyncio.to_thread(self._copy, run_id, fork_id, at)
        try:
            if not messages:
                return await self.resume(copy)
            return await self._go_on(Keeper(self.store, copy), messages)
        except Exception as error:
            error.add_note(f"The fork is run {copy!r}: resume it, or fork again.")
            raise

    async def decide_call(self, run_id: str, call_id: str, decision: Event) -> None:
        """Record what a person decided about a call that waits. `ConfigError` if it does not, or no longer, wait."""
        await self._load(check_run_id(run_id))
        keeper = Keeper(self.store, run_id)
        await keeper.acquire()
        try:
            state, _ = await self._load(run_id)
            pending = {call.call_id: call for call in pending_of(state)}
            if call_id not in pending:
                raise ConfigError(_not_waiting(state, run_id, call_id, list(pending)))
            recorded = decision.with_(
                call_id=call_id,
                name=pending[call_id].name,
                args_digest=digest_of(pending[call_id].args),
                started_at=clock.now(),
                seq=state.seq + 1,
            )
            await Recorder(self.store, run_id, "strict", lambda: keeper.lease).save([recorded])
        finally:
            await keeper.release()

    # Opening a segment --------------------------------------------------------------------------------------------

    def _with_instructions(self, messages: Sequence[Message]) -> list[Message]:
        if self.instructions and not any(_is_system(message) for message in messages):
            return [{"role": "system", "content": self.instructions}, *messages]
        return list(messages)

    def _reopening(self, state: RunState, messages: Sequence[Message] = ()) -> list[Event]:
        """The run_start that goes on from a state; none if only the end of the run is missing."""
        settles = self._settles(state.batch)
        reopen = resumption(state, self.plan.max_turns, settles)
        if reopen is None and not messages:
            return []
        kept, added = len(state.transcript), list(messages)
        if self.instructions and not state.transcript.has_system:
            if not settles:
                kept, added = 0, [*state.messages, *messages]
            added = self._with_instructions(added)
        start = self._run_start(added).with_(kept=kept or None)
        if reopen is not None and reopen.rewound:
            start = start.with_(rewound=list(reopen.rewound))
        if state.batch is not None and settles:
            start = start.with_(settling=list(reopen.settling) if reopen else [])
        return [start]

    def _settles(self, batch: Batch | None) -> bool:
        """Whether a half-finished batch is gone on with. `ConfigError` if a tool that it needs is gone."""
        if batch is None:
            return False
        declared = {name: tool.effect for name, tool in self.plan.tools.items()}
        if self.plan.half_finished == "rewind" and not batch.approving:
            return False
        if self.plan.half_finished is None and not batch.settles(declared):
            return False
        for call in batch.missing:
            if call.name not in self.plan.tools:
                raise ConfigError(
                    f"the open call {call.call_id!r} needs the tool {call.name!r}, which this agent does not "
                    "have: add it, or give the batch up with half_finished='rewind'"
                )
        return True

    def _run_start(self, messages: list[Message]) -> Event:
        plan = self.plan
        return Event(
            ev.RUN_START,
            agent=plan.agent,
            model=name_of(plan.models[0]),
            messages=messages,
            limits={"max_turns": plan.max_turns, "max_tool_failures": plan.max_tool_failures},
            definition=plan.definition,
            started_at=clock.now(),
        )

    # The store ----------------------------------------------------------------------------------------------------

    async def _check_free(self, run_id: str) -> None:
        if self.store is None:
            return
        events = await off_loop(self.store, self.store.load, run_id)
        if events:
            raise RunExistsError(run_id)

    async def _acquire_fresh(self, keeper: Keeper) -> None:
        """A new run goes on without a lease when the store cannot give one: nobody can contend for its id."""
        try:
            await keeper.acquire()
        except StoreError:
            if self.plan.durability == "strict":
                raise

    async def _load(self, run_id: str) -> tuple[RunState, list[Event]]:
        if self.store is None:
            raise ConfigError("this agent has no store: give it one, Agentor(store='runs.db')")
        events = await off_loop(self.store, self.store.load, run_id)
        if not events:
            raise RunNotFoundError(run_id)
        state, filled = with_messages(_without_repeats(events), run_id)
        if not len(state.transcript):
            raise LogCorruptError(run_id, 1, "no event says what the conversation is")
        return state, filled

    def _copy(self, run_id: str, fork_id: str | None, at: int | None) -> str:
        assert self.store is not None
        return fork_run(self.store, run_id, fork_id, at)

    # The road that all take ---------------------------------------------------------------------------------------

    def _runner(
        self, keeper: Keeper, state: RunState | None = None, events: Sequence[Event] = ()
    ) -> Runner:
        return Runner(
            self.plan,
            keeper.run_id,
            self.store,
            self.audience,
            state=state,
            events=events,
            keeper=keeper,
        )

    async def _finish(self, runner: Runner, keeper: Keeper, opening: Sequence[Event]) -> RunResult:
        try:
            await drive(runner, keeper, opening)
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

    def _where(self, runner: Runner) -> str:
        if self.store is None:
            return f"In run {runner.run_id} of agent {self.plan.agent!r}, which has no store."
        return f"In run {runner.run_id!r} of agent {self.plan.agent!r}: resume({runner.run_id!r}) goes on."

    def _result(self, runner: Runner) -> RunResult:
        state = runner.state
        return RunResult(
            final_output=self._final_output(runner),
            status=state.status or "failed",
            run_id=runner.run_id if self.store is not None else None,
            events=runner.events,
            usage=state.usage,
            messages=state.messages,
            error=state.error,
            unsaved=runner.unsaved,
            pending=pending_of(state),
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


async def drive(runner: Runner, keeper: Keeper, opening: Sequence[Event]) -> None:
    """Run the loop while the lease is kept alive beside it, and leave nothing running, however this ends."""
    work = asyncio.create_task(runner.go(opening))
    watch = asyncio.create_task(keeper.keep())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.wait({work, watch})
        await keeper.release()
    if work.cancelled() and keeper.lost is not None:
        raise keeper.lost
    work.result()


def pending_of(state: RunState) -> list[PendingCall]:
    """The calls that wait for a person."""
    batch = state.batch
    if batch is None:
        return []
    return [
        PendingCall(c.call_id, c.name, dict(c.args), batch.approvals[c.position].reason)
        for c in batch.waiting
    ]


def _not_waiting(state: RunState, run_id: str, call_id: str, pending: list[str]) -> str:
    others = f"; calls that wait: {', '.join(pending)}" if pending else "; none of its calls waits"
    approvals = state.batch.approvals if state.batch else {}
    calls = state.batch.calls if state.batch else ()
    for call in calls:
        approval = approvals.get(call.position)
        if call.call_id == call_id and approval:
            by = f" by {approval.by}" if approval.by else ""
            return f"call {call_id!r} of run {run_id!r} was {approval.status}{by} already{others}"
    return f"call {call_id!r} of run {run_id!r} does not wait for a decision{others}"


def _snapped(run_id: str, events: Sequence[Event], at: int) -> int:
    """The last seq <= at where a branch may begin. `ConfigError` if there is none."""
    if isinstance(at, bool) or not isinstance(at, int) or not 1 <= at <= len(events):
        raise ConfigError(f"run {run_id!r} has no seq {at!r}: it has 1 to {len(events)}")
    states = [RunState()]
    for event in events[:at]:
        states.append(evolve(states[-1], event))
    return snap(states, at)


def _without_repeats(events: Sequence[Event]) -> list[Event]:
    """The events without exact repeats, which a store that fails after it has written makes a worker leave."""
    unique: list[Event] = []
    for event in events:
        if not (unique and event.seq is not None and event == unique[-1]):
            unique.append(event)
    return unique


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def with_turns(plan: Plan, max_turns: int | None) -> Plan:
    """The plan with another turn budget, if one is given."""
    if max_turns is None:
        return plan
    return replace(plan, max_turns=check_count("max_turns", max_turns))


def check_count(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
