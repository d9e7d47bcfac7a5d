"""A decision that says which question it answers answers no other, however late it comes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import AskedAgainError, ConfigError, MemoryStore, NotWaitingError, PendingCall
from agentor.blocking import wait_for
from agentor.consent import only_question, pending_of
from agentor.engine.events import Event
from agentor.engine.replay import replay
from tests.engine.test_changed_arguments import EDITED, Desk, die_after_start

VERBS = {"approve": (), "reject": ("no",), "settle": ("refunded",)}


def waiting(store: Any, run_id: str = "r") -> PendingCall:
    [call] = pending_of(replay(store.load(run_id)), run_id)
    return call


@pytest.fixture
def asked_again(store: Any) -> tuple[Any, PendingCall]:
    """A store with a run whose call waits again, and that call as it waited before."""
    Desk(store).agent.run("go", run_id="r")
    first = waiting(store)
    Desk(store).agent.approve("r", first, args=EDITED)
    die_after_start(store, "r")
    assert Desk(store).agent.resume("r").status == "paused"
    return store, first


def test_a_question_is_the_seq_of_the_event_that_asks(store: Any) -> None:
    result = Desk(store).agent.run("go", run_id="r")
    [call] = result.pending
    [asked] = [event for event in result.events if event.type == "approval"]
    assert call.question == asked.seq


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("named", ["the call itself", "its number"])
def test_a_decision_for_a_question_that_was_replaced_is_refused_and_writes_nothing(
    asked_again: tuple[Any, PendingCall], verb: str, named: str
) -> None:
    store, first = asked_again
    now, before = waiting(store), store.load("r")
    assert (first.args, now.args) == ({"amount": 1000}, EDITED)
    decide = getattr(Desk(store).agent, verb)
    by_number = named == "its number"
    which, how = ("call_1", {"question": first.question}) if by_number else (first, {})
    with pytest.raises(AskedAgainError, match=f"asked about again, at seq {now.question}") as told:
        decide("r", which, *VERBS[verb], **how)
    assert isinstance(told.value, NotWaitingError)  # nothing is left to do for that question
    assert told.value.question == now.question
    assert store.load("r") == before
    decide("r", now, *VERBS[verb])
    assert Desk(store).agent.resume("r").status == "completed"


def test_a_call_named_by_its_id_alone_answers_what_waits_now(
    asked_again: tuple[Any, PendingCall],
) -> None:
    store, _ = asked_again
    Desk(store).agent.approve("r", "call_1")
    assert Desk(store).agent.resume("r").status == "completed"


def test_a_question_that_was_answered_says_so_and_not_that_it_was_replaced(store: Any) -> None:
    desk = Desk(store)
    [call] = desk.agent.run("go", run_id="r").pending
    desk.agent.approve("r", call, by="ada")
    with pytest.raises(NotWaitingError, match="approved by ada already") as told:
        desk.agent.approve("r", call)
    assert not isinstance(told.value, AskedAgainError)


def test_a_fork_asks_a_question_of_its_own_for_consent_that_stays_with_its_parent(
    store: Any,
) -> None:
    Desk(store).agent.run("go", run_id="r")
    first = waiting(store)
    Desk(store).agent.approve("r", first)
    fork = Desk(store).agent.fork("r", fork_id="f")
    [own] = fork.pending
    with pytest.raises(AskedAgainError):
        Desk(store).agent.approve("f", first)
    assert wait_for(lambda: only_question(store, "f", "call_1")) == own.question
    Desk(store).agent.approve("f", own)


def test_a_fork_inherits_the_question_that_waits(store: Any) -> None:
    [parents] = Desk(store).agent.run("go", run_id="r").pending
    [own] = Desk(store).agent.fork("r", fork_id="f").pending
    assert own.question == parents.question
    Desk(store).agent.approve("f", own)
    assert waiting(store) == parents


@pytest.mark.parametrize("question", [0, -1, True, "3", 2.0])
def test_what_cannot_be_a_question_is_refused(store: Any, question: Any) -> None:
    Desk(store).agent.run("go", run_id="r")
    with pytest.raises(ConfigError, match="question must be a whole number"):
        Desk(store).agent.approve("r", "call_1", question=question)


def test_a_call_and_a_number_that_contradict_each_other_are_refused(store: Any) -> None:
    [call] = Desk(store).agent.run("go", run_id="r").pending
    with pytest.raises(ConfigError, match="and question=77 another"):
        Desk(store).agent.approve("r", call, question=77)


@given(st.lists(st.sampled_from([None, {"amount": 1}, EDITED]), max_size=4), st.integers(0, 4))
def test_of_all_questions_there_ever_were_only_the_last_is_answered(
    changes: list[dict[str, Any] | None], which: int
) -> None:
    store = MemoryStore()
    Desk(store).agent.run("go", run_id="r")
    seen = [waiting(store)]
    for change in changes:
        Desk(store).agent.approve("r", seen[-1], args=change)
        die_after_start(store, "r")
        Desk(store).agent.resume("r")
        seen.append(waiting(store))
    assert len({call.question for call in seen}) == len(seen)
    answered = seen[which % len(seen)]
    if answered is not seen[-1]:
        with pytest.raises(AskedAgainError):
            Desk(store).agent.approve("r", answered)
    Desk(store).agent.approve("r", seen[-1])
    assert store.load("r")[-1].status == "approved"


@pytest.mark.parametrize("decide", ["approve", "approve with others", "reject", "settle"])
def test_a_decision_reads_the_log_once(decide: str) -> None:
    class Counted(MemoryStore):
        reads = 0

        def load(self, run_id: str) -> list[Event]:
            self.reads += 1
            return super().load(run_id)

    store = Counted()
    Desk(store).agent.run("go", run_id="r")
    Desk(store).agent.approve("r", "call_1")
    die_after_start(store, "r")
    Desk(store).agent.resume("r")
    call, desk = waiting(store), Desk(store)
    store.reads = 0
    if decide == "approve with others":
        desk.agent.approve("r", call, args=EDITED)
    else:
        getattr(desk.agent, decide)("r", call, *VERBS[decide])
    assert store.reads == 1
