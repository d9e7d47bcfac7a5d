"""Decisions made in other processes: at the same moment, twice, late, and for calls that no longer wait."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    LeaseHeldError,
    RunContext,
    SQLiteStore,
    function_tool,
)
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.testing import ScriptedModel, calls, says
from tests.workers.crew import note, noted

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.engine.test_decisions_elsewhere"])

VERBS: dict[str, tuple[Any, ...]] = {
    "approve": (None,),
    "reject": ("too much",),
    "settle": ("paid before",),
}


def till(place: Path, store: Any) -> Agentor:
    """An agent whose one tool needs consent for each start; each start is a line outside."""

    @function_tool(needs_approval=True)
    def pay(ctx: RunContext) -> str:
        """Pay."""
        note(place, str(ctx.idempotency_key))
        return "paid"

    model = ScriptedModel.by_turn([calls(("pay", {}), ("pay", {})), says("done")])
    return Agentor("A", model=model, tools=[pay], store=store)


def decide(place: Path, verb: str, call_id: str, by: str, go: Any, answer: Any) -> None:
    """In a process of its own, once it is told to go: the decision, or the error it met."""
    with SQLiteStore(place / "runs.db") as store:
        agent = till(place, store)
        go.wait(60)
        while True:
            try:
                getattr(agent, verb)("r", call_id, *VERBS[verb], by=by)
                answer.put((verb, by, "decided"))
                return
            except LeaseHeldError:  # somebody decides at this very moment: try again
                continue
            except ConfigError as error:
                answer.put((verb, by, str(error)))
                return


def decide_together(place: Path, verbs: list[str], call_id: str = "call_1") -> list[Any]:
    go, answer = processes.Event(), processes.Queue()
    people = [
        processes.Process(target=decide, args=(place, verb, call_id, f"person {n}", go, answer))
        for n, verb in enumerate(verbs)
    ]
    for person in people:
        person.start()
    go.set()
    told = [answer.get(timeout=120) for _ in people]
    for person in people:
        person.join()
    return told


def pause(place: Path, in_doubt: bool = False) -> None:
    """A run whose first call waits, for consent or because the process died after it had started."""
    with SQLiteStore(place / "runs.db") as store:
        agent = till(place, store)
        agent.run("go", run_id="r")
        if not in_doubt:
            return
        agent.approve("r", "call_1")
        claim = Event("tool_call", name="pay", call_id="call_1", args={}, turn=1)
        store.append("r", claim)
        assert agent.resume("r").pending[0].in_doubt


def decisions(log: list[Event]) -> list[Event]:
    return [event for event in log if event.type == "approval" and event.status != "asked"]


@pytest.mark.slow
@pytest.mark.parametrize("in_doubt", [False, True])
def test_of_many_who_decide_at_once_one_does_and_the_others_are_told_who(
    tmp_path: Path, in_doubt: bool
) -> None:
    pause(tmp_path, in_doubt)
    before = len(noted(tmp_path))
    verbs = ["approve", "reject", "settle", "approve", "reject", "settle"]
    told = decide_together(tmp_path, verbs)
    [(verb, by, _)] = [each for each in told if each[2] == "decided"]
    past = {"approve": "approved", "reject": "rejected", "settle": "settled"}[verb]
    for other, _, error in told:
        never = other == "settle" and not in_doubt and "was never started" in error
        assert error == "decided" or never or f"was {past} by {by} already" in error
    with SQLiteStore(tmp_path / "runs.db") as store:
        made = decisions(store.load("r"))
        assert (made[-1].status, made[-1].by) == (past, by)
        assert len(made) == 1 + in_doubt  # the consent that the first start used up
        agent = till(tmp_path, store)
        agent.reject("r", "call_2", "one is enough")
        assert agent.resume("r").final_output == "done"
        assert len(noted(tmp_path)) - before == (verb == "approve")
        assert verify(store.load("r")) == []


@pytest.mark.slow
def test_a_decision_that_comes_late_or_for_a_call_of_the_past_changes_nothing(
    tmp_path: Path,
) -> None:
    pause(tmp_path)
    assert decide_together(tmp_path, ["approve"], "call_1") == [("approve", "person 0", "decided")]
    with SQLiteStore(tmp_path / "runs.db") as store:
        till(tmp_path, store).resume("r")  # it starts the first, and waits for the second
    late = decide_together(tmp_path, ["approve", "reject", "settle"], "call_1")
    assert all("was approved by person 0 already; calls that wait: call_2" in e for *_, e in late)
    decide_together(tmp_path, ["approve"], "call_2")
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert till(tmp_path, store).resume("r").final_output == "done"
        before = store.load("r")
    for call_id in ("call_1", "call_2", "call_3"):
        late = decide_together(tmp_path, ["approve", "reject", "settle"], call_id)
        assert all("none of its calls waits" in error for *_, error in late)
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert store.load("r") == before
    assert set(Counter(noted(tmp_path)).values()) == {1}
