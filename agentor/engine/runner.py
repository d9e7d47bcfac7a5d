"""The one loop: decide, perform, record, fold, show.

Start, resume and fork all come here with a state and the events of their first step. Whatever is performed is first
written: a generation together with the calls that follow from it, before any tool starts; a result when it arrives.
What is shown was written. What happens when the process dies is therefore always the same: the log says how far it got.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, assert_never

from agentor.engine import clock
from agentor.engine import events as ev
from agentor.engine.asking import Asking, Output
from agentor.engine.batch import Batch
from agentor.engine.budget import Budget
from agentor.engine.calling import Calling, Parked
from agentor.engine.decide import (
    AskModel,
    CallTools,
    Decision,
    Finish,
    Wait,
    decide,
    fault_of,
)
from agentor.engine.ending import closing, stopped
from agentor.engine.events import Event
from agentor.engine.lease import Keeper
from agentor.engine.outbox import Audience
from agentor.engine.recorder import Durability, Recorder, ended, is_cancelled
from agentor.engine.redact import hide_in_error
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.responses import Model
from agentor.engine.result_text import error_text
from agentor.engine.staged import Staged
from agentor.engine.store.protocol import Store
from agentor.engine.store.transacting import Transaction
from agentor.engine.tools import CancelledWithOutcomeError, Tool, ToolOutcome
from agentor.engine.transact import LIMIT_S, transact
from agentor.errors import (
    AgentorError,
    LeaseError,
    ModelError,
    OutputMismatchError,
    StatementError,
    StoreError,
)

logger = logging.getLogger("agentor")

HalfFinished: TypeAlias = Literal["rewind", "settle"]
Arrived: TypeAlias = deque[tuple[Call, ToolOutcome | Parked]]  # what is yet to be recorded


@dataclass(frozen=True)
class AgentSpec:
    """What the loop needs to know of an agent for one run."""

    agent: str
    models: Sequence[Model]  # the first, and those to fall back on
    tools: Mapping[str, Tool] = field(default_factory=dict)
    output: Output | None = None
    max_turns: int = 20
    max_tool_failures: int = 2
    context: Any = None
    durability: Durability = "best_effort"
    tool_timeout_s: float | None = None
    half_finished: HalfFinished | None = None
    budget: Budget | None = None
    deadline_s: float | None = None  # from the start of the run
    transaction_limit_s: float = LIMIT_S
    atomic_batches: bool = False
    definition: str | None = None  # a digest of the next
    defined: dict[str, Any] | None = None  # what a run depends on of the agent


class Runner:
    """One run, live. `state` and `events` are what is recorded; `go` takes the run to the end of its segment."""

    def __init__(
        self,
        spec: AgentSpec,
        run_id: str,
        store: Store | None,
        audience: Audience,
        *,
        state: RunState | None = None,
        events: Sequence[Event] = (),
        keeper: Keeper | None = None,
    ) -> None:
        self.run_id = run_id
        self.store = store
        self.state = state or RunState()
        self.events = list(events)
        self._spec = spec
        self._audience = audience
        self._keeper = keeper or Keeper(None, run_id)
        self._recorder = Recorder(
            store, run_id, spec.durability, lambda: self._keeper.lease, self._keeper.ensure
        )
        self._asking = Asking(spec.models, spec.output, audience, self._check)
        self._calling = Calling(
            spec.tools,
            run_id,
            store is not None,
            spec.context,
            spec.max_tool_failures,
            spec.tool_timeout_s,
            self._check,
            spec.transaction_limit_s,
        )
        self._found = len(self.events)  # in the log, before any of ours
        self._running: set[asyncio.Task[None]] = set()
        self._recording = asyncio.Lock()  # each result takes the next seq
        # A commit with results has failed: the log may be further than we know.
        self._is_broken = False
        self._decided: tuple[RunState, Decision] | None = None
        self._is_halted = False
        self._started_at = clock.now()

    @property
    def is_answered(self) -> bool:
        """Whether the answer is recorded, so that at most the end is missing: nothing is asked or done for that."""
        decision = decide(self.state, self._spec.max_turns)
        return isinstance(decision, Finish) and decision.status == "completed"

    @property
    def unsaved(self) -> int:
        return len(self._recorder.unsaved)

    async def go(self, opening: Sequence[Event] = ()) -> None:
        """Record `opening`, then take steps until there is nothing more to do.

        A run that fails records why and raises it. Cancellation leaves the run as far as it is recorded.
        """
        try:
            await self._record(Staged(self.state, opening))
            await self._run()
        except (StoreError, LeaseError):
            raise
        except asyncio.CancelledError as error:
            if self._is_halted or is_cancelled():
                raise  # somebody wants us to stop
            await self._fail(error)
            raise ModelError(
                f"run {self.run_id!r} was cancelled from inside, by its model"
            ) from error
        except GeneratorExit:
            raise
        except BaseException as error:
            hide_in_error(error)
            await self._fail(error)
            raise

    async def _run(self) -> None:
        while True:
            self._check_halted()
            match self._decide(self.state):
                case AskModel():
                    await self._ask()
                case CallTools(batch, calls):
                    await self._call_tools(batch, calls)
                case Finish() as end:
                    await self._record(Staged(self.state, self._closing(self.state, end)))
                case Wait():
                    return self._raise_fault()
                case other:
                    assert_never(other)

    def _decide(self, state: RunState) -> Decision:
        """What is next. Whoever records the state that was decided on last decides on the same once more."""
        if self._decided is None or self._decided[0] is not state:
            budget = self._spec.budget
            reached = budget.reached if budget else None
            self._decided = state, decide(state, self._spec.max_turns, reached)
        return self._decided[1]

    # The model ----------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        await self._audience.caught_up()
        generation = await self._asking.ask(self.state, self._calling.offered(self.state))
        staged = Staged(self.state, [generation])
        if not self._is_halted:  # else it is paid for and recorded, and nothing follows from it
            self._add_consequences(staged)
        await self._record(staged)

    def _add_consequences(self, staged: Staged) -> None:
        """What follows from a generation without anything being performed: it shares the generation's commit."""
        decision = self._decide(staged.state)
        if isinstance(decision, CallTools):
            self._calling.add_claims(staged, decision.batch, decision.calls)
            decision = self._decide(staged.state)
        if isinstance(decision, Finish):
            for event in self._closing(staged.state, decision):
                staged.add(event)

    # Tools --------------------------------------------------------------------------------------------------------

    async def _call_tools(self, batch: Batch, calls: Sequence[Call]) -> None:
        """Run the calls side by side and record each result when it arrives."""
        if not self._calling.has_claimed(batch, calls):
            staged = Staged(self.state)
            self._calling.add_claims(staged, batch, calls)
            await self._record(staged)
        claimed = self.state.batch
        if claimed is None:
            return
        ready = claimed.ready
        self._check_claimed(ready)
        await self._audience.caught_up()
        self._check()
        arrived: Arrived = deque()
        groups = self._transactions(claimed, ready)
        apart = {call.position for group in groups for call in group}
        running = [
            self._perform(claimed, call, arrived) for call in ready if call.position not in apart
        ]
        running += [self._transact(claimed, group) for group in groups]
        try:
            await self._record_as_they_arrive(running, arrived)
        except (Exception, asyncio.CancelledError):
            await self._record_left(arrived)
            raise

    async def _perform(self, batch: Batch, call: Call, arrived: Arrived) -> None:
        try:
            arrived.append((call, await self._calling.perform(batch, call)))
        except CancelledWithOutcomeError as cancelled:
            arrived.append((call, cancelled.outcome))
            raise

    def _transactions(self, batch: Batch, ready: Sequence[Call]) -> list[list[Call]]:
        """The transactional calls, those together that are one commit."""
        calls = [call for call in ready if self._calling.is_transactional(batch, call)]
        return [calls] if calls and self._spec.atomic_batches else [[call] for call in calls]

    async def _transact(self, batch: Batch, calls: Sequence[Call]) -> None:
        """Nothing else of this run is recorded meanwhile: the seq of the results is known when they commit."""
        async with self._recording:
            if self._is_broken:
                return  # the failure is about to end the run
            self._check()
            await transact(
                *(self._calling, self._recorder, self.state, batch, calls),
                commit=self._commit,
                record=self._record_results,
            )

    def _check_claimed(self, calls: Sequence[Call]) -> None:
        """A tool with a declared effect starts only if a crash would find its claim: best effort is not enough."""
        if not self._recorder.unsaved:
            return
        if careful := [call.name for call in calls if self._calling.is_careful(call)]:
            raise StoreError(
                f"run {self.run_id!r}: the tool {careful[0]!r} was not started, because that it was called could not "
                "be saved first. Resume the run when the store is well again."
            )

    async def _record_as_they_arrive(
        self,
        calls: Sequence[Coroutine[Any, Any, None]],
        arrived: Arrived,
    ) -> None:
        """Results that arrive together share a commit."""
        if len(calls) == 1:
            await calls[0]
            await self._record_alone(arrived)
            return
        over: deque[asyncio.Task[None]] = deque()
        signal = asyncio.Event()

        def end(task: asyncio.Task[None]) -> None:
            over.append(task)
            signal.set()

        running = self._running = {asyncio.create_task(call) for call in calls}
        for task in running:
            task.add_done_callback(end)
        try:
            while running:
                await signal.wait()
                signal.clear()
                while over:
                    running.discard(task := over.popleft())
                    task.result()
                await self._record_arrived(arrived)
        finally:
            for task in running:
                task.cancel()
            cancelled = await ended(running)
            for task in running:  # the first failure is told; another one is only seen
                task.cancelled() or task.exception()
            if cancelled is not None:
                raise cancelled

    async def _record_arrived(self, arrived: Arrived) -> None:
        async with self._recording:
            await self._record_alone(arrived)

    async def _record_alone(self, arrived: Arrived) -> None:
        """While nothing else of this run is recorded."""
        if self._is_broken:
            return
        staged = Staged(self.state)
        while arrived:
            self._calling.add_outcome(staged, *arrived.popleft())
        await self._record_results(staged)

    async def _record_left(self, arrived: Arrived) -> None:
        """Record what has ended before the run does: that it is over is no doubt about what was done.

        Also when our lease cannot be trusted any more: nothing follows from it, and if somebody else has had the run it is
        refused where it would be written.
        """
        if not arrived:
            return
        try:
            if not self._recorder.is_fenced:
                self._keeper.check()
            await self._record_arrived(arrived)
        except Exception as error:  # what ends the run is what is to be told
            logger.warning(
                "run %s: results that came while it was stopped are not recorded (%s)",
                self.run_id,
                error,
            )

    # Recording ----------------------------------------------------------------------------------------------------

    async def _record(self, staged: Staged) -> None:
        """Write, then fold, then show."""
        if not staged.events:
            return
        cancelled = None
        try:
            await self._recorder.save(staged.events)
        except asyncio.CancelledError as error:
            cancelled = error  # they are on disk or the next to go there, and what ends the run follows them
        self._adopt(staged)
        if cancelled is None or not self._recorder.unsaved:  # what was refused is shown to nobody
            await self._show(staged)
        if cancelled is not None:
            raise cancelled

    async def _record_results(self, staged: Staged) -> None:
        try:
            await self._record(staged)
        except AgentorError:
            self._is_broken = True
            self._adopt(staged)  # it waits to be saved, and what ends the run follows it
            raise

    async def _commit(self, transaction: Transaction, staged: Staged) -> None:
        """The same for what is one commit with what a transaction wrote."""
        try:
            await self._recorder.commit(transaction, staged.events)
        except StatementError:
            raise
        except Exception:
            self._is_broken = True
            raise
        self._adopt(staged)
        await self._show(staged)

    def _adopt(self, staged: Staged) -> None:
        self.state = staged.state
        self.events.extend(staged.events)

    async def _show(self, staged: Staged) -> None:
        for event in staged.events:
            await self._audience.show(event)

    def _closing(self, state: RunState, end: Finish) -> list[Event]:
        return closing(state, end, self._started_at, clock.now())

    # Failing ------------------------------------------------------------------------------------------------------

    def _raise_fault(self) -> None:
        """Tell the caller of a reply that could not be used, now that it is recorded."""
        if end := fault_of(self.state):
            error = end.error or end.status
            raise OutputMismatchError(error) if end.fault == "mismatch" else ModelError(error)

    def left_running(self) -> list[tuple[Call, threading.Thread]]:
        """The calls that go on in threads of their own although the run does not, with the threads."""
        if self._recorder.unsaved:
            # Results among it perhaps, so that others would start those calls again.
            return self._calling.ever_running()
        return self._calling.still_running(self.state.batch)

    def _check(self) -> None:
        """Whether something may be begun now. `LeaseLostError`, or `CancelledError` if we were told to stop."""
        self._keeper.check()
        self._check_halted()

    def _check_halted(self) -> None:
        """A cancellation is told once, and a model, a predicate or a callback may have let it pass."""
        if self._is_halted:
            raise asyncio.CancelledError

    def halt(self) -> None:
        """Begin nothing more, and cancel the tools at once, also while a save holds up everything else."""
        self._is_halted = True
        for task in self._running:
            task.cancel()

    async def stop(
        self,
        status: str,
        error: str,
        by: str | None = None,
        opening: Sequence[Event] = (),
        has_ended: bool = False,
    ) -> None:
        """Close the segment from outside, or one that `opening` would have opened, or with `has_ended` one that has just
        come to another end. The work must have ended; what it had begun stays as it is recorded."""
        staged = Staged(replace(self.state, status=None) if has_ended else self.state, opening)
        if staged.state.status is not None:
            if self._recorder.unsaved:  # how that write ended, nobody has heard yet
                await self._recorder.save(())
            return
        end = Finish(status, error=error)
        for event in stopped(staged.state, end, by, self._started_at, clock.now()):
            staged.add(event)
        try:
            await self._record(staged)
        except AgentorError:
            if has_ended:  # the run stands as it had ended, and of that nothing is missing
                self._recorder.unsaved = [
                    e for e in self._recorder.unsaved if e not in staged.events
                ]
            raise

    async def let_go(self) -> None:
        """Record that we were stopped in good order, if we had begun. The work must have ended."""
        if self.state.status is None and len(self.events) > self._found:
            await self._record(Staged(self.state, [Event(ev.STOP, started_at=clock.now())]))

    async def _fail(self, error: BaseException) -> None:
        """Record that the run failed, if that can still be recorded and is not yet."""
        if self.state.status is not None:
            return
        end = Finish("failed", error=error_text(error))
        try:
            await self._record(Staged(self.state, self._closing(self.state, end)))
        except AgentorError as failure:
            logger.error("run %s: its failure could not be recorded (%s)", self.run_id, failure)
