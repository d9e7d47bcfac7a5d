"""The fold: what a run's events mean.

`evolve(state, event)` is the whole meaning of an event; `replay` is its reduction over a log. Nothing else derives
state: resume, the live loop, the result, the command line and the viewers all ask this fold. It is pure, and folding n
events costs O(n).

A batch of tool calls joins the conversation whole or not at all, so giving up a half-finished batch is only
forgetting. Facts are never forgotten: tokens spent and failures seen stay counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from agentor.engine import contradictions
from agentor.engine import events as ev
from agentor.engine.batch import (
    NO_FAILURES,
    SETTLED,
    AllBut,
    Approval,
    Batch,
    changed,
    opened,
    stricter,
)
from agentor.engine.events import Event, Message, Usage
from agentor.engine.request import (
    Transcript,
    assistant_message,
    build_request,
    read_calls,
    tool_message,
)
from agentor.errors import LogCorruptError

CUT_REASONS: Final = frozenset({"length", "content_filter", "error"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the last generation said when it asked for no tool."""

    text: str
    cut: str | None = None  # finish_reason, when the reply was cut off
    refusal: str | None = None
    mismatch: str | None = None  # the correction it needs
    unfit: str | None = None  # why, in few words


class Spending(NamedTuple):
    """Model calls of much the same size: providers charge a long request at another price, all of it."""

    calls: int = 0
    usage: Usage = Usage()


@dataclass(frozen=True)
class RunState:
    """Everything there is to know about a run, derived from its log."""

    seq: int = 0  # of the last event
    agent: str | None = None
    model: str | None = None
    transcript: Transcript = field(default_factory=Transcript)
    batch: Batch | None = None
    answer: Answer | None = None
    said: bool = False  # the `message` of this answer is written
    status: str | None = None  # None while the segment is open
    text: str | None = None
    error: str | None = None
    turn: int = 0  # generations of the segment
    segments: int = 0  # how often the run was queued, started or resumed
    attempts: int = 0  # how often in a row, since an end in good order, it was begun with, and failed or left open
    attempting: bool = False  # the last of them has come to no end yet
    empty_answers: int = 0  # of the segment
    mismatches: int = 0  # of the segment
    spending: Mapping[tuple[str, int], Spending] = field(default_factory=dict)  # model, thousands
    failures: Mapping[str, int] = field(default_factory=dict)  # tool -> failing calls
    started_at: float | None = None
    ended_at: float | None = None
    forked_from: str | None = None
    asked: tuple[Message, ...] = ()  # of a fork, and not yet told: the next segment begins with it
    nonce: str | None = None  # tells the run from any other of the same id; None in older logs
    definition: str | None = None  # digest of the one the last segment ran with
    definitions: frozenset[str] = frozenset()  # digests of those the log holds
    has_start: bool = False
    unknown: int = 0  # events of a type from the future, kept and skipped

    @property
    def messages(self) -> list[Message]:
        """The conversation: what could be sent to a model now."""
        return list(self.transcript)

    @property
    def usage(self) -> Usage:
        """Tokens of all generations."""
        return sum((each.usage for each in self.spending.values()), Usage())

    @property
    def is_complete(self) -> bool:
        return self.status == "completed"

    def withdrawn(self, max_failures: int) -> frozenset[str]:
        """The tools that have used up their failures."""
        if not self.failures:
            return _NONE
        return frozenset(name for name, count in self.failures.items() if count >= max_failures)


_NONE: Final[frozenset[str]] = frozenset()


def evolve(state: RunState, event: Event) -> RunState:
    """The state after one more event. `LogCorruptError` if the event cannot stand here."""
    return changed(state, **_meaning(state, event))


def replay(events: Iterable[Event], run_id: str | None = None) -> RunState:
    """Fold a whole log, but for exact repeats (`without_repeats`). `run_id` only names the run in errors."""
    state = RunState()
    # Nobody else sees a state in between, so it need not be another at each event.
    ours = state.__dict__
    try:
        for event in ev.without_repeats(events):
            ours.update(_meaning(state, event))
    except LogCorruptError as error:
        raise LogCorruptError(run_id, error.seq, error.reason) from None
    return state


_Changes: TypeAlias = dict[str, Any]  # fields of a RunState, and what becomes of them


