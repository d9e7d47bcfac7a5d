"""Which calls of a run wait for a person, and what is said to a decision that comes too late."""

from __future__ import annotations

from agentor.engine.events import PendingCall
from agentor.engine.replay import RunState
from agentor.errors import ConfigError


def pending_of(state: RunState) -> list[PendingCall]:
    """The calls that wait."""
    batch = state.batch
    if batch is None:
        return []
    return [
        PendingCall(c.call_id, c.name, dict(c.args), batch.approvals[c.position].reason)
        for c in batch.waiting
    ]


def find_pending(state: RunState, run_id: str, call_id: str) -> PendingCall:
    """The call, if it waits; else a `ConfigError` that says what is known of it."""
    pending = {call.call_id: call for call in pending_of(state)}
    if call_id in pending:
        return pending[call_id]
    others = f"calls that wait: {', '.join(pending)}" if pending else "none of its calls waits"
    raise ConfigError(
        f"call {call_id!r} of run {run_id!r} {_what_is_known(state, call_id)}; {others}"
    )


def _what_is_known(state: RunState, call_id: str) -> str:
    batch = state.batch
    for call in batch.calls if batch else ():
        approval = batch.approvals.get(call.position) if batch else None
        if call.call_id == call_id and approval:
            return f"was {approval.status}{f' by {approval.by}' if approval.by else ''} already"
    return "does not wait for a decision"
