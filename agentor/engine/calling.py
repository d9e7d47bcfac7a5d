"""Answering the calls of a batch: claim them, run them or say why not, and put the answers into events.

A call is claimed (its `tool_call` is in the log) before it starts. Calls that cannot run are answered at once; calls
that a person must consent to wait; calls in doubt are not started again unless their tool says that this is safe.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, assert_never

from agentor.engine import clock, strict_json
from agentor.engine import events as ev
from agentor.engine.batch import (
    DECLARED,
    IN_DOUBT,
    NO_FAILURES,
    REJECTED,
    WITHDRAWN,
    Batch,
    changed,
    stricter,
)
from agentor.engine.daemon_thread import in_thread
from agentor.engine.db import Db, ToolOutbox
from agentor.engine.effects import (
    DidNotHappen,
    Happened,
    Unknown,
    Verdict,
    find_out,
    must_not_start,
)
from agentor.engine.events import Event
from agentor.engine.redact import SECRETS
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.result_text import cut, error_text, result_text
from agentor.engine.staged import Staged
from agentor.engine.store.transacting import Transaction
from agentor.engine.tools import (
    CancelledWithOutcomeError,
    RunContext,
    Tool,
    ToolOutcome,
    perform,
)

logger = logging.getLogger("agentor")

NOT_KNOWN: Final = (
    "Error: the outcome of this call is not known. It was started, and the work was broken off before a result was "
    "recorded: it may or may not have taken effect. It was not started again."
)
NOT_KNOWN_HERE: Final = (
    "Error: the outcome of this call is not known. The run that this one was forked from may start it, or has: it may or "
    "may not take effect. It was not started here."
)
MAY_HAVE_HAPPENED: Final = "it was started before and may have taken effect"
RECONCILE_FAILED: Final = " (its reconcile failed: {})"  # at the end of what is told of the doubt
DID_NOT_HAPPEN: Final = "it was started before, without consent, and did not take effect"
MAY_HAPPEN_ELSEWHERE: Final = (
    "the run that this one was forked from may start it, or has: it may have taken effect"
)

_REASON_LIMIT: Final = 2_000  # characters

# What becomes of a call without an answer: it is started, after its claim is written or because that is in the log; what
# became of it is found out; a person is asked, or has been; it is answered without being started.
Fate: TypeAlias = Literal["claim", "start", "find out", "ask", "wait", "refuse", "rejected"]


@dataclass(frozen=True, slots=True)
class Parked:
    """A call in doubt that nobody but a person can decide upon."""

    reason: str


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
        # What a tool may know of any of its calls. None of them is to be found again without a store.
        self._context = RunContext(context, run_id=run_id if is_recorded else None)
        self._max_failures = max_failures
        self._timeout_s = timeout_s
        self._transaction_limit_s = transaction_limit_s
        self._check = check  # raises when this worker may no longer act
        self._offered: tuple[frozenset[str], list[dict[str, Any]]] | None = None
        self._claimed: set[tuple[int, int]] = (
            set()
        )  # by this worker: its generation's seq, its position
        self._threads: dict[tuple[int, int], tuple[Call, threading.Thread]] = {}  # of sync tools

    def offered(self, state: RunState) -> list[dict[str, Any]]:
        """The tools as the model is told of them: all but those that have used up their failures."""
        withdrawn = state.withdrawn(self._max_failures)
        if self._offered is None or self._offered[0] != withdrawn:
            tools = [t.to_openai() for name, t in self._tools.items() if name not in withdrawn]
            self._offered = withdrawn, tools
        return self._offered[1]

    def has_claimed(self, batch: Batch, calls: Iterable[Call]) -> bool:
        """Whether this worker has claimed all of these calls, which have no answer: they are only to be started."""
        seq = batch.seq
        return self._claimed.issuperset([(seq, call.position) for call in calls])

    # Before anything runs -----------------------------------------------------------------------------------------

    def add_claims(self, staged: Staged, batch: Batch, calls: Sequence[Call]) -> None:
        """For each call the event that has to be in the log before it runs, or instead of its running."""
        refused = []
        for call in calls:
            match self.fate(staged.state, batch, call):
                case "rejected":
                    staged.add(self._rejected(staged.state, batch, call))
                case "ask":
                    reason = _why_in_doubt(batch, call) if self.is_in_doubt(batch, call) else None
                    staged.add(self._question(batch, call, reason))
                case "claim":
                    staged.add(self._claim(staged.state, batch, call))
                case "refuse":
                    staged.add(self._refused_claim(staged.state, batch, call))
                    refused.append(call)
                case "start" | "find out" | "wait":
                    pass
                case other:
                    assert_never(other)
        self._add_refusals(staged, batch, refused)

    def _add_refusals(self, staged: Staged, batch: Batch, refused: Sequence[Call]) -> None:
        """After all claims, in the order asked: failures of this very batch count."""
        for call in refused:
            if refusal := self._refusal(staged.state, batch, call):
                error, reason = refusal
                staged.add(self.result(staged.state, call, f"Error: {reason}", error))

    def fate(self, state: RunState, batch: Batch, call: Call) -> Fate:
        """What becomes of a call that has no answer, as things stand. What a plan says is this, too."""
        approval = batch.approval_of(call)
        if approval == "rejected":
            return "rejected"
        if _never_started(batch, call):
            return "refuse"
        if approval == "asked":
            return "wait"
        is_withdrawn = call.name in state.withdrawn(self._max_failures)
        if approval == "approved" and not is_withdrawn:
            return "claim"
        if call.position in batch.started and approval is None:
            return self._fate_of_claimed(batch, call, is_withdrawn)
        if self._refusal(state, batch, call):
            return "refuse"
        if self._asks(batch, call):
            return "ask"
        return "find out" if self._may_not_start(batch, call) else "claim"

    def _fate_of_claimed(self, batch: Batch, call: Call, is_withdrawn: bool) -> Fate:
        if (batch.seq, call.position) in self._claimed:
            return "start"
        if self._may_not_start(batch, call):
            return "find out"
        if is_withdrawn:
            return "refuse"
        if self._must_ask_again(batch, call):
            return "ask"
        # Whoever comes next must not find a start in the log that could simply be made again.
        began_as, today = batch.effects.get(call.position), self._tools[call.name].effect
        return "claim" if (began_as, today) == ("transactional", "once") else "start"

    def gone(self, batch: Batch) -> list[Call]:
        """The calls that cannot be answered, since this agent does not have their tools."""
        return [
            call
            for call in batch.missing
            if call.name not in self._tools
            and batch.approval_of(call) != "rejected"
            and call.position not in batch.refused
            and not _never_started(batch, call)
        ]

    def asks_tool(self, call: Call) -> bool:
        """Whether the tool can be asked what became of a call in doubt."""
        return self._tools[call.name].reconcile is not None

    def asks_person(self, call: Call) -> bool:
        """Whether a person decides on a call in doubt of which nobody knows what became of it."""
        return self._tools[call.name].on_doubt == "park"

    def _claim(self, state: RunState, batch: Batch, call: Call) -> Event:
        self._claimed.add((batch.seq, call.position))
        tool = self._tools.get(call.name)
        return Event(
            ev.TOOL_CALL,
            name=call.name,
            call_id=call.call_id,
            args=batch.args_of(call),
            turn=state.turn,
            effect=tool.effect if tool and tool.effect != "read" else None,
        )

    def _refused_claim(self, state: RunState, batch: Batch, call: Call) -> Event:
        """A claim that says why the call is not started: it counts as no start if its answer is torn from it."""
        refusal = self._refusal(state, batch, call)
        error = refusal[0] if refusal else None
        return self._claim(state, batch, call).with_(error=error)

    def _question(self, batch: Batch, call: Call, reason: str | None) -> Event:
        return Event(
            ev.APPROVAL,
            status="asked",
            name=call.name,
            call_id=call.call_id,
            reason=None if reason is None else SECRETS.hide(reason),
            args_digest=strict_json.digest(batch.args_of(call)),
            started_at=clock.now(),
        )

    def _asks(self, batch: Batch, call: Call) -> bool:
        tool = self._tools[call.name]
        if tool.needs_approval is False:
            return False
        return tool.asks_approval(self._context_of(batch, call), batch.args_of(call))

    def _must_ask_again(self, batch: Batch, call: Call) -> bool:
        """A call in doubt that needs consent, and has had none, or has used it up and nothing says that a second start is
        safe."""
        if not self.is_in_doubt(batch, call) or not self._asks(batch, call):
            return False
        effect = stricter(batch.effects.get(call.position), self._tools[call.name].effect)
        return effect in (None, "read") or call.position not in batch.consented

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
        if call.problem and call.position not in batch.edited:
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
        """Whether somebody else may have started the call, and nobody recorded what came of it."""
        is_ours = (batch.seq, call.position) in self._claimed
        return batch.may_have_started(call) and not is_ours

    def is_transactional(self, batch: Batch, call: Call) -> bool:
        """Whether the call is to be run in a transaction."""
        tool = self._tools[call.name]
        return tool.effect == "transactional" and not self._may_not_start(batch, call)

    def limit_s(self, call: Call) -> float:
        """Seconds that a transactional call may take."""
        own_s = self._tools[call.name].timeout_s
        return self._transaction_limit_s if own_s is None else own_s

    def _may_not_start(self, batch: Batch, call: Call) -> bool:
        today = self._tools[call.name].effect
        return self.is_in_doubt(batch, call) and must_not_start(batch, call, today)

    # Running ------------------------------------------------------------------------------------------------------

    async def perform(self, batch: Batch, call: Call) -> ToolOutcome | Parked:
        """Run a call that is claimed. One in doubt is run only if its tool says that this is safe.

        `CancelledWithOutcomeError`: we are cancelled, and what came of the call is known.
        """
        tool = self._tools[call.name]
        if self._may_not_start(batch, call):
            started_at = clock.now()
            verdict, failed = await self._verdict(tool, self._context_of(batch, call))
            if isinstance(verdict, DidNotHappen) and batch.origin is not None:
                # Not so far: the run that this one was forked from may yet start it.
                verdict = Unknown()
            match verdict:
                case DidNotHappen() if not self._has_consent(batch, call):
                    return Parked(DID_NOT_HAPPEN)
                case Happened(result):
                    text = result_text(result, tool.max_result_chars)
                    return ToolOutcome(text, None, started_at, clock.now())
                case Unknown() if tool.on_doubt == "park":
                    return Parked(_why_in_doubt(batch, call) + failed)
                case Unknown():
                    told = NOT_KNOWN if call.position in batch.started else NOT_KNOWN_HERE
                    return ToolOutcome(told + failed, IN_DOUBT, started_at, clock.now())
        return await self._start(batch, call, self._context_of(batch, call), self._timeout_s)

    def _has_consent(self, batch: Batch, call: Call) -> bool:
        return call.position in batch.consented or not self._asks(batch, call)

    def still_running(self, batch: Batch | None) -> list[tuple[Call, threading.Thread]]:
        """Calls without a result whose sync tools were given up and go on all the same: nobody can stop a thread."""
        places = [(batch.seq, call.position) for call in batch.missing] if batch else []
        return [each for each in map(self._threads.get, places) if each and each[1].is_alive()]

    def ever_running(self) -> list[tuple[Call, threading.Thread]]:
        """The same of all calls, those with a result, too: that may be lost."""
        return [each for each in self._threads.values() if each[1].is_alive()]

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
        began = partial(self._began, batch, call)
        try:
            outcome = await perform(
                self._tools[call.name], batch.args_of(call), context, timeout_s, began
            )
        except CancelledWithOutcomeError as cancelled:
            cancelled.outcome = self._told(batch, call, cancelled.outcome)
            raise
        return self._told(batch, call, outcome)

    def _began(self, batch: Batch, call: Call, thread: threading.Thread) -> None:
        self._threads[batch.seq, call.position] = call, thread

    def _told(self, batch: Batch, call: Call, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome as it is told to the model, now that the tool has ended or is given up."""
        if outcome.error is None:  # else it may be a timeout, and the thread goes on
            self._threads.pop((batch.seq, call.position), None)
        if call.position not in batch.edited:
            return outcome
        args = strict_json.dumps(batch.args_of(call))  # not what the tool has made of its own
        note = f"(A person changed the arguments to {args}.)\n"
        return ToolOutcome(note + outcome.text, outcome.error, outcome.started_at, outcome.ended_at)

    async def _verdict(self, tool: Tool, context: RunContext) -> tuple[Verdict, str]:
        """What became of a call, and why `reconcile` could not say, if it failed."""
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
            return Unknown(), RECONCILE_FAILED.format(f"no answer within {limit_s:g} s")
        finally:
            for task in waiting:
                task.cancel()

    async def _find_out(self, tool: Tool, context: RunContext) -> tuple[Verdict, str]:
        """What `reconcile` says; whatever it raises, a cancellation of its own included, says nothing."""
        reconcile = tool.reconcile
        try:
            if reconcile is not None and not inspect.iscoroutinefunction(reconcile):
                answer = await in_thread(lambda: reconcile(context), f"reconcile-{tool.name}")
                return await find_out(lambda _: answer, context), ""
            return await find_out(reconcile, context), ""
        except BaseException as error:
            logger.exception("tool %s: reconcile failed; the outcome is unknown", tool.name)
            return Unknown(), RECONCILE_FAILED.format(cut(error_text(error), _REASON_LIMIT))

    def _context_of(self, batch: Batch, call: Call) -> RunContext:
        """For one reader only: its arguments are for that one to keep, and to change."""
        return changed(
            self._context,
            call_id=call.call_id,
            idempotency_key=batch.key_of(self._run_id, call),
            args=batch.args_of(call),
        )

    # What came of it ----------------------------------------------------------------------------------------------

    def add_outcome(self, staged: Staged, call: Call, outcome: ToolOutcome | Parked) -> None:
        if isinstance(outcome, Parked):
            batch = staged.state.batch
            assert batch is not None  # it stays open while this call has no answer
            staged.add(self._question(batch, call, outcome.reason))
            return
        times = outcome.started_at, outcome.ended_at
        staged.add(self.result(staged.state, call, outcome.text, outcome.error, *times))

    def result(
        self,
        state: RunState,
        call: Call,
        text: str,
        error: str | None,
        started_at: float | None = None,
        ended_at: float | None = None,
    ) -> Event:
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
            started_at=started_at,
            ended_at=ended_at,
        )


def _never_started(batch: Batch, call: Call) -> bool:
    """Whether the generation alone says that nobody starts this call. Of runs that were begun elsewhere it does not."""
    is_broken = call.problem is not None and call.position not in batch.edited
    return batch.nonce is not None and (bool(batch.cut) or is_broken)


def _why_in_doubt(batch: Batch, call: Call) -> str:
    return MAY_HAVE_HAPPENED if call.position in batch.started else MAY_HAPPEN_ELSEWHERE
