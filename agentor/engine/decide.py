"""What to do next, given where a run stands. Pure: the loop performs what is decided here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from agentor.engine.batch import Batch
from agentor.engine.replay import Answer, RunState
from agentor.engine.request import Call

ASKED_AGAIN_WHEN_EMPTY: Final = 1  # times in a segment
CORRECTIVE_TURNS: Final = 1  # in a segment

Fault: TypeAlias = Literal["cut", "refused", "mismatch"]


@dataclass(frozen=True, slots=True)
class AskModel:
    """Send the conversation to the model."""


@dataclass(frozen=True, slots=True)
class CallTools:
    """Answer these calls: run them, or tell the model why not."""

    batch: Batch
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Close the segment; `text` goes into a `message` first, if it is an answer nobody has written yet."""

    status: str
    text: str | None = None
    error: str | None = None
    fault: Fault | None = None  # what the reply suffered from, when that is why the run failed
    say: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do: the segment has ended with this status. Only a new segment goes on."""

    status: str


Decision: TypeAlias = AskModel | CallTools | Finish | Wait


def decide(
    state: RunState, max_turns: int, reached: Callable[[RunState], str | None] | None = None
) -> Decision:
    """The next step of a run. `max_turns` counts the generations of the segment; `reached` says why nothing more may be
    spent, if that is so."""
    if state.status is not None:
        return Wait(state.status)
    if (batch := state.batch) is not None:
        ready = batch.ready
        return CallTools(batch, ready) if ready else Finish("paused")
    if state.answer is not None and (end := _end(state, state.answer)):
        return end
    if (said := state.transcript.last_answer) is not None:
        return Finish("completed", text=said, say=True)  # no request may end with an answer
    if state.turn >= max_turns:
        return Finish("max_turns", error=f"Reached max_turns ({max_turns}) without a final answer.")
    if reached is not None and (error := reached(state)) is not None:
        return Finish("budget", error=error)
    return AskModel()


def fault_of(state: RunState) -> Finish | None:
    """Why the last reply could not be used, if it could not; also after the run has ended over it."""
    end = _end(state, state.answer) if state.answer is not None else None
    return end if end is not None and end.fault else None


def _end(state: RunState, answer: Answer) -> Finish | None:
    if answer.cut:
        return Finish("failed", error=_cut_off(answer), fault="cut")
    if answer.refusal:
        return Finish("failed", error=f"The model refused: {answer.refusal}", fault="refused")
    if answer.mismatch:
        if state.mismatches <= CORRECTIVE_TURNS:
            return None
        return Finish("failed", error=answer.unfit or answer.mismatch, fault="mismatch")
    if not answer.text and state.empty_answers <= ASKED_AGAIN_WHEN_EMPTY:
        return None
    return Finish("completed", text=answer.text, say=not state.said)


def _cut_off(answer: Answer) -> str:
    partial = f" It had said: {answer.text}" if answer.text else ""
    return f"The model's answer was cut off (finish_reason {answer.cut!r}).{partial}"


@dataclass(frozen=True, slots=True)
class Reopen:
    """A new segment: keep the conversation; of a half-finished batch, give up its calls or go on with them."""

    kept: int
    rewound: tuple[str, ...] = ()
    settling: tuple[str, ...] = ()


def resumption(state: RunState, max_turns: int, settles: bool = False) -> Reopen | None:
    """How to go on with a run that nobody works on; None if its answer is there and at most its end is not.

    Every resume that goes on to ask or to act opens a segment. The `run_start` is the claim that two workers without
    leases race for, the mark that attempts are counted by, and what makes a rewind visible. `settles`: whether a
    half-finished batch is gone on with.
    """
    if state.status == "completed":
        return None
    batch = state.batch
    if batch is not None and settles and len(batch.waiting) == len(batch.missing):
        return None  # only a person can go on
    if state.status is None and not state.asked:
        next_step = decide(state, max_turns)
        if isinstance(next_step, Finish) and next_step.status == "completed":
            return None
    if batch is not None and settles:
        return Reopen(len(state.transcript), settling=tuple(c.call_id for c in batch.missing))
    rewound = tuple(call.call_id for call in batch.calls) if batch else ()
    return Reopen(len(state.transcript), rewound=rewound)


def snap(states: list[RunState], at: int) -> int:
    """The last seq <= `at` where a fork may begin: no batch is half-finished there.

    `states[i]` is the state after i events; seq 0 is before the first, where nothing is open.
    """
    while states[at].batch is not None:
        at -= 1
    return at