def _meaning(state: RunState, event: Event) -> _Changes:
    """What an event changes. `LogCorruptError` if it cannot stand here."""
    seq = state.seq + 1
    if event.seq is not None and event.seq != seq:
        raise LogCorruptError(None, seq, f"the next event has seq {event.seq}")
    match event.type:
        case ev.RUN_START:
            return _start(state, event, seq)
        case ev.GENERATION:
            return _generation(state, event, seq)
        case ev.TOOL_CALL:
            return _tool_call(state, event, seq)
        case ev.TOOL_RESULT:
            return _tool_result(state, event, seq)
        case ev.MESSAGE:
            return {"seq": seq, "said": True}
        case ev.RUN_END:
            return _end(state, event, seq)
        case ev.FORK:
            return _fork(state, event, seq)
        case ev.APPROVAL:
            return _approval(state, event, seq)
        case ev.CANCEL:
            return {"seq": seq}  # the run_end after it says what it means
        case ev.STOP:
            return _stop(state, seq)
    return {"seq": seq, "unknown": state.unknown + 1}


def with_messages(
    events: Iterable[Event], run_id: str | None = None
) -> tuple[RunState, list[Event]]:
    """The state, and the events with `messages` of each generation filled in: exactly what the model was sent."""
    state, filled = RunState(), []
    for event in events:
        filled.append(fill(state, event))
        state = _evolve_named(state, event, run_id)
    return state, filled


def fill(state: RunState, event: Event) -> Event:
    """A generation with the messages it was sent, given the state before it; other events as they are."""
    sent = messages_of(state, event)
    return event if sent is None else event.with_(messages=sent)


def messages_of(state: RunState, event: Event) -> Callable[[], list[Message]] | None:
    """What a generation was sent, as a thunk; None for other events, and one that carries its messages itself."""
    if event.type != ev.GENERATION or event.__dict__.get("messages") is not None:
        return None
    return partial(build_request, state.transcript, event.source)


def verify(events: Iterable[Event], run_id: str | None = None) -> list[str]:
    """What is wrong with a log, in words; [] if replay rebuilds exactly what was sent and recorded."""
    problems: list[str] = []
    state, memory = RunState(), contradictions.Memory()
    for event in ev.without_repeats(events):
        try:
            after = _evolve_named(state, event, run_id)
        except LogCorruptError as error:
            return [*problems, str(error)]
        doubts = [*_doubts(state, event, after), *_contradictions(state, event, memory)]
        problems.extend(f"seq {after.seq}: {problem}" for problem in doubts)
        memory.note(event)
        state = after
    if not state.has_start and not len(state.transcript):
        problems.append("there is no run_start, so the conversation is not known")
    return problems


def _doubts(before: RunState, event: Event, after: RunState) -> Iterable[str]:
    if event.digest is not None and event.digest != before.transcript.digest():
        yield "the conversation is not the one that this generation was sent"
    if after.unknown > before.unknown:
        yield f"an event of the unknown type {event.type!r} (kept, skipped)"
    if event.type == ev.TOOL_RESULT and after.batch is before.batch and before.batch is None:
        yield f"a result of {event.name!r} that no call asked for (skipped)"


def _contradictions(before: RunState, event: Event, memory: contradictions.Memory) -> Iterable[str]:
    if event.type == ev.RUN_START:
        yield from contradictions.of_start(event)
    elif before.definition is None:  # of a segment that others have begun
        return
    elif event.type in (ev.TOOL_CALL, ev.TOOL_RESULT):
        declared = memory.effect_of(before.definition, event.name or "")
        yield from contradictions.of_call(before.batch, event, declared)
    elif event.type == ev.GENERATION and event.digest is None:
        yield "a generation without its digest: what it was sent cannot be checked"
    elif event.type == ev.MESSAGE:
        yield from contradictions.of_answer(event, _answer_of(before))
    elif event.type == ev.RUN_END:
        yield from contradictions.of_end(event, _answer_of(before), memory.spent)


def _answer_of(state: RunState) -> str | None:
    """What a run would be completed with."""
    if state.batch is not None:
        return None
    if (answer := state.answer) is None:
        return state.transcript.last_answer
    return None if answer.cut or answer.refusal or answer.mismatch else answer.text


def _evolve_named(state: RunState, event: Event, run_id: str | None) -> RunState:
    try:
        return evolve(state, event)
    except LogCorruptError as error:
        raise LogCorruptError(run_id, error.seq, error.reason) from None


