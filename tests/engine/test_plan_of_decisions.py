"""A plan says what a resume then does, also where people have a say: parked, approved, rejected and settled calls."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentor import Agentor, RunContext, SQLiteStore, function_tool
from agentor.engine.events import Event
from agentor.testing import ScriptedModel, calls, says

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"effect": "idempotent"},
    "once": {"effect": "once"},
    "parked": {"effect": "once", "on_doubt": "park"},
    "approved": {"needs_approval": True},
    "guarded": {"effect": "once", "on_doubt": "park", "needs_approval": True},
    "transactional": {"effect": "transactional"},
}
BATCHES = st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=4)
DECISIONS = st.sampled_from(["approve", "reject", "settle", "leave"])


class Desk:
    """An agent whose model asks for a batch once; what its tools ran is counted by call."""

    def __init__(self, store: SQLiteStore, batch: list[str]) -> None:
        self.ran: Counter[str] = Counter()
        script = [calls(*((kind, {}) for kind in batch)), says("done")]
        self.model = ScriptedModel.by_turn(script)
        tools = [self._tool(kind) for kind in OPTIONS]
        self.agent = Agentor("A", "sys", model=self.model, tools=tools, store=store)

    def _tool(self, kind: str) -> Any:
        def act(ctx: RunContext) -> str:
            self.ran[str(ctx.call_id)] += 1
            return "ok"

        names = {"name_override": kind, "description_override": kind}
        return function_tool(**names, **OPTIONS[kind])(act)

    def decide(self, verb: str, call: Any) -> None:
        match verb:
            case "approve":
                self.agent.approve("r", call.call_id)
            case "reject":
                self.agent.reject("r", call.call_id, "no")
            case "settle" if call.in_doubt:
                self.agent.settle("r", call.call_id, "it was done")


def whole_log(store: SQLiteStore, batch: list[str]) -> list[Event]:
    """Of a run in which everything that was asked about was approved."""
    desk = Desk(store, batch)
    for call in desk.agent.run("go", run_id="whole").pending:
        desk.agent.approve("whole", call.call_id)
    desk.agent.resume("whole")
    return store.load("whole")


@settings(max_examples=120, deadline=None)
@given(BATCHES, st.data())
def test_a_plan_matches_what_the_resume_then_does_whoever_has_decided_what(
    batch: list[str], data: st.DataObject
) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        SQLiteStore(Path(place) / "runs.db", synchronous="OFF") as store,
    ):
        log = whole_log(store, batch)
        store.append_many("r", log[: data.draw(st.integers(1, len(log)))])
        for _ in range(data.draw(st.integers(0, 2))):  # resumes in between, and what people say
            desk = Desk(store, batch)
            for call in desk.agent.resume("r").pending:
                desk.decide(data.draw(DECISIONS), call)
        check(store, batch)


def check(store: SQLiteStore, batch: list[str]) -> None:
    desk, before = Desk(store, batch), store.load("r")
    plan = desk.agent.plan("r")
    assert store.load("r") == before
    assert plan.problems == ()
    result = desk.agent.resume("r")
    assert plan.ask_model == bool(desk.model.requests)
    assert set(plan.waiting) <= {call.call_id for call in result.pending}
    start = next((e for e in result.events[len(before) :] if e.type == "run_start"), None)
    assert list(plan.rewound) == list((start and start.rewound) or [])
    if not plan.rewound and before[-1].type != "run_start":  # else the model asks for a new batch
        assert set(desk.ran) == set(plan.to_run)
        assert set(desk.ran.values()) <= {1}
    answered = {event.call_id for event in result.events if event.type == "tool_result"}
    assert set(plan.settled) <= answered
    assert not plan.waiting or result.status == "paused"
