"""The one loop: decide, perform, record, fold, show.

Start, resume and fork all come here with a state and the events of their first step. Whatever is performed is first
written: a generation together with the calls that follow from it, before any tool starts; a result when it arrives.
What is shown was written. What happens when the process dies is therefore always the same: the log says how far it got.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from agentor.engine import clock
from agentor.engine import events as ev
from agentor.engine.asking import Asking, Output
from agentor.engine.decide import AskModel, CallTools, Finish, Wait, decide, fault_of
from agentor.engine.events import Event
from agentor.engine.lease import Keeper
from agentor.engine.outbox import Audience
from agentor.engine.recorder import Durability, Recorder
from agentor.engine.replay import WITHDRAWN, Batch, RunState, evolve, fill
from agentor.engine.request import Call
from agentor.engine.responses import Model
from agentor.engine.store.protocol import Store
from agentor.engine.tools import RunContext, Tool, ToolOutcome, perform
from agentor.errors import AgentorError, LeaseError, ModelError, OutputMismatchError, StoreError

logger = logging.getLogger("agentor")


@dataclass(frozen=True)
class Plan:
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
    definition: str | None = None


class Staged:
    """Events that are to be recorded together, and the state that they lead to."""

    def __init__(self, state: RunState, events: Iterable[Event] = ()) -> None:
        self.state = state
        self.events: list[Event] = []
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        event = fill(self.state, event.with_(seq=self.state.seq + 1))
        self.events.append(event)
        self.state = evolve(self.state, event)


class Runner:
    """One run, live. `state` and `events` are what is recorded; `go` takes the run to the end of its segment."""

    def __init__(
        self,
        plan: Plan,
        run_id: str,
        store: Store | None,
        audience: Audience,
        *,
        state: RunState | None = None,
        events: Sequence[Event] = (),
        keeper: Keeper | None = None,
    ) -> None:
        self.run_id = run_id
        self.state = state or RunState()
        self.events = list(events)
        self._plan = plan
        self._audience = audience
        self._keeper = keeper or Keeper(None, run_id)
        self._recorder = Recorder(store, run_id, plan.durability, lambda: self._keeper.lease)
        self._asking = Asking(plan.models, plan.output, audience)
        self._offered: tuple[frozenset[str], list[dict[str, Any]]] | None = None
        self._started_at = clock.now()

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
        except Exception as error:
            await self._fail(error)
            raise

    async def _run(self) -> None:
        while True:
            match decide(self.state, self._plan.max_turns):
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

    # The model ----------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        await self._audience.caught_up()
        self._keeper.check()
        withdrawn = self.state.withdrawn(self._plan.max_tool_failures)
        generation = await self._asking.ask(self.state, self._offered_tools(withdrawn))
        digest = self.state.transcript.digest()
        staged = Staged(self.state, [generation.with_(turn=self.state.turn + 1, digest=digest)])
        self._add_consequences(staged)
        await self._record(staged)

    def _offered_tools(self, withdrawn: frozenset[str]) -> list[dict[str, Any]]:
        if self._offered is None or self._offered[0] != withdrawn:
            tools = self._plan.tools.items()
            offered = [tool.to_openai() for name, tool in tools if name not in withdrawn]
            self._offered = withdrawn, offered
        return self._offered[1]

    def _add_consequences(self, staged: Staged) -> None:
        """What follows from a generation without anything being performed: it shares the generation's commit."""
        match decide(staged.state, self._plan.max_turns):
            case CallTools(batch, calls):
                self._add_claims(staged, batch, calls)
            case Finish() as end:
                for event in self._closing(staged.state, end):
                    staged.add(event)

    # Tools --------------------------------------------------------------------------------------------------------

    def _add_claims(self, staged: Staged, batch: Batch, calls: Sequence[Call]) -> None:
        """A tool_call for each call that has none, and at once the result of those that will not run."""
        calls = [call for call in calls if call.position not in batch.started]
        turn = staged.state.turn
        for call in calls:
            args = dict(call.args)
            claim = Event(ev.TOOL_CALL, name=call.name, call_id=call.call_id, args=args, turn=turn)
            staged.add(claim)
        for call in calls:
            if refusal := self._refusal(staged.state, batch, call):
                error, reason = refusal
                staged.add(self._result(staged.state, call, f"Error: {reason}", error))

    def _refusal(self, state: RunState, batch: Batch, call: Call) -> tuple[str, str] | None:
        """Why a call is not run: the error, and what the model is told. None if it is run."""
        if batch.cut:
            told = f"your reply was cut off ({batch.cut}), so this call was not run; send it again"
            return f"cut off ({batch.cut})", told
        if call.name not in self._plan.tools:
            known = ", ".join(self._plan.tools) or "none"
            return f"unknown tool {call.name!r}", f"there is no tool {call.name!r}; tools: {known}"
        if call.name in state.withdrawn(self._plan.max_tool_failures):
            return WITHDRAWN, f"the tool {call.name!r} failed too often and is no longer available"
        if call.problem:
            return f"InvalidArgumentsError: {call.problem}", f"{call.problem}; the tool was not run"
        return None

    def _result(self, state: RunState, call: Call, text: str, error: str | None) -> Event:
        """A tool_result. The failure that uses up a tool's budget says so to the model, in the result itself."""
        if error not in (None, WITHDRAWN) and call.name in self._plan.tools:
            failures = state.failures.get(call.name, 0) + 1
            if failures >= self._plan.max_tool_failures:
                text += (
                    f"\nThe tool {call.name!r} has failed {failures} times and is no longer available. "
                    "Answer without it, or say what you cannot do."
                )
        return Event(
            ev.TOOL_RESULT,
            name=call.name,
            call_id=call.call_id,
            result=text,
            error=error,
            turn=state.turn,
        )

    async def _call_tools(self, batch: Batch, calls: Sequence[Call]) -> None:
        """Run the calls side by side and record each result when it arrives."""
        staged = Staged(self.state)
        self._add_claims(staged, batch, calls)
        await self._record(staged)
        if self.state.batch is None:
            return
        await self._audience.caught_up()
        self._keeper.check()
        arrived: deque[tuple[Call, ToolOutcome]] = deque()

        async def run(call: Call) -> None:
            arrived.append((call, await self._perform(batch, call)))

        running = {asyncio.create_task(run(call)) for call in self.state.batch.missing}
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                await self._record_results(arrived)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _perform(self, batch: Batch, call: Call) -> ToolOutcome:
        context = RunContext(
            self._plan.context,
            run_id=self.run_id,
            call_id=call.call_id,
            idempotency_key=f"{self.run_id}:{batch.seq}:{call.position}",
        )
        tool = self._plan.tools[call.name]
        return await perform(tool, dict(call.args), context, timeout_s=self._plan.tool_timeout_s)

    async def _record_results(self, arrived: deque[tuple[Call, ToolOutcome]]) -> None:
        """Record what has arrived, in that order, in one commit."""
        staged = Staged(self.state)
        while arrived:
            call, outcome = arrived.popleft()
            result = self._result(staged.state, call, outcome.text, outcome.error)
            staged.add(result.with_(started_at=outcome.started_at, ended_at=outcome.ended_at))
        await self._record(staged)

    # Recording ----------------------------------------------------------------------------------------------------

    async def _record(self, staged: Staged) -> None:
        """Write, then fold, then show."""
        if not staged.events:
            return
        await self._recorder.save(staged.events)
        self.state = staged.state
        self.events.extend(staged.events)
        for event in staged.events:
            await self._audience.show(event)

    def _closing(self, state: RunState, end: Finish) -> list[Event]:
        said = [Event(ev.MESSAGE, text=end.text, turn=state.turn or None)] if end.say else []
        return [*said, self._run_end(state, end)]

    def _run_end(self, state: RunState, end: Finish) -> Event:
        return Event(
            ev.RUN_END,
            status=end.status,
            text=end.text,
            error=end.error,
            usage=state.usage,
            started_at=self._started_at,
            ended_at=clock.now(),
        )

    # Failing ------------------------------------------------------------------------------------------------------

    def _raise_fault(self) -> None:
        """Tell the caller of a reply that could not be used, now that it is recorded."""
        if end := fault_of(self.state):
            error = end.error or end.status
            raise OutputMismatchError(error) if end.fault == "mismatch" else ModelError(error)

    async def _fail(self, error: Exception) -> None:
        """Record that the run failed, if that can still be recorded and is not yet."""
        if self.state.status is not None:
            return
        end = Finish("failed", error=f"{type(error).__name__}: {error}")
        try:
            await self._record(Staged(self.state, [self._run_end(self.state, end)]))
        except AgentorError as failure:
            logger.error("run %s: its failure could not be recorded (%s)", self.run_id, failure)
