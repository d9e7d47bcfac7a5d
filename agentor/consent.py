"""Which calls of a run wait for a person, and how a decision is recorded. A store is all it takes: no agent."""

from __future__ import annotations

from agentor.engine import clock, strict_json
from agentor.engine.events import Event, PendingCall
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder
from agentor.engine.replay import RunState
from agentor.engine.store.protocol import Store, check_run_id
from agentor.errors import NotWaitingError
from agentor.recorded import recorded


async def decide_call(store: Store, run_id: str, call_id: str, decision: Event) -> PendingCall:
    """Record what a person decided about a call that waits; the call as it was decided upon.

    `decision` is an `approval` event with a status. `NotWaitingError` (a `ConfigError`) if the call does not wait,
    `LeaseHeldError` while somebody works on the run.
    """
    await recorded(store, check_run_id(run_id))
    keeper = Keeper(store, run_id)
    await keeper.acquire()
    try:
        state, _ = await recorded(store, run_id)
        call = find_pending(state, run_id, call_id)
        event = decision.with_(
            call_id=call_id,
            name=call.name,
            args_digest=strict_json.digest(call.args),
            started_at=clock.now(),
            seq=state.seq + 1,
        )
        await Recorder(store, run_id, "strict", lambda: keeper.lease).save([event])
        return call
    finally:
        await keeper.release()


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
    """The call, if it waits; else a `NotWaitingError` that says what is known of it."""
    pending = {call.call_id: call for call in pending_of(state)}
    if call_id in pending:
        return pending[call_id]
    others = f"calls that wait: {', '.join(pending)}" if pending else "none of its calls waits"
    raise NotWaitingError(
        f"call {call_id!r} of run {run_id!r} {_what_is_known(state, call_id)}; {others}"
    )


def _what_is_known(state: RunState, call_id: str) -> str:
    batch = state.batch
    for call in batch.calls if batch else ():
        approval = batch.approvals.get(call.position) if batch else None
        if call.call_id == call_id and approval:
            return f"was {approval.status}{f' by {approval.by}' if approval.by else ''} already"
    return "does not wait for a decision"
