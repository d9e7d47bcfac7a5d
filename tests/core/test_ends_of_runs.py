"""How a segment is closed, and that what is staged is what a reload would give."""

from __future__ import annotations

import pytest
from hypothesis import given

from agentor.engine.decide import Finish, Wait, decide
from agentor.engine.ending import closing, run_end, stopped
from agentor.engine.events import Event, Usage
from agentor.engine.replay import replay, with_messages
from agentor.engine.staged import Staged
from tests.core.wide_logs import wide_logs

LOG = [
    Event("run_start", messages=[{"role": "user", "content": "u"}]),
    Event("generation", text="hi", usage=Usage(1, 2, 3)),
]


def test_a_run_closes_with_its_answer_and_its_end_and_says_the_answer_once() -> None:
    state = replay(LOG)
    end = decide(state, 9)
    assert isinstance(end, Finish)
    message = Event("message", text="hi", turn=1)
    closed = Event(
        "run_end", status="completed", text="hi", usage=Usage(1, 2, 3), started_at=1, ended_at=2
    )
    assert closing(state, end, 1, 2) == [message, closed]
    said = replay([*LOG, message])
    again = decide(said, 9)
    assert isinstance(again, Finish)
    assert closing(said, again, 1, 2) == [closed] == [run_end(said, again, 1, 2)]
    assert decide(replay([*LOG, message, closed]), 9) == Wait("completed")


def test_an_answer_that_nobody_generated_belongs_to_no_turn() -> None:
    told = [Event("run_start", messages=[{"role": "assistant", "content": "hi"}])]
    [message, _] = closing(replay(told), Finish("completed", "hi", say=True), 1, 2)
    assert message == Event("message", text="hi")


def test_a_run_that_is_stopped_says_who_cancelled_it() -> None:
    state = replay(LOG)
    [cancel, end] = stopped(state, Finish("cancelled", error="why"), "Ada", 1, 2)
    assert cancel == Event("cancel", by="Ada", started_at=2)
    assert (end.type, end.status, end.error) == ("run_end", "cancelled", "why")
    [only] = stopped(state, Finish("deadline"), None, 1, 2)
    assert (only.type, only.status) == ("run_end", "deadline")


@given(wide_logs())
def test_what_is_staged_is_numbered_and_leads_to_what_a_reload_would_give(
    log: list[Event],
) -> None:
    half = len(log) // 2
    staged = Staged(replay(log[:half]), [event.with_(seq=None) for event in log[half:]])
    assert staged.events == log[half:]
    assert staged.state == replay(log)
    _, filled = with_messages(log)
    assert [e.messages for e in staged.events] == [e.messages for e in filled[half:]]


def test_what_could_not_be_read_again_is_not_staged() -> None:
    with pytest.raises(ValueError, match="'seq' cannot be str"):
        Event("message", seq="1").checked()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'text' cannot be int"):
        Staged(replay(LOG)).add(Event("message", text=1))  # type: ignore[arg-type]
