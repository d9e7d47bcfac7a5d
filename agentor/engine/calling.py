"""Answering the calls of a batch: claim them, run them or say why not, and put the answers into events.

A call is claimed (its `tool_call` is in the log) before it starts. Calls that cannot run are answered at once; calls
that a person must consent to wait; calls in doubt are not started again unless their tool says that this is safe.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from agentor.engine import clock, strict_json
from agentor.engine import events as ev
from agentor.engine.batch import (
    DECLARED,
    IN_DOUBT,
    NO_FAILURES,
    REJECTED,
    WITHDRAWN,
    Batch,
)
from agentor.engine.daemon_thread import in_thread
from agentor.engine.db import Db, ToolOutbox
from agentor.engine.effects import (
    DidNotHappen,
    Happened,
    Unknown,
    Verdict,
    find_out,
    may_not_repeat,
    stricter,
)
from agentor.engine.events import Event
from agentor.engine.redact import SECRETS
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.result_text import result_text
from agentor.engine.staged import Staged
from agentor.engine.store.transacting import Transaction
from agentor.engine.tools import RunContext, Tool, ToolOutcome, perform

logger = logging.getLogger("agentor")

NOT_KNOWN: Final = (
    "Error: the outcome of this call is not known. It was started, and the process died before a result was "
    "recorded: it may or may not have taken effect. It was not started again."
)
MAY_HAVE_HAPPENED: Final = "it was started before and may have taken effect"


@dataclass(frozen=True, slots=True)
class Parked:
    """A call in doubt that nobody but a person can decide upon."""

    reason: str = MAY_HAVE_HAPPENED


class Calling:
    """The tools of one run."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        run_id: str,
        is_recorded: bool,
        context: Any,
        max_failures: int,
        timeout_s: float | None,
        check: Callable[[], None],
        transaction_limit_s: float,
    ) -> None:
        self._tools = tools
        self._run_id = run_id
        self._is_recorded = is_recorded
        self._context = context
        self._max_failures = max_failures
        self._timeout_s = timeout_s
        self._transaction_limit_s = transaction_limit_s
        self._check = check  # raises when this worker may no longer act
        self._offered: tuple[frozenset[str], list[dict[str, Any]]] | None = None
        self._claimed: set[tuple[int, int]] = (
            set()
        )  # by this worker: its generation's seq, its position
        self._threads: dict[tuple[int, int], threading.Thread] = {}  # of sync tools, likewise

    def offered(self, state: RunState) -> list[dict[str, Any]]:
        """The tools as the model is told of them: all but those that have used up their failures."""
        withdrawn = state.withdrawn(self._max_failures)
        if self._offered is None or self._offered[0] != withdrawn:
            tools = [t.to_openai() for name, t in self._tools.items() if name not in withdrawn]
            self._offered = withdrawn, tools
        return self._offered[1]

    # Before anything runs -----------------------------------------------------------------------------------------

    def add_claims(self, staged: Staged, batch: Batch, calls: Sequence[Call]) -> None:
        """For each call the event that has to be in the log before it runs, or instead of its running."""
        refused = []
        for call in calls:
            if batch.approval_of(call) == "rejected":
                staged.add(self._rejected(staged.state, batch, call))
            elif batch.approval_of(call) == "approved" and not self._is_withdrawn(staged, call):
                staged.add(self._claim(staged.state, batch, call))
            elif call.position in batch.started and batch.approval_of(call) is None:
                if self.is_in_doubt(batch, call) and self._must_ask_again(batch, call):
                    staged.add(self._question(call, MAY_HAVE_HAPPENED))
            elif self._refusal(staged.state, batch, call):
                staged.add(self._claim(staged.state, batch, call))
                refused.append(call)
            elif self._asks(batch, call):
                staged.add(self._question(call, None))
            else:
                staged.add(self._claim(staged.state, batch, call))
        for (
            call
        ) in refused:  # after all claims, in the order asked: failures of this very batch count
            if refusal := self._refusal(staged.state, batch, call):
                error, reason = refusal
                staged.add(self.result(staged.state, call, f"Error: {reason}", error))

    def _is_withdrawn(self, staged: Staged, call: Call) -> bool:
        return call.name in staged.state.withdrawn(self._max_failures)

    def _claim(self, state: RunState, batch: Batch, call: Call) -> Event:
        self._claimed.add((batch.seq, call.position))
        tool = self._tools.get(call.name)
        approval = batch.approvals.get(call.position)
        args = approval.args if approval and approval.args is not None else dict(call.args)
        return Event(
            ev.TOOL_CALL,
            name=call.name,
            call_id=call.call_id,
            args=args,
            turn=state.turn,
            effect=tool.effect if tool and tool.effect != "read" else None,
        )

    def _question(self, call: Call, reason: str | None) -> Event:
        return Event(
            ev.APPROVAL,
            status="asked",
            name=call.name,
            call_id=call.call_id,
            reason=reason,
            args_digest=strict_json.digest(dict(call.args)),
            started_at=clock.now(),
        )

    def _asks(self, batch: Batch, call: Call) -> bool:
        tool = self._tools[call.name]
        if tool.needs_approval is False:
            return False
        return tool.asks_approval(self._context_of(batch, call), dict(call.args))

    def _must_ask_again(self, batch: Batch, call: Call) -> bool:
        """A call in doubt whose consent is used up, and of which nothing says that a second start is safe."""
        effect = stricter(batch.effects.get(call.position), self._tools[call.name].effect)
        return effect in (None, "read") and self._asks(batch, call)

    def _refusal(self, state: RunState, batch: Batch, call: Call) -> tuple[str, str] | None:
        """Why a call is not run: the error, and what the model is told. None if it is run."""
        if batch.cut:
            told = f"your reply was cut off ({batch.cut}), so this call was not run; send it again"
            return f"cut off ({batch.cut})", told
        if call.name not in self._tools:
            known = ", ".join(self._tools) or "none"
            return f"unknown tool {call.name!r}", f"there is no tool {call.name!r}; tools: {known}"
        if call.name in state.withdrawn(self._max_failures):
            return WITHDRAWN, f"the tool {call.name!r} failed too often and is no longer available"
        if call.problem:
            told = f"{call.problem}; the tool was not run"
            return f"InvalidArgumentsError: {call.problem}", told
        return None

    def _rejected(self, state: RunState, batch: Batch, call: Call) -> Event:
        approval = batch.approvals[call.position]
        who = approval.by or "a person"
        why = f": {approval.reason}" if approval.reason else ""
        return self.result(state, call, f"Error: {who} did not approve this call{why}", REJECTED)

    def is_careful(self, call: Call) -> bool:
        """Whether the tool says that it has consequences."""
        tool = self._tools[call.name]
        return tool.effect in DECLARED or tool.needs_approval is not False

    def is_in_doubt(self, batch: Batch, call: Call) -> bool:
        """Whether somebody else started the call, and nobody recorded what came of it."""
        is_ours = (batch.seq, call.position) in self._claimed
        return call.position in batch.started and not is_ours

    def is_transactional(self, batch: Batch, call: Call) -> bool:
        """Whether the call is to be run in a transaction."""
        tool = self._tools[call.name]
        return tool.effect == "transactional" and not self._may_not_start(batch, call)

    def limit_s(self, call: Call) -> float:
        """Seconds that a transactional call may take."""
        own_s = self._tools[call.name].timeout_s
        return self._transaction_limit_s if own_s is None else own_s

    def _may_not_start(self, batch: Batch, call: Call) -> bool:
        before, today = batch.effects.get(call.position), self._tools[call.name].effect
        return self.is_in_doubt(batch, call) and may_not_repeat(before, today)

    # Running ------------------------------------------------------------------------------------------------------

    async def perform(self, batch: Batch, call: Call) -> ToolOutcome | Parked:
        """Run a call that is claimed. One in doubt is run only if its tool says that this is safe."""
        tool, context = self._tools[call.name], self._context_of(batch, call)
        if self._may_not_start(batch, call):
            started_at = clock.now()
            verdict = await self._verdict(tool, context)
            if isinstance(verdict, DidNotHappen) and batch.origin is not None:
                verdict = (
                    Unknown()
                )  # not so far: the run that this one was forked from may yet start it
            match verdict:
                case Happened(result):
                    text = result_text(result, tool.max_result_chars)
                    return ToolOutcome(text, None, started_at, clock.now())
                case Unknown() if tool.on_doubt == "park":
                    return Parked()
                case Unknown():
                    return ToolOutcome(NOT_KNOWN, IN_DOUBT, started_at, clock.now())
        return await self._start(batch, call, context, self._timeout_s)

    def still_running(self, batch: Batch) -> list[tuple[Call, threading.Thread]]:
        """Calls without a result whose sync tools were given up and go on all the same: nobody can stop a thread."""
        threads = [(call, self._threads.get((batch.seq, call.position))) for call in batch.missing]
        return [(call, thread) for call, thread in threads if thread and thread.is_alive()]

    async def perform_in(self, transaction: Transaction, batch: Batch, call: Call) -> ToolOutcome:
        """Run a transactional call that is claimed; what it writes goes into the transaction."""
        context = self._context_of(batch, call)
        key = context.idempotency_key or ""
        context = replace(context, db=Db(transaction), outbox=ToolOutbox(transaction, key))
        return await self._start(batch, call, context, self.limit_s(call))

    async def _start(
        self, batch: Batch, call: Call, context: RunContext, timeout_s: float | None
    ) -> ToolOutcome:
        self._check()
        tool = self._tools[call.name]
        began = partial(self._threads.__setitem__, (batch.seq, call.position))
        outcome = await perform(tool, dict(context.args or {}), context, timeout_s, began)
        if outcome.error is None:  # else it may be a timeout, and the thread goes on
            self._threads.pop((batch.seq, call.position), None)
        if call.position not in batch.edited:
            return outcome
        note = f"(A person changed the arguments to {strict_json.dumps(context.args)}.)\n"
        return ToolOutcome(note + outcome.text, outcome.error, outcome.started_at, outcome.ended_at)

    async def _verdict(self, tool: Tool, context: RunContext) -> Verdict:
        finding_out = asyncio.ensure_future(self._find_out(tool, context))
        limit_s = self._timeout_s if tool.timeout_s is None else tool.timeout_s
        waiting = {finding_out}
        if limit_s is not None:
            waiting.add(asyncio.ensure_future(clock.sleep(limit_s)))  # type: ignore[arg-type]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if finding_out.done():
                return finding_out.result()
            logger.error("tool %s: reconcile takes more than %g s", tool.name, limit_s)
            return Unknown()
        finally:
            for task in waiting:
                task.cancel()

    async def _find_out(self, tool: Tool, context: RunContext) -> Verdict:
        """What `reconcile` says; whatever it raises, a cancellation of its own included, says nothing."""
        reconcile = tool.reconcile
        try:
            if reconcile is not None and not inspect.iscoroutinefunction(reconcile):
                answer = await in_thread(lambda: reconcile(context), f"reconcile-{tool.name}")
                return await find_out(lambda _: answer, context)
            return await find_out(reconcile, context)
        except BaseException:
            logger.exception("tool %s: reconcile failed; the outcome is unknown", tool.name)
            return Unknown()

    def _context_of(self, batch: Batch, call: Call) -> RunContext:
        return RunContext(
            self._context,
            run_id=self._run_id if self._is_recorded else None,
            call_id=call.call_id,
            idempotency_key=f"{batch.origin or self._run_id}:{batch.seq}:{call.position}",
            args=dict(batch.edited.get(call.position, call.args)),
        )

    # What came of it ----------------------------------------------------------------------------------------------

    def add_outcome(self, staged: Staged, call: Call, outcome: ToolOutcome | Parked) -> None:
        if isinstance(outcome, Parked):
            staged.add(self._question(call, outcome.reason))
            return
        result = self.result(staged.state, call, outcome.text, outcome.error)
        staged.add(result.with_(started_at=outcome.started_at, ended_at=outcome.ended_at))

    def result(self, state: RunState, call: Call, text: str, error: str | None) -> Event:
        """A tool_result. The failure that uses up a tool's budget says so to the model, in the result itself."""
        if error is not None and error not in NO_FAILURES and call.name in self._tools:
            failures = state.failures.get(call.name, 0) + 1
            if failures >= self._max_failures:
                text += (
                    f"\nThe tool {call.name!r} has failed {failures} times and is no longer available. "
                    "Answer without it, or say what you cannot do."
                )
        return Event(
            ev.TOOL_RESULT,
            name=call.name,
            call_id=call.call_id,
            result=SECRETS.hide(text),
            error=None if error is None else SECRETS.hide(error),
            turn=state.turn,
        )
