"""Which calls of a run wait for a person, and how a decision is recorded. A store is all it takes: no agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentor.engine import clock, strict_json
from agentor.engine import events as ev
from agentor.engine.batch import SETTLED, Batch
from agentor.engine.events import Event, PendingCall, last_of
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder
from agentor.engine.redact import SECRETS
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.result_text import RESULT_LIMIT, result_text
from agentor.engine.store.protocol import Store, check_run_id
from agentor.errors import AskedAgainError, NotWaitingError, SequenceConflictError
from agentor.recorded import Recorded, another_run, overtaken, recorded, reread
from agentor.stopping import patiently


async def decide_call(
    store: Store,
    run_id: str,
    call_id: str,
    decision: Event,
    result: Event | None = None,
    question: int | None = None,
    known: Recorded | None = None,
    give_up: bool = False,
    run: str | None = None,
) -> PendingCall:
    """Record what a person decided about a call that waits; the call as it was decided upon.

    `decision` is an `approval` event with a status, `result` the `tool_result` that comes with it if the call is
    settled: one commit. `question` is the one that the person has seen (`PendingCall.question`): `AskedAgainError` if it
    is not the one that waits. `NotWaitingError` (a `ConfigError`) if the call does not wait, or is to be settled and was
    never started; `LeaseHeldError` while somebody works on the run, or keeps it for two seconds. Of several who decide at
    once one does, and the others are told what goes for whoever comes late. `known`: the run as it was just read. `give_up`: of a
    refusal, that it goes for any call without an answer (`find_open`), whichever question was seen. `run`: the
    `PendingCall.run` that was seen; `RunNotFoundError` if another run has its id by now.
    """
    known = known or await recorded(store, check_run_id(run_id))

    async def acquired(known: Recorded) -> tuple[Keeper, Recorded]:
        keeper = Keeper(store, run_id)
        await keeper.acquire()
        return keeper, known

    keeper, known = await patiently(store, run_id, known, acquired)
    try:
        while True:
            known = await reread(store, run_id, known)
            state, log = known
            call = (find_open if give_up else find_pending)(state, run_id, call_id, log)
            if run not in (None, call.run):
                raise another_run(run_id)
            if not give_up and question not in (None, call.question):
                raise AskedAgainError(run_id, call_id, call.question)
            if decision.status == SETTLED:
                _check_in_doubt(call, run_id)
            events = _numbered(decision, result, call, state)
            try:
                await Recorder(store, run_id, "strict", lambda: keeper.lease).save(events)
                return call
            except SequenceConflictError as conflict:
                known = await overtaken(store, run_id, known, conflict)
    finally:
        await keeper.release()


def _numbered(
    decision: Event, result: Event | None, call: PendingCall, state: RunState
) -> list[Event]:
    """The decision about the call, and the result that comes with it, as the next events of the log."""
    given_for = call.args if decision.args is None else decision.args
    said = decision.with_(args_digest=strict_json.digest(given_for), started_at=clock.now())
    events = [said] if result is None else [said, result.with_(turn=state.turn or None)]
    return [
        event.with_(call_id=call.call_id, name=call.name, seq=seq)
        for seq, event in enumerate(events, start=state.seq + 1)
    ]


async def settle_call(
    store: Store,
    run_id: str,
    call_id: str,
    result: Any,
    by: str | None,
    max_chars: int = RESULT_LIMIT,
    question: int | None = None,
    known: Recorded | None = None,
    run: str | None = None,
) -> PendingCall:
    """Record that a call in doubt did happen, and its result, as if the call had given it. See `decide_call`."""
    text = SECRETS.hide(result_text(result, max_chars))
    decision = Event(ev.APPROVAL, status=SETTLED, by=by)
    given = Event(ev.TOOL_RESULT, result=text, ended_at=clock.now())
    return await decide_call(store, run_id, call_id, decision, given, question, known, run=run)


async def only_question(store: Store, run_id: str, call_id: str) -> int | None:
    """The question that waits about a call, if it is the only one that was ever asked about it in this run.

    `AskedAgainError` if there were others: whoever names the call alone may have seen one of those.
    """
    known = await recorded(store, check_run_id(run_id))
    question = (await pending_call(store, run_id, call_id, known)).question
    if any(_decides(event, call_id) for event in _of_this_run(known[1])):
        raise AskedAgainError(run_id, call_id, question)
    return question


async def pending_call(store: Store, run_id: str, call_id: str, known: Recorded) -> PendingCall:
    """`find_pending` of a run as it was just read. `LeaseHeldError` if the call does not wait while somebody works on the
    run: whatever else is known of it may have changed by now."""
    try:
        return find_pending(known[0], run_id, call_id, known[1])
    except NotWaitingError:
        if known[0].status is None:
            keeper = Keeper(store, run_id)
            await keeper.acquire()
            await keeper.release()
        raise


def _of_this_run(log: Sequence[Event]) -> Sequence[Event]:
    """Without what a fork has inherited: nobody was asked about that here."""
    fork = last_of(log, ev.FORK)
    return log if fork is None else log[log.index(fork) + 1 :]


def _decides(event: Event, call_id: str) -> bool:
    is_about = event.type == ev.APPROVAL and event.call_id == call_id
    return is_about and event.status not in (None, "asked", SETTLED)


def _check_in_doubt(call: PendingCall, run_id: str) -> None:
    if not call.in_doubt:
        raise NotWaitingError(
            f"call {call.call_id!r} of run {run_id!r} waits, and was never started, so it cannot have happened: "
            "approve or reject it"
        )


def pending_of(state: RunState, run_id: str | None = None) -> list[PendingCall]:
    """The calls that wait, with their keys if it is said which run this is."""
    batch = state.batch
    return [] if batch is None else [_shown(batch, call, run_id) for call in batch.waiting]


def _shown(batch: Batch, call: Call, run_id: str | None) -> PendingCall:
    asked = batch.approvals.get(call.position)
    return PendingCall(
        call.call_id,
        call.name,
        batch.args_of(call),
        asked.reason if asked else None,
        in_doubt=batch.may_have_started(call),
        question=asked.seq if asked else None,
        idempotency_key=None if run_id is None else batch.key_of(run_id, call),
        run=batch.nonce,
    )


def find_open(state: RunState, run_id: str, call_id: str, log: Sequence[Event] = ()) -> PendingCall:
    """The call, if it has no answer yet and was not refused: it waits, or was approved and not started since, or was
    started and nobody knows what came of it, or was never asked about. Else a `NotWaitingError`."""
    batch = state.batch
    for call in batch.missing if batch else ():
        if batch and call.call_id == call_id and batch.approval_of(call) != "rejected":
            return _shown(batch, call, run_id)
    return find_pending(state, run_id, call_id, log)


def find_pending(
    state: RunState, run_id: str, call_id: str, log: Sequence[Event] = ()
) -> PendingCall:
    """The call, if it waits; else a `NotWaitingError` that says what is known of it, by the log if it is given."""
    pending = {call.call_id: call for call in pending_of(state, run_id)}
    if call_id in pending:
        return pending[call_id]
    others = f"calls that wait: {', '.join(pending)}" if pending else "none of its calls waits"
    raise NotWaitingError(
        f"call {call_id!r} of run {run_id!r} {_what_is_known(state, run_id, call_id, log)}; {others}"
    )


def _what_is_known(state: RunState, run_id: str, call_id: str, log: Sequence[Event]) -> str:
    asked_of = [e for e in log if e.type == ev.APPROVAL and e.call_id == call_id]
    if asked_of and asked_of[-1].status != "asked":
        return _decided(asked_of[-1].status, asked_of[-1].by)
    batch = state.batch
    for call in batch.calls if batch else ():
        approval = batch.approvals.get(call.position) if batch else None
        if call.call_id == call_id and approval:
            return _decided(approval.status, approval.by)
    if any(call.call_id == call_id for call in (batch.missing if batch else ())):
        return (
            "has no result, and nobody has been asked about it yet: "
            f"resume({run_id!r}) goes on with the run, and asks where its tool wants that"
        )
    return "does not wait for a decision"


def _decided(status: str | None, by: str | None) -> str:
    return f"was {status}{f' by {by}' if by else ''} already"
