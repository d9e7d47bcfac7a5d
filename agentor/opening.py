"""How an agent opens a segment of a run: its first, and one that goes on from what is recorded.

Nothing is written or asked here; what comes out is the `run_start` that the loop records first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentor.definition import Change, changes, definition_in
from agentor.engine import clock
from agentor.engine import events as ev
from agentor.engine.asking import name_of
from agentor.engine.batch import Batch
from agentor.engine.calling import Calling
from agentor.engine.decide import Reopen, resumption
from agentor.engine.events import Event, Message
from agentor.engine.replay import RunState
from agentor.engine.request import SYSTEM_ROLES
from agentor.engine.runner import AgentSpec
from agentor.errors import ConfigError
from agentor.plan import needed


@dataclass(frozen=True)
class Opening:
    """The segments of one agent."""

    spec: AgentSpec
    instructions: str | None

    def first(self, messages: Sequence[Message]) -> Event:
        """The event that begins a run."""
        return self._run_start(self._with_instructions(messages))

    def again(self, run_id: str, state: RunState, messages: Sequence[Message] = ()) -> list[Event]:
        """The event that goes on from a state; none if only the end of the run is missing.

        `ConfigError`: a tool is gone that an open batch needs, or the budget is spent.
        """
        messages = [*state.asked, *messages]
        settles = self.settles(state.batch)
        told: Sequence[Message] = ()  # already, for when the batch has its answers
        if state.batch is not None and settles:
            self._check_tools(run_id, state.batch)
            told = state.batch.then
        elif state.batch is not None:
            messages = [*state.batch.then, *messages]  # what was added since is not given up
        reopen = self.reopening(state, settles)
        if reopen is None and not messages:
            return []
        if self.spec.budget is not None:
            self.spec.budget.check_spent(state)
        kept, added = len(state.transcript), messages
        if self.instructions and not (state.transcript.has_system or _has_system(told)):
            if not settles:
                kept, added = 0, [*state.messages, *messages]
            added = self._with_instructions(added)
        start = self._run_start(added, state).with_(kept=kept or None)
        if reopen is not None and reopen.rewound:
            start = start.with_(rewound=list(reopen.rewound))
        if state.batch is not None and settles:
            start = start.with_(settling=list(reopen.settling) if reopen else [])
        return [start]

    def reopening(self, state: RunState, settles: bool) -> Reopen | None:
        """What becomes of the state when it is gone on with, without more input; None if at most its end is missing."""
        return resumption(state, self.spec.max_turns, settles)

    def settles(self, batch: Batch | None) -> bool:
        """Whether a half-finished batch is gone on with."""
        if batch is None:
            return False
        declared = {name: tool.effect for name, tool in self.spec.tools.items()}
        if self.spec.half_finished == "rewind":
            return batch.approving  # consent is never given up
        return self.spec.half_finished == "settle" or batch.settles(declared)

    def calling(self, run_id: str) -> Calling:
        """The tools as a resume would have them, to be asked what they would do."""
        spec = self.spec
        return Calling(
            *(spec.tools, run_id, True, spec.context, spec.max_tool_failures, spec.tool_timeout_s),
            check=lambda: None,
            transaction_limit_s=spec.transaction_limit_s,
        )

    def changes(self, state: RunState, events: Sequence[Event]) -> list[Change]:
        """What the agent is that it was not when the run last began or went on."""
        found = []
        if state.agent not in (None, self.spec.agent):
            found.append(Change("agent", None, state.agent, self.spec.agent))
        digest, before = definition_in(events)
        if digest is None or digest == self.spec.definition:
            return found
        if before is None or self.spec.defined is None:
            return [*found, Change("unknown")]
        return found + changes(before, self.spec.defined)

    def _with_instructions(self, messages: Sequence[Message]) -> list[Message]:
        if self.instructions and not _has_system(messages):
            return [{"role": "system", "content": self.instructions}, *messages]
        return list(messages)

    def _check_tools(self, run_id: str, batch: Batch) -> None:
        if gone := self.calling(run_id).gone(batch):
            raise ConfigError(f"run {run_id!r}: {needed(gone[0], run_id)}")

    def _run_start(self, messages: list[Message], state: RunState | None = None) -> Event:
        spec = self.spec
        is_known = state is not None and spec.definition in state.definitions
        return Event(
            ev.RUN_START,
            agent=spec.agent,
            model=name_of(spec.models[0]),
            messages=messages,
            limits={"max_turns": spec.max_turns, "max_tool_failures": spec.max_tool_failures},
            definition=spec.definition,
            defined=None if is_known else spec.defined,
            nonce=clock.new_nonce() if state is None else None,
            started_at=clock.now(),
        )


def _has_system(messages: Iterable[Message]) -> bool:
    return any(message.get("role") in SYSTEM_ROLES for message in messages)
