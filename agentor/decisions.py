"""A person's decision about a call that waits, from what a caller gave: checked, then recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentor import inputs
from agentor.consent import decide_call, find_pending, settle_call
from agentor.engine import events as ev
from agentor.engine.events import Event, PendingCall
from agentor.engine.result_text import RESULT_LIMIT
from agentor.engine.store.protocol import Store, check_run_id
from agentor.engine.tools import Tool
from agentor.errors import ConfigError
from agentor.recorded import recorded


def which(call: str | PendingCall, question: int | None) -> tuple[str, int | None]:
    """The id of a call, and the question about it that is answered, if the caller says which."""
    if question is not None:
        question = inputs.read_count("question", question)
    if not isinstance(call, PendingCall):
        return call, question
    if question not in (None, call.question):
        raise ConfigError(
            f"the call says question {call.question}, and question={question} another"
        )
    return call.call_id, call.question


async def approve(
    store: Store,
    tools: Mapping[str, Tool],
    run_id: str,
    call_id: str,
    args: Mapping[str, Any] | None,
    by: str | None,
    question: int | None = None,
) -> None:
    """Record consent to a call, with other arguments if `args` are given: they replace all that the model gave."""
    edited, known = None, None
    if args is not None:
        edited = inputs.read_arguments(args)
        known = await recorded(store, check_run_id(run_id))
        tool = tools.get(find_pending(known[0], run_id, call_id, known[1]).name)
        if tool is not None:
            inputs.check_arguments(tool, edited)
    decision = Event(
        ev.APPROVAL, status="approved", by=inputs.read_optional_text("by", by), args=edited
    )
    await decide_call(store, run_id, call_id, decision, question=question, known=known)


async def reject(
    store: Store,
    run_id: str,
    call_id: str,
    reason: str,
    by: str | None,
    question: int | None = None,
) -> None:
    """Record a refusal, with the reason that the model is told."""
    reason = inputs.read_text("reason", reason)
    decision = Event(
        ev.APPROVAL, status="rejected", by=inputs.read_optional_text("by", by), reason=reason
    )
    await decide_call(store, run_id, call_id, decision, question=question)


async def settle(
    store: Store,
    tools: Mapping[str, Tool],
    run_id: str,
    call_id: str,
    result: Any,
    by: str | None,
    question: int | None = None,
) -> None:
    """Record that a call in doubt did happen. Its result is cut where its tool's results are."""
    known = await recorded(store, check_run_id(run_id))
    batch = known[0].batch
    name = next((c.name for c in batch.calls if c.call_id == call_id), "") if batch else ""
    limit = tools[name].max_result_chars if name in tools else RESULT_LIMIT
    by = inputs.read_optional_text("by", by)
    await settle_call(store, run_id, call_id, result, by, limit, question, known)
