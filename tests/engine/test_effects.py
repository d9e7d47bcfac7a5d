"""What becomes of a half-finished batch, by what its tools say of themselves: never silently twice."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from functools import partial
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    DidNotHappen,
    Happened,
    MemoryStore,
    RunContext,
    Unknown,
    function_tool,
)
from agentor.engine.events import Event
from agentor.engine.replay import replay, verify
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import types

SCRIPT = [calls(("first", {}), ("second", {})), says("done")]


class World:
    """Two tools with effects, a count of what happened by key, and what `reconcile` would say."""

    def __init__(
        self, first: str | None, second: str | None, verdict: Any = None, **options: Any
    ) -> None:
        self.happened: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {"first": set(), "second": set()}
        self.verdict = verdict
        self.tools = [self._tool("first", first, options), self._tool("second", second, options)]

    def _tool(self, name: str, effect: str | None, options: dict[str, Any]) -> Any:
        async def act(ctx: RunContext) -> str:
            self.happened[name] += 1
            self.keys[name].add(ctx.idempotency_key or "")
            return f"{name} done"

        extra = dict(options) if effect == "once" else {}
        if effect == "once" and self.verdict is not None:
            extra["reconcile"] = lambda ctx: self.verdict
        return function_tool(effect=effect, name_override=name, description_override=name, **extra)(
            act
        )

    def agent(self, store: Any, **settings: Any) -> Agentor:
        return Agentor(
            "A",
            "sys",
            model=ScriptedModel.by_turn(SCRIPT),
            tools=self.tools,
            store=store,
            **settings,
        )


def whole_log(first: str | None, second: str | None) -> list[Event]:
    return World(first, second).agent(None).run("go").events


def resumed(log: list[Event], world: World, **settings: Any) -> tuple[Any, MemoryStore]:
    store = MemoryStore()
    store.append_many("r", log)
    return world.agent(store, **settings).resume("r"), store


class Later:
    async def __call__(self, ctx: Any, args: Any) -> bool:
        return True


def reconcile_at(place: str, ctx: RunContext) -> Unknown:
    return Unknown()


EFFECTS = [None, "read", "idempotent", "once"]


@pytest.mark.parametrize(("first", "second"), [*itertools.product(EFFECTS, EFFECTS)])
@pytest.mark.parametrize("length", range(1, 10))
def test_every_crash_point_of_every_pair_of_effects_is_told_honestly(
    first: str | None, second: str | None, length: int
) -> None:
    log = whole_log(first, second)[:length]
    world = World(first, second)
    result, store = resumed(log, world)
    assert result.status == "completed"
    assert verify(store.load("r")) == []

    started = {event.name for event in log if event.type == "tool_call"}
    answered = {event.name for event in log if event.type == "tool_result"}
    declared = {"first": first, "second": second}
    settles = len(answered) < 2 and {declared[str(name)] for name in started} & {
        "idempotent",
        "once",
    }
    for name, effect in (("first", first), ("second", second)):
        if name in answered and (settles or len(answered) == 2):
            assert world.happened[name] == 0  # nothing recorded runs twice
        if name not in started and len(answered) != 2:
            assert world.happened[name] == 1
        if name in started and name not in answered and effect == "once":
            assert world.happened[name] == 0
            assert any(e.error == "outcome unknown" and e.name == name for e in result.events)
    start = store.load("r")[length] if length < 9 else None
    if settles:
        assert start is not None
        assert start.settling
        assert types(result.events).count("generation") == 2  # the model is not asked again
    elif start is not None and start.type == "run_start":
        assert start.settling is None


def in_doubt(first: str | None = None, second: str | None = "once") -> list[Event]:
    """Both calls started, the first answered."""
    log = whole_log(first, second)
    answer = next(e for e in log if e.type == "tool_result" and e.name == "first")
    return [*log[:4], answer.with_(seq=5)]


def test_reconcile_can_say_that_it_happened() -> None:
    world = World(None, "once", Happened({"receipt": 7}))
    result, _ = resumed(in_doubt(), world)
    assert not world.happened
    assert [e.result for e in result.events if e.name == "second" and e.type == "tool_result"] == [
        '{"receipt": 7}'
    ]


def test_reconcile_can_say_that_it_did_not_happen() -> None:
    world = World(None, "once", DidNotHappen())
    resumed(in_doubt(), world)
    assert world.happened == {"second": 1}


def test_a_fork_does_not_start_what_the_run_it_was_forked_from_may_yet_start() -> None:
    world, store = World(None, "once", DidNotHappen()), MemoryStore()
    store.append_many("r", in_doubt())
    fork = world.agent(store).fork("r", fork_id="f")
    assert not world.happened
    assert [e.error for e in fork.events if e.name == "second" and e.error] == ["outcome unknown"]
    world.agent(store).resume("r")
    assert world.happened == {"second": 1}


@pytest.mark.parametrize("verdict", [Unknown(), "nonsense"])
def test_when_nobody_knows_the_model_is_told_so(verdict: Any) -> None:
    world = World(None, "once", verdict)
    result, _ = resumed(in_doubt(), world)
    assert not world.happened
    [told] = [e for e in result.events if e.name == "second" and e.type == "tool_result"]
    assert "may or may not have taken effect" in str(told.result)
    assert replay(result.events).failures == {}


@pytest.mark.usefixtures("plain_keys")
def test_reconcile_is_given_the_call_and_may_be_async() -> None:
    seen: list[RunContext] = []

    async def reconcile(ctx: RunContext) -> Any:
        seen.append(ctx)
        return Happened("ok")

    @function_tool(effect="once", reconcile=reconcile)
    def pay(ctx: RunContext, amount: int) -> str:
        """Pay."""
        raise AssertionError("never started again")

    script = [calls(("pay", {"amount": 3})), says("done")]
    paid = Agentor(
        "A",
        model=ScriptedModel(script),
        tools=[function_tool(lambda amount: "ok", name_override="pay")],
    )
    store = MemoryStore()
    store.append_many("r", paid.run("go").events[:3])
    agent = Agentor("A", model=ScriptedModel.by_turn(script), tools=[pay], store=store)
    assert agent.resume("r").final_output == "done"
    assert seen[0].args == {"amount": 3}
    assert seen[0].idempotency_key == "r:2:0"
    assert seen[0].call_id == "call_1"


@pytest.mark.usefixtures("plain_keys")
def test_a_second_start_has_the_key_of_the_first() -> None:
    keys = set()
    for log in (whole_log("idempotent", "idempotent")[:4], in_doubt("idempotent", "idempotent")):
        world = World("idempotent", "idempotent")
        resumed(log, world)
        keys |= world.keys["second"]
    assert keys == {"r:2:1"}


@pytest.mark.usefixtures("plain_keys")
def test_a_fork_of_a_call_in_doubt_starts_it_with_its_parents_key() -> None:
    store = MemoryStore()
    store.append_many("r", in_doubt("idempotent", "idempotent"))
    world = World("idempotent", "idempotent")
    fork = world.agent(store).fork("r", fork_id="f")
    again = World("idempotent", "idempotent")
    again.agent(store).fork("r", fork_id="g")
    assert world.keys["second"] == again.keys["second"] == {"r:2:1"}
    assert fork.final_output == "done"


def test_a_fork_with_new_input_settles_the_batch_before_it_is_told() -> None:
    store = MemoryStore()
    store.append_many("r", whole_log("idempotent", None)[:4])
    world = World("idempotent", None)
    agent = Agentor("A", "sys", model=ScriptedModel(["ok"]), tools=world.tools, store=store)
    result = agent.fork("r", "And now?")
    assert [m["role"] for m in result.messages] == [
        *("system", "user", "assistant", "tool", "tool", "user", "assistant")
    ]
    assert verify(store.load(result.run_id)) == []


def test_rewinding_and_settling_can_be_chosen_for_the_whole_agent() -> None:
    settled = World(None, None)
    result, _ = resumed(in_doubt(None, None), settled, half_finished="settle")
    assert settled.happened == {"second": 1}
    assert types(result.events).count("generation") == 2
    rewound = World("once", "once")
    result, _ = resumed(in_doubt("once", "once"), rewound, half_finished="rewind")
    assert rewound.happened == {"first": 1, "second": 1}
    with pytest.raises(ConfigError, match="half_finished"):
        World(None, None).agent(None, half_finished="maybe")


def test_an_effect_declared_after_the_crash_counts_too() -> None:
    world = World(None, "once")
    resumed(in_doubt(None, None), world)
    assert not world.happened


def test_a_tool_that_an_open_call_needs_and_that_is_gone_is_a_clear_error_before_anything_runs() -> (
    None
):
    store = MemoryStore()
    store.append_many("r", in_doubt())
    before = store.load("r")
    world = World(None, "once")
    agent = Agentor("A", "sys", model=ScriptedModel([]), tools=world.tools[:1], store=store)
    with pytest.raises(ConfigError, match="'second'"):
        agent.resume("r")
    assert store.load("r") == before
    store.release(store.acquire("r", "next", 30.0))  # the lease was let go


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"effect": "twice"}, "effect is one of"),
        ({"effect": "read", "reconcile": print}, "effect='once'"),
        ({"effect": "once", "reconcile": "x"}, "reconcile"),
        ({"effect": "once", "on_doubt": "guess"}, "on_doubt"),
        (
            {"effect": "once", "reconcile": lambda: None},
            "reconcile is a function of the RunContext",
        ),
        ({"effect": "once", "reconcile": lambda ctx: (yield)}, "reconcile is a function of"),
        ({"on_doubt": "park"}, "declare effect='once'"),
        ({"on_doubt": "park", "needs_approval": True}, "declare effect='once'"),
        ({"on_doubt": "park", "effect": "read"}, "effect='read' one in doubt is simply"),
        ({"on_doubt": "park", "effect": "idempotent"}, "declare effect='once'"),
        ({"needs_approval": "yes"}, "needs_approval"),
        ({"needs_approval": lambda args: True}, r"needs_approval .* function of \(ctx, args\)"),
        ({"needs_approval": lambda ctx, args: (yield)}, "needs_approval"),
        ({"needs_approval": Later()}, "needs_approval .* not async"),
        ({"max_result_chars": 0.5}, "max_result_chars must be a positive whole number"),
        ({"max_result_chars": None}, "max_result_chars"),
        ({"timeout_s": True}, "timeout_s must be a positive number"),
        ({"timeout_s": float("nan")}, "timeout_s must be a positive number"),
    ],
)
def test_declarations_that_cannot_be_meant_are_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        function_tool(name_override="f", **options)(lambda: None)


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "once", "on_doubt": "park", "reconcile": print},  # takes whatever comes
        {"effect": "once", "reconcile": partial(reconcile_at, "a bank")},
        {"on_doubt": "tell"},
        {"needs_approval": lambda ctx, args, limit=3: True},
        {"needs_approval": dict.get},  # says nothing of what it takes, or takes two
        {"timeout_s": 0.5, "max_result_chars": 1},
    ],
)
def test_declarations_that_may_be_meant_are_taken(options: dict[str, Any]) -> None:
    function_tool(name_override="f", **options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"durability": "strict"}, "no store to save it in"),
        ({"atomic_batches": True}, "atomic_batches is for transactional tools"),
        ({"atomic_batches": "no"}, "atomic_batches is True or False"),
        ({"transaction_limit_s": 2.0}, "transaction_limit_s is for transactional tools"),
        ({"deadline_s": True}, "deadline_s is a number of seconds"),
    ],
)
def test_options_that_promise_what_the_agent_cannot_give_are_refused(
    options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        Agentor(
            "A",
            model=ScriptedModel([]),
            tools=[function_tool(name_override="f")(lambda: None)],
            **options,
        )


@pytest.mark.parametrize("today", [None, "read", "idempotent"])
def test_what_the_log_says_of_a_call_cannot_be_weakened_by_a_deploy(today: str | None) -> None:
    store = MemoryStore()
    store.append_many("r", in_doubt(None, "once"))
    world = World(None, today)
    plan = world.agent(store).plan("r")
    assert plan.in_doubt == ("call_2",)
    result = world.agent(store).resume("r")
    assert not world.happened
    assert any(event.error == "outcome unknown" for event in result.events)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), RuntimeError("down")])
def test_a_reconcile_that_fails_in_any_way_leaves_the_outcome_unknown(error: BaseException) -> None:
    def reconcile(ctx: RunContext) -> Any:
        raise error

    world = World(None, "once", reconcile=reconcile)
    result, _ = resumed(in_doubt(), world)
    assert not world.happened
    assert result.final_output == "done"


def test_a_reconcile_that_hangs_is_not_waited_for_for_ever() -> None:
    async def reconcile(ctx: RunContext) -> Any:
        await asyncio.get_running_loop().create_future()

    world = World(None, "once", reconcile=reconcile)
    result, _ = resumed(in_doubt(), world, tool_timeout_s=0.01)
    assert not world.happened
    assert result.final_output == "done"
    (doubt,) = [event for event in result.events if event.error == "outcome unknown"]
    assert (doubt.result or "").endswith("(its reconcile failed: no answer within 0.01 s)")


@pytest.mark.parametrize("on_doubt", ["tell", "park"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (True, "reconcile answers Happened(result), DidNotHappen() or Unknown(), not True)"),
        (RuntimeError("the service is down"), "(its reconcile failed: RuntimeError: the service"),
        (RuntimeError("x" * 5_000), "characters"),
    ],
)
def test_why_a_reconcile_could_not_say_is_in_the_log(answer: Any, why: str, on_doubt: str) -> None:
    """In the result that the model reads, or in the question that a person does; and it is in doubt as ever."""

    def reconcile(ctx: RunContext) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    result, store = resumed(in_doubt(), World(None, "once", reconcile=reconcile, on_doubt=on_doubt))
    *_, last = [e for e in store.load("r") if e.call_id == "call_2"]
    told = last.result if on_doubt == "tell" else last.reason
    assert why in (told or "")
    assert len(told or "") < 3_000
    if on_doubt == "tell":
        assert last.error == "outcome unknown"
    else:
        assert [(call.in_doubt, call.reason) for call in result.pending] == [(True, told)]
