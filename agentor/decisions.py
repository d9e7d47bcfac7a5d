"""What people decide about runs and calls that wait, as methods of an agent: checked, then recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentor import inputs
from agentor.amended import check_by_log, check_by_tool
from agentor.blocking import twin
from agentor.consent import decide_call, pending_call, settle_call
from agentor.engine import events as ev
from agentor.engine.events import Event, PendingCall
from agentor.engine.result_text import RESULT_LIMIT
from agentor.engine.store.protocol import Store, check_run_id
from agentor.engine.tools import Tool
from agentor.errors import ConfigError
from agentor.recorded import recorded, stored
from agentor.stopping import cancel_run


class Decisions:
    """The part of an agent that needs no more than its store and its tools."""

    store: Store | None
    tools: dict[str, Tool]

    async def aapprove(
        self,
        run_id: str,
        call_id: str | PendingCall,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        *,
        question: int | None = None,
    ) -> None:
        """Consent to a call that waits, as it is or with other arguments. `resume` then goes on with the run.

        The decision is an event: who, when, and a digest of the arguments it was given for. It is used once.

        Args:
            run_id: The run.
            call_id: The call; or the `PendingCall` itself, which also says which question is answered.
            args: Consent to these arguments instead: they replace all that the model gave. What the tool would not take, or
                would not look at (a misspelt name), is refused.
            by: Who decides, for the log.
            question: The `PendingCall.question` that was seen. A call may be asked about again, after a crash and with
                other arguments; without this, what is answered is the question that waits now.

        `AskedAgainError` if that question was replaced; `ConfigError` (a ValueError) if the call does not wait, was decided
        already, or `args` do not fit its tool; `LeaseHeldError` while a worker is busy with the run.
        """
        store, (call, asked) = stored(self.store), _which(call_id, question)
        edited, known = None, None
        if args is not None:
            edited = inputs.read_arguments(args)
            known = await recorded(store, check_run_id(run_id))
            name = (await pending_call(store, run_id, call, known)).name
            if name in self.tools:
                check_by_tool(self.tools[name], edited)
            else:
                check_by_log(known[1], name, edited)
        by = inputs.read_optional_text("by", by)
        decision = Event(ev.APPROVAL, status="approved", by=by, args=edited)
        await decide_call(
            store, run_id, call, decision, question=asked, known=known, run=_run_of(call_id)
        )

    approve = twin(aapprove)

    async def areject(
        self,
        run_id: str,
        call_id: str | PendingCall,
        reason: str,
        by: str | None = None,
        *,
        question: int | None = None,
        give_up: bool = False,
    ) -> None:
        """Refuse a call that waits; the model is told the reason when the run is resumed. Which: see `approve`.

        With `give_up` also one that does not wait and has no answer yet: it was approved and not started since, or its
        tool is gone and nobody can start it. `ConfigError` if it has one, or was refused already.
        """
        store, (call, asked) = stored(self.store), _which(call_id, question)
        reason = inputs.read_text("reason", reason)
        by = inputs.read_optional_text("by", by)
        decision = Event(ev.APPROVAL, status="rejected", by=by, reason=reason)
        await decide_call(
            store, run_id, call, decision, question=asked, give_up=give_up, run=_run_of(call_id)
        )

    reject = twin(areject)

    async def asettle(
        self,
        run_id: str,
        call_id: str | PendingCall,
        result: Any,
        by: str | None = None,
        *,
        question: int | None = None,
    ) -> None:
        """Say of a call that waits because it is in doubt: it did happen, and this is its result. Which: see `approve`.

        It is recorded as the call's own result, cut where its tool's results are, in one commit with the decision, and the
        call is never started again. `ConfigError` (a ValueError) if the call does not wait, was decided already, or was
        never started.
        """
        store, (call, asked) = stored(self.store), _which(call_id, question)
        known = await recorded(store, check_run_id(run_id))
        batch = known[0].batch
        name = next((c.name for c in batch.calls if c.call_id == call), "") if batch else ""
        limit = self.tools[name].max_result_chars if name in self.tools else RESULT_LIMIT
        by = inputs.read_optional_text("by", by)
        await settle_call(store, run_id, call, result, by, limit, asked, known, _run_of(call_id))

    settle = twin(asettle)

    async def acancel(self, run_id: str, by: str | None = None) -> bool:
        """End a run wherever it is worked on, in this process or another: a model call or an async tool under way is
        broken off, what is recorded stays, the status is "cancelled", and `resume` can go on later.

        False if the run had ended already. A worker in another process notices within a second. The thread of a sync tool
        cannot be stopped: the run ends all the same, its error names the call, and nobody can resume it before that
        thread has ended.
        """
        by = inputs.read_optional_text("by", by)
        return await cancel_run(stored(self.store), run_id, by) != "over"

    cancel = twin(acancel)


def _which(call: str | PendingCall, question: int | None) -> tuple[str, int | None]:
    """The id of a call, and the question about it that is answered, if the caller says which."""
    if question is not None:
        question = inputs.read_count("question", question)
    if not isinstance(call, PendingCall):
        return inputs.read_text("call_id", call), question
    if question not in (None, call.question):
        raise ConfigError(
            f"the call says question {call.question}, and question={question} another"
        )
    return call.call_id, call.question


def _run_of(call: str | PendingCall) -> str | None:
    return call.run if isinstance(call, PendingCall) else None
