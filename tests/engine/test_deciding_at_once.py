"""Two people decide at the same moment, and nothing but the seq keeps them apart: one does, the other is told who."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import (
    Agentor,
    AskedAgainError,
    FileStore,
    LeaseHeldError,
    MemoryStore,
    NotWaitingError,
    RunContext,
    SequenceConflictError,
    SQLiteStore,
    function_tool,
)
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.engine.store import bodies_after
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods

DONE = {"approve": "approved", "reject": "rejected", "settle": "settled"}


class Checking(ThreeMethods):
    """Three methods and a look at the seq. Just before the `gap`-th event from now it lets somebody else in."""

    def __init__(self) -> None:
        super().__init__()
        self.gap, self.rival = 0, lambda: None

    def append(self, run_id: str, event: Event) -> None:
        self.gap -= 1
        if self.gap == 0:
            self.rival()
        bodies = self.runs.get(run_id, [])
        self.runs[run_id] = bodies + bodies_after(run_id, len(bodies), [event])

    def let_in(self, rival: Callable[[], Any], gap: int = 1) -> None:
        self.rival, self.gap = rival, gap


def till(store: Any) -> Agentor:
    """Two calls that may have happened, and that a person decides upon."""

    @function_tool(effect="once", on_doubt="park")
    def pay(ctx: RunContext, amount: int) -> str:
        """Pay."""
        return "paid"

    script = [calls(("pay", {"amount": 3}), ("pay", {"amount": 4})), says("done")]
    return Agentor("A", model=ScriptedModel.by_turn(script), tools=[pay], store=store)


@pytest.fixture
def store() -> Checking:
    store = Checking()
    log = till(None).run("go").events
    for event in log[: [event.type for event in log].index("tool_result")]:
        store.append("r", event)
    assert len(till(store).resume("r").pending) == 2
    return store


def decide(store: Any, verb: str, call_id: str, by: str, **options: Any) -> None:
    given = {"settle": ["found in the books"], "reject": ["no"]}.get(verb, [])
    getattr(till(store), verb)("r", call_id, *given, by=by, **options)


@pytest.mark.parametrize("late", DONE)
@pytest.mark.parametrize("quick", DONE)
def test_who_is_late_is_told_who_was_quicker_and_writes_nothing(
    store: Checking, quick: str, late: str
) -> None:
    after: list[Event] = []

    def rival() -> None:
        decide(store, quick, "call_1", "ada")
        after.extend(store.load("r"))

    store.let_in(rival)
    with pytest.raises(NotWaitingError, match=f"was {DONE[quick]} by ada already"):
        decide(store, late, "call_1", "bob")
    assert store.load("r") == after
    assert after[-1].call_id == "call_1"


@pytest.mark.parametrize("late", DONE)
def test_who_has_seen_a_question_that_was_just_replaced_is_told_so(
    store: Checking, late: str
) -> None:
    asked = next(event for event in store.load("r") if event.status == "asked")
    store.let_in(lambda: store.append("r", asked.with_(seq=None)))
    with pytest.raises(AskedAgainError):
        decide(store, late, "call_1", "bob", question=asked.seq)


@pytest.mark.parametrize("late", DONE)
@pytest.mark.parametrize("quick", DONE)
def test_decisions_about_two_calls_at_the_same_moment_both_count(
    store: Checking, quick: str, late: str
) -> None:
    store.let_in(lambda: decide(store, quick, "call_2", "ada"))
    decide(store, late, "call_1", "bob")
    decided = [(e.call_id, e.status, e.by) for e in store.load("r") if e.by is not None]
    assert decided == [("call_2", DONE[quick], "ada"), ("call_1", DONE[late], "bob")]
    assert till(store).resume("r").status == "completed"
    assert verify(store.load("r")) == []


@pytest.mark.parametrize("quick", DONE)
def test_somebody_who_comes_between_a_settlement_and_its_result_decides(
    store: Checking, quick: str
) -> None:
    store.let_in(lambda: decide(store, quick, "call_1", "ada"), gap=2)
    with pytest.raises(NotWaitingError, match=f"was {DONE[quick]} by ada already"):
        decide(store, "settle", "call_1", "bob")


def test_a_settlement_that_was_torn_by_another_decision_is_made_again(store: Checking) -> None:
    store.let_in(lambda: decide(store, "reject", "call_2", "ada"), gap=2)
    decide(store, "settle", "call_1", "bob")
    result = till(store).resume("r")
    first, second = (m["content"] for m in result.messages if m["role"] == "tool")
    assert first == "found in the books"
    assert "ada did not approve" in str(second)


@pytest.mark.parametrize("quick", DONE)
def test_a_cancel_that_meets_a_decision_ends_the_run_after_it(store: Checking, quick: str) -> None:
    store.let_in(lambda: decide(store, quick, "call_1", "ada"))
    assert till(store).cancel("r", by="bob")
    log = store.load("r")
    assert any((event.call_id, event.by) == ("call_1", "ada") for event in log)
    assert (log[-1].type, log[-1].status) == ("run_end", "cancelled")
    assert verify(log) == []


def test_of_two_cancels_one_ends_the_run_and_the_other_finds_it_ended(store: Checking) -> None:
    store.let_in(lambda: till(store).cancel("r", by="ada"))
    assert not till(store).cancel("r", by="bob")
    log = store.load("r")
    assert [event.by for event in log if event.type == "cancel"] == ["ada"]
    assert [event.status for event in log].count("cancelled") == 1


@pytest.mark.parametrize("verb", ["approve", "cancel"])
def test_a_store_that_refuses_what_nobody_else_wrote_is_told_as_that(
    store: Checking, verb: str
) -> None:
    def refuse() -> None:
        raise SequenceConflictError("r", 7, 8)

    store.let_in(refuse)
    with pytest.raises(SequenceConflictError):
        getattr(till(store), verb)(*(["r", "call_1"] if verb == "approve" else ["r"]))


@pytest.mark.parametrize("make", [MemoryStore, FileStore, SQLiteStore])
async def test_all_decisions_of_one_moment_count_where_a_lease_keeps_them_apart(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    script = [calls(*[("pay", {"amount": n}) for n in range(4)]), says("done")]
    store = make() if make is MemoryStore else make(tmp_path / "runs")
    mine = Agentor("A", model=ScriptedModel.by_turn(script), tools=[pay], store=store)
    waiting = (await mine.arun("go", run_id="r")).pending
    assert len(waiting) == 4
    await asyncio.gather(*[mine.aapprove("r", call.call_id, by="ada") for call in waiting])
    assert (await mine.aresume("r")).final_output == "done"
    assert store.holder("r") is None
    await mine.aclose()
    if make is not MemoryStore:
        store.close()


def test_a_decision_does_not_wait_for_somebody_who_works_on_the_run() -> None:
    store = MemoryStore()
    for event in till(None).run("go").events[:3]:
        store.append("r", event)
    store.acquire("r", "somebody", 30.0)
    slept: list[float] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(clock, "sleep", slept.append)
    with pytest.raises(LeaseHeldError):
        till(store).approve("r", "call_1")
    patch.undo()
    assert slept == []
