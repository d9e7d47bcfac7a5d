"""What comes next, for everything a run can have come to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from agentor.engine.decide import (
    AskModel,
    CallTools,
    Finish,
    Reopen,
    Wait,
    decide,
    fault_of,
    resumption,
    snap,
)
from agentor.engine.events import Event
from agentor.engine.replay import RunState, evolve, replay
from tests.core.logs import raw_call
from tests.core.wide_logs import wide_logs

OPENING = [{"role": "user", "content": "u"}]
START = Event("run_start", messages=OPENING)
ASKED = Event("generation", calls=[raw_call("a", "f", "{}"), raw_call("b", "g", "{}")])


def said(text: str | None = None, **fields: Any) -> Event:
    return Event("generation", text=text, **fields)


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        (
            {"text": "half", "finish_reason": "length"},
            Finish(
                "failed",
                error="The model's answer was cut off (finish_reason 'length'). It had said: half",
                fault="cut",
            ),
        ),
        (
            {"finish_reason": "content_filter"},
            Finish(
                "failed",
                error="The model's answer was cut off (finish_reason 'content_filter').",
                fault="cut",
            ),
        ),
        (
            {"provider_fields": {"refusal": "not that"}},
            Finish("failed", error="The model refused: not that", fault="refused"),
        ),
    ],
)
def test_a_reply_that_cannot_be_used_fails_the_run_and_says_why(
    fields: dict[str, Any], end: Finish
) -> None:
    state = replay([START, said(**fields)])
    assert decide(state, 9) == end
    assert state.messages == OPENING  # it is never sent on
    ended = evolve(state, Event("run_end", status="failed"))
    assert fault_of(state) == fault_of(ended) == end
    assert decide(ended, 9) == Wait("failed")


def test_a_refusal_beside_an_answer_is_an_answer() -> None:
    state = replay([START, said("yes", provider_fields={"refusal": "no"})])
    assert decide(state, 9) == Finish("completed", text="yes", say=True)
    for refusal in ("", 7, None):
        state = replay([START, said(provider_fields={"refusal": refusal})])
        assert decide(state, 9) == AskModel()


def test_an_empty_answer_is_asked_for_once_more_and_then_taken() -> None:
    once = replay([START, said()])
    assert decide(once, 9) == AskModel()
    twice = evolve(once, said())
    assert decide(twice, 9) == Finish("completed", text="", say=True)
    assert twice.messages == OPENING
    reopened = evolve(twice, Event("run_start", kept=1, messages=[]))
    assert decide(evolve(reopened, said()), 9) == AskModel()


@pytest.mark.parametrize(("unfit", "error"), [(None, "As JSON."), ("no JSON", "no JSON")])
def test_an_unfit_answer_is_corrected_once_in_a_segment(unfit: str | None, error: str) -> None:
    answer = said("x", correction="As JSON.", error=unfit)
    once = replay([START, answer])
    assert decide(once, 9) == AskModel()
    told = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "As JSON."}]
    assert once.messages == [*OPENING, *told]
    twice = evolve(once, answer)
    assert decide(twice, 9) == Finish("failed", error=error, fault="mismatch")
    silent = replay([START, said(correction="As JSON.")])
    assert silent.messages == [*OPENING, told[1]]


def test_no_fault_is_found_where_there_is_none() -> None:
    for log in ([], [START], [START, said("hi")], [START, said()], [START, ASKED]):
        assert fault_of(replay(log)) is None


def test_a_segment_asks_the_model_max_turns_times_and_no_more() -> None:
    state = replay([START])
    for turn in range(3):
        assert decide(state, 3) == AskModel(), turn
        for event in (ASKED, answered("a"), answered("b")):
            state = evolve(state, event)
    error = "Reached max_turns (3) without a final answer."
    assert decide(state, 3) == Finish("max_turns", error=error)
    assert decide(evolve(state, said("done")), 3) == Finish("completed", text="done", say=True)


def answered(call_id: str) -> Event:
    return Event("tool_result", call_id=call_id, result="ok")


def test_a_spent_budget_stops_questions_but_neither_tools_nor_answers() -> None:
    seen: list[RunState] = []

    def reached(state: RunState) -> str:
        seen.append(state)
        return "spent"

    state = replay([START])
    assert decide(state, 9, reached) == Finish("budget", error="spent")
    assert seen == [state]
    assert decide(state, 9, lambda _: None) == AskModel()
    assert isinstance(decide(evolve(state, ASKED), 9, reached), CallTools)
    assert decide(evolve(state, said("hi")), 9, reached) == Finish("completed", "hi", say=True)


def test_resuming_what_has_its_answer_opens_nothing() -> None:
    answer = [START, said("hi")]
    for rest in ([], [Event("message", text="hi")], [Event("run_end", status="completed")]):
        assert resumption(replay([*answer, *rest]), 9) is None
    told = [*OPENING, {"role": "assistant", "content": "hi"}]
    assert resumption(replay([Event("run_start", messages=told)]), 9) is None
    ended = Event("run_end", status="completed", text="by hand")
    assert resumption(replay([START, ended]), 9) is None


@pytest.mark.parametrize("status", ["failed", "max_turns", "cancelled", "budget"])
def test_resuming_a_run_that_ended_otherwise_opens_a_segment_where_it_stood(status: str) -> None:
    ended = [START, ASKED, answered("a"), answered("b"), Event("run_end", status=status)]
    assert resumption(replay(ended), 9) == Reopen(4)
    answer = [START, said("hi"), Event("run_end", status=status)]
    assert resumption(replay(answer), 9) == Reopen(2)


@pytest.mark.parametrize(
    ("log", "rewinding", "settling"),
    [
        ([], Reopen(0), Reopen(0)),
        ([START], Reopen(1), Reopen(1)),
        ([START, ASKED], Reopen(1, rewound=("a", "b")), Reopen(1, settling=("a", "b"))),
        (
            [START, ASKED, answered("a")],
            Reopen(1, rewound=("a", "b")),
            Reopen(1, settling=("b",)),
        ),
        ([START, ASKED, answered("a"), answered("b")], Reopen(4), Reopen(4)),
        (
            [START, ASKED, Event("approval", call_id="a")],
            Reopen(1, rewound=("a", "b")),
            Reopen(1, settling=("a", "b")),
        ),
        (
            [START, ASKED, Event("approval", call_id="a"), answered("b")],
            Reopen(1, rewound=("a", "b")),
            None,  # only a person can go on
        ),
    ],
)
def test_a_half_finished_batch_is_given_up_or_gone_on_with(
    log: list[Event], rewinding: Reopen, settling: Reopen | None
) -> None:
    assert resumption(replay(log), 9) == rewinding
    assert resumption(replay(log), 9, settles=True) == settling


def test_a_fork_begins_where_it_was_asked_to_or_before_the_batch_it_would_cut() -> None:
    log = [START, ASKED, answered("a"), answered("b"), said("hi")]
    states = [replay(log[:length]) for length in range(len(log) + 1)]
    assert [snap(states, at) for at in range(len(states))] == [0, 1, 1, 1, 4, 5]
    headless = [replay([ASKED][:length]) for length in range(2)]
    assert snap(headless, 1) == 0


@given(wide_logs())
def test_every_log_has_a_next_step_that_fits_what_is_open(log: list[Event]) -> None:
    state = replay(log)
    match step := decide(state, 3):
        case Wait(status):
            assert status == state.status
        case CallTools(batch, calls):
            assert batch is state.batch
            assert calls == batch.ready != ()
        case Finish("paused"):
            assert state.batch is not None
            assert state.batch.waiting == state.batch.missing
        case Finish("max_turns"):
            assert state.turn >= 3
        case Finish() | AskModel():
            assert state.batch is None
    if (reopen := resumption(state, 3)) is None:
        assert state.is_complete or (isinstance(step, Finish) and step.status == "completed")
    else:
        assert reopen.kept == len(state.transcript)