def _start(state: RunState, event: Event, seq: int) -> _Changes:
    kept = event.kept or 0
    if kept > len(state.transcript):
        raise LogCorruptError(
            None, seq, f"it keeps {kept} messages of {len(state.transcript)} that there are"
        )
    batch, added = None, event.messages or []
    if event.settling is not None and state.batch is not None:
        then = (*state.batch.then, *added)  # told after its answers
        batch, added = changed(state.batch, then=then, by_own_ids=True), []
    return {
        "seq": seq,
        "agent": event.agent or state.agent,
        "model": event.model or state.model,
        "transcript": state.transcript.extended(kept, added),
        "batch": batch,
        "answer": None,
        "said": False,
        "status": None,
        "text": None,
        "error": None,
        "turn": 0,
        "segments": state.segments + 1,
        "attempts": state.attempts + (not event.queued),
        "attempting": not event.queued,
        "empty_answers": 0,
        "mismatches": 0,
        "started_at": _first_start(state, event),
        "ended_at": None,
        "asked": (),
        "nonce": state.nonce if state.has_start else event.nonce,
        "definition": event.definition,
        "definitions": state.definitions | {event.definition}
        if event.defined is not None and event.definition is not None
        else state.definitions,
        "has_start": True,
    }


def _end(state: RunState, event: Event, seq: int) -> _Changes:
    status = event.status or "failed"
    return {
        "seq": seq,
        "status": status,
        "text": event.text,
        "error": event.error,
        "attempts": state.attempts if status == "failed" else 0,
        "attempting": False,
        "ended_at": event.ended_at,
    }


def _stop(state: RunState, seq: int) -> _Changes:
    """The attempt came to no end of its own, so it says nothing of the run. The segment stays open, as after a crash."""
    return {"seq": seq, "attempts": state.attempts - state.attempting, "attempting": False}


def _first_start(state: RunState, event: Event) -> float | None:
    """When somebody first began; waiting in a queue is no beginning."""
    if state.started_at is not None or event.queued:
        return state.started_at
    return event.started_at


def _fork(state: RunState, event: Event, seq: int) -> _Changes:
    branch: _Changes = {
        "seq": seq,
        "agent": event.agent or state.agent,
        "forked_from": event.forked_from,
        "nonce": event.nonce,
        "batch": state.batch and state.batch.forked(event.forked_from, seq),
        "attempts": 0,  # those were at the parent
        "attempting": False,
    }
    if not event.messages:
        return branch
    branch["asked"] = (*state.asked, *event.messages)
    # whatever the parent has come to is no answer to them
    return branch | dict.fromkeys(("answer", "status", "text", "error", "ended_at"))


def _approval(state: RunState, event: Event, seq: int) -> _Changes:
    """Consent asked for, given or refused. What speaks of no open call is kept and means nothing.

    That a call is settled means nothing by itself either: the result that is recorded with it does. Torn from it, the
    call still waits, and a person says it again.
    """
    batch = state.batch
    if batch is None or event.status == SETTLED:
        return {"seq": seq}
    call = batch.find(event, batch.answers)
    if call is None:
        return {"seq": seq}
    approval = Approval(event.status or "asked", event.by, event.reason, event.args, seq)
    approvals = {**batch.approvals, call.position: approval}
    consented = batch.consented | {call.position} if event.status == "approved" else batch.consented
    batch = changed(batch, approvals=approvals, approving=True, consented=consented)
    if event.args is not None:
        batch = changed(batch, edited={**batch.edited, call.position: event.args})
    return {"seq": seq, "batch": batch}


def _generation(state: RunState, event: Event, seq: int) -> _Changes:
    transcript = state.transcript
    if (messages := event.__dict__.get("messages")) is not None and not callable(messages):
        transcript = transcript.extended(0, messages)  # an older version's log carries them whole
    calls = read_calls(event, transcript)
    cut = event.finish_reason if event.finish_reason in CUT_REASONS else None
    batch = None
    if calls:
        message, ours = assistant_message(event, calls), event.digest is not None
        batch = opened(seq, message, calls, event.source, cut, state.nonce, ours)
    changes: _Changes = {
        "seq": seq,
        "transcript": transcript,
        "turn": state.turn + 1,
        "spending": _spending(state.spending, event),
        "model": event.model or state.model,
        "batch": batch,
        "answer": None,
        "said": False,
    }
    return changes if calls else changes | _answered(state, event, cut, transcript)


