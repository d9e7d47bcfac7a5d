"""A plan says what a resume then does, whatever has a say in it: people, the code's context, forks, money and time."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentor import (
    Agentor,
    Budget,
    ConfigError,
    Happened,
    MemoryStore,
    RunContext,
    RunResult,
    SQLiteStore,
    Unknown,
    function_tool,
)
from agentor.cli.working import in_short
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import fork_run
from agentor.plan import Plan
from agentor.testing import ScriptedModel, calls, says


def is_suspect(ctx: RunContext, args: dict[str, Any]) -> bool:
    """A predicate that looks at all there is to see."""
    ctx.context["judged"].add((ctx.run_id, ctx.call_id, ctx.idempotency_key, str(ctx.args)))
    return not ctx.context["trusted"]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"effect": "idempotent"},
    "once": {"effect": "once"},
    "parked": {"effect": "once", "on_doubt": "park"},
    "asked": {"effect": "once", "on_doubt": "park", "reconcile": lambda ctx: Unknown()},
    "found": {"effect": "once", "reconcile": lambda ctx: Happened("ok")},
    "approved": {"needs_approval": True},
    "guarded": {"effect": "once", "on_doubt": "park", "needs_approval": True},
    "judged": {"effect": "idempotent", "needs_approval": is_suspect},
    "failing": {"effect": "idempotent", "needs_approval": True},
    "transactional": {"effect": "transactional"},
}
BATCHES = st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=4)
DECISIONS = st.sampled_from(["approve", "change", "reject", "settle", "leave"])
DAY_S = 86_400.0
PRICED = Budget(money=1.0, prices={"scripted": (1.0, 1.0)})
UNPRICED = Budget(money=1.0, prices={"newer": (1.0, 1.0)})  # the log's model is not in it


@dataclass(frozen=True)
class World:
    """What an agent is built with on one day."""

    trusted: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_unpriced(self) -> bool:
        return self.settings.get("budget") is UNPRICED


LIMITS = st.fixed_dictionaries(
    {
        "budget": st.sampled_from([None, 1, 25, 10**6, PRICED, UNPRICED]),
        "deadline_s": st.sampled_from([None, DAY_S / 2, 2 * DAY_S]),
        "half_finished": st.sampled_from([None, None, "settle", "rewind"]),
        "max_tool_failures": st.sampled_from([1, 2]),
    }
)
WORLDS = st.builds(World, st.booleans(), LIMITS)


class Desk:
    """An agent whose model asks for a batch once; what its tools ran is counted by call."""

    def __init__(self, store: SQLiteStore, batch: list[str], world: World) -> None:
        self.ran: Counter[str] = Counter()
        self.judged: set[Any] = set()
        script = [calls(*((kind, {}) for kind in batch)), says("done")]
        name = "newer" if world.is_unpriced else "scripted"
        self.model = ScriptedModel.by_turn(script, model=name)
        self.agent = Agentor(
            "A",
            "sys",
            model=self.model,
            tools=[self._tool(kind) for kind in dict.fromkeys(batch)],
            store=store,
            context={"trusted": world.trusted, "judged": self.judged},
            on_change="adopt",
            **world.settings,
        )

    def _tool(self, kind: str) -> Any:
        def act(ctx: RunContext, note: str = "") -> str:
            self.ran[str(ctx.call_id)] += 1
            if kind == "failing":
                raise RuntimeError("no")
            return "ok"

        names = {"name_override": kind, "description_override": kind}
        return function_tool(**names, **OPTIONS[kind])(act)

    def decide(self, run_id: str, verb: str, call: Any) -> None:
        match verb:
            case "approve":
                self.agent.approve(run_id, call.call_id)
            case "change":
                self.agent.approve(run_id, call.call_id, args={"note": "changed"})
            case "reject":
                self.agent.reject(run_id, call.call_id, "no")
            case "settle" if call.in_doubt:
                self.agent.settle(run_id, call.call_id, "it was done")


def whole_log(store: SQLiteStore, batch: list[str]) -> list[Event]:
    """Of a run of yesterday in which everything that was asked about was approved."""
    desk = Desk(store, batch, World(trusted=False))
    for call in desk.agent.run("go", run_id="whole").pending:
        desk.agent.approve("whole", call.call_id)
    desk.agent.resume("whole")
    log = store.load("whole")
    return [log[0].with_(started_at=clock.now() - DAY_S), *log[1:]]


@settings(max_examples=80, deadline=None)
@given(BATCHES, WORLDS, st.data())
def test_a_plan_matches_what_the_resume_then_does_in_every_world(
    batch: list[str], world: World, data: st.DataObject
) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        SQLiteStore(Path(place) / "runs.db", synchronous="OFF") as store,
    ):
        log = whole_log(store, batch)
        run_id = "r"
        store.append_many(run_id, log[: data.draw(st.integers(1, len(log)))])
        for number in range(data.draw(st.integers(0, 3))):  # resumes, decisions, forks in between
            desk = Desk(store, batch, World(data.draw(st.booleans())))
            for call in desk.agent.resume(run_id).pending:
                desk.decide(run_id, data.draw(DECISIONS), call)
            if data.draw(st.booleans()):
                run_id = fork_run(store, run_id, f"fork{number}")
        check(store, run_id, batch, world)


def check(store: SQLiteStore, run_id: str, batch: list[str], world: World) -> None:
    before, planner = store.load(run_id), Desk(store, batch, world)
    plan = planner.agent.plan(run_id)
    assert store.load(run_id) == before
    assert not planner.ran
    desk = Desk(store, batch, world)
    if plan.problems:
        assert world.is_unpriced
        with pytest.raises(ConfigError, match=r"no price for the model 'scripted'"):
            desk.agent.resume(run_id)
        assert store.load(run_id) == before
        return
    result = desk.agent.resume(run_id)
    new = result.events[len(before) :]
    assert plan.ask_model == bool(desk.model.requests)
    if plan.ends is not None:
        assert (result.status, result.error) in (("budget", plan.ends), ("deadline", plan.ends))
        assert not plan.ask_model
    elif not plan.ask_model:
        assert not (new and result.status in ("budget", "deadline"))
    acts = plan.ask_model or plan.to_run or plan.in_doubt or plan.settled
    assert plan.writes_end == bool(new and result.status == "completed" and not acts)
    start = next((event for event in new if event.type == "run_start"), None)
    assert list(plan.rewound) == list((start and start.rewound) or [])
    if not any(event.calls for event in new):  # else the model asks for a new batch
        assert set(desk.ran) == set(plan.to_run)
        assert set(desk.ran.values()) <= {1}
        assert planner.judged == desk.judged
        assert set(plan.waiting) <= {call.call_id for call in result.pending}
        assert {c.call_id for c in result.pending} <= {*plan.waiting, *plan.in_doubt} or plan.ends
        assert not plan.waiting or result.status == "paused"
        check_doubts(plan, result, new)
    answered = {event.call_id for event in result.events if event.type == "tool_result"}
    assert set(plan.settled) <= answered


def check_doubts(plan: Plan, result: RunResult, new: list[Event]) -> None:
    """What is done about each call in doubt is what the plan said, whose words name each of them once."""
    pending = {call.call_id for call in result.pending}
    told = {e.call_id for e in new if e.type == "tool_result" and e.error == "outcome unknown"}
    known = {e.call_id for e in new if e.type == "tool_result" and e.error is None}
    reconciled, parked = set(plan.reconciled), set(plan.parked)
    assert parked <= pending
    assert set(plan.in_doubt) - parked - reconciled <= told
    assert reconciled - parked <= known
    named = [call_id for call_ids, _ in plan.doubts() for call_id in call_ids]
    assert sorted(named) == sorted(plan.in_doubt)


@pytest.mark.parametrize(
    ("options", "line", "short"),
    [
        (
            {},
            "tell the model that nobody knows what became of call_1",
            "tell the model that nobody knows of 1 call, ask the model",
        ),
        (
            {"on_doubt": "park"},
            "pause for a person to decide on call_1, since nobody knows what became of it",
            "pause for 1 decision",
        ),
        (
            {"reconcile": lambda ctx: Unknown()},
            "ask its tool what became of call_1, and if that does not know, tell the model so",
            "ask the tool about 1 call, ask the model",
        ),
        (
            {"on_doubt": "park", "reconcile": lambda ctx: Unknown()},
            "ask its tool what became of call_1, and if that does not know, pause for a person",
            "ask the tool about 1 call, ask the model",
        ),
    ],
)
def test_a_plan_says_of_a_call_in_doubt_who_is_asked_about_it_and_who_is_told(
    options: dict[str, Any], line: str, short: str
) -> None:
    @function_tool(effect="once", **options)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    store = MemoryStore()
    script = [calls(("pay", {"amount": 1})), says("done")]
    agent = Agentor("A", model=ScriptedModel.by_turn(script), tools=[pay], store=store)
    store.append_many("r", agent.run("go", run_id="whole").events[:3])
    plan = agent.plan("r")
    asks_at_once = options == {"on_doubt": "park"}
    steps = [line] if asks_at_once else [line, "ask the model"]
    assert str(plan).splitlines() == ["run r (unfinished)", *(f"  {step}" for step in steps)]
    assert in_short(plan) == short
    assert agent.resume("r").status == ("paused" if "on_doubt" in options else "completed")
