"""What the worlds' reader of the file knows of a run's ends."""

from __future__ import annotations

import pytest

from agentor.engine.events import APPROVAL, CANCEL, FORK, MESSAGE, RUN_END, RUN_START, Event
from fuzz.ledger import Log

UP_TO_ITS_END = [RUN_START, MESSAGE, RUN_END, CANCEL]


def log_of(*types: str) -> Log:
    return Log(events=[Event(each, seq=seq) for seq, each in enumerate(types, 1)])


@pytest.mark.parametrize("after", [[], [APPROVAL], [APPROVAL, APPROVAL], [FORK]])
def test_an_end_that_stands_answers_who_asks_for_one_whatever_was_said_after_it(
    after: list[str],
) -> None:
    log = log_of(*UP_TO_ITS_END, RUN_END, *after)
    assert log.before_its_end() == len(UP_TO_ITS_END)
    assert log.has_ended_since(log.before_its_end())


def test_an_end_that_came_before_the_question_is_no_answer() -> None:
    log = log_of(RUN_START, RUN_END, RUN_START)
    assert not log.has_ended_since(2)
    assert log_of(RUN_START, RUN_END, RUN_START, RUN_END).has_ended_since(2)