def _spending(
    spending: Mapping[tuple[str, int], Spending], event: Event
) -> Mapping[tuple[str, int], Spending]:
    if event.usage is None:
        return spending
    key = event.model or "", event.usage.input_tokens // 1000
    calls, usage = spending.get(key, _NOTHING_SPENT)
    return {**spending, key: Spending(calls + 1, usage + event.usage)}


_NOTHING_SPENT: Final = Spending()


def _answered(state: RunState, event: Event, cut: str | None, transcript: Transcript) -> _Changes:
    """What the answer itself changes; `transcript` is the conversation before it."""
    refusal = (event.provider_fields or {}).get("refusal")
    answer = Answer(
        text=event.text or "",
        cut=cut,
        refusal=refusal if isinstance(refusal, str) and refusal and not event.text else None,
        mismatch=event.correction,
        unfit=event.error,
    )
    if answer.cut or answer.refusal:
        return {"answer": answer}
    if not answer.text and not answer.mismatch:
        return {"answer": answer, "empty_answers": state.empty_answers + 1}
    if answer.text:
        transcript = transcript.with_group(assistant_message(event, ()), (), event.source)
    if not answer.mismatch:
        return {"answer": answer, "transcript": transcript}
    transcript = transcript.extended(
        len(transcript), [{"role": "user", "content": answer.mismatch}]
    )
    return {"answer": answer, "transcript": transcript, "mismatches": state.mismatches + 1}


def _tool_call(state: RunState, event: Event, seq: int) -> _Changes:
    batch = state.batch
    if batch is None:
        return {"seq": seq}
    call = batch.find(event, batch.started)
    if call is None and batch.by_own_ids:  # another start of one that was started before
        call = batch.find(event, batch.answers)
    if call is None and batch.approvals:  # likewise, if a person has consented to it
        call = batch.find(event, AllBut(batch.approvals.keys() & batch.started))
    if call is None:
        return {"seq": seq}
    at, effects, approvals = call.position, batch.effects, batch.approvals
    if event.error is not None:
        return {"seq": seq, "batch": changed(batch, refused=batch.refused | {at})}
    if event.effect is not None:
        effects = {**effects, at: stricter(event.effect, effects.get(at)) or event.effect}
    if at in approvals:  # used up
        approvals = {p: approval for p, approval in approvals.items() if p != at}
    started = changed(batch, started=batch.started | {at}, effects=effects, approvals=approvals)
    return {"seq": seq, "batch": started}


def _tool_result(state: RunState, event: Event, seq: int) -> _Changes:
    changes: _Changes = {"seq": seq, "failures": _failures(state.failures, event)}
    batch = state.batch
    call = None if batch is None else batch.find(event, batch.answers)
    if batch is None or call is None:
        return changes
    answers = {**batch.answers, call.position: _told(event)}
    if len(answers) < len(batch.calls):
        return changes | {"batch": changed(batch, answers=answers)}
    messages = [tool_message(call, answers[call.position]) for call in batch.calls]
    transcript = state.transcript.with_group(batch.message, messages, batch.source)
    if batch.then:
        transcript = transcript.extended(len(transcript), batch.then)
    return changes | {"batch": None, "transcript": transcript}


def _told(event: Event) -> str:
    if event.result is not None:
        return event.result
    return f"Error: {event.error}" if event.error else ""


def _failures(failures: Mapping[str, int], event: Event) -> Mapping[str, int]:
    if event.error is None or event.error in NO_FAILURES or event.name is None:
        return failures
    return {**failures, event.name: failures.get(event.name, 0) + 1}


# The questions that stores and readers ask of a log ---------------------------------------------------------------


def replay_messages(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The conversation a log holds: what could be sent to a model now."""
    return replay(events).messages


def is_complete(events: Iterable[Event]) -> bool:
    """Whether the run has its final answer, so that resuming it would do nothing."""
    return replay(events).is_complete


def final_event(events: Iterable[Event]) -> Event | None:
    """The last `run_end`, whatever follows it; None if the run never ended."""
    return ev.last_of(events, ev.RUN_END)


def total_usage(events: Iterable[Event]) -> Usage:
    """Tokens of all generations, those of rewound turns and of a fork's inherited part included."""
    return replay(events).usage
