"""A person's consent: asked before a call starts, decided anywhere, used once, never lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    LeaseHeldError,
    MemoryStore,
    NotWaitingError,
    RunContext,
    RunNotFoundError,
    function_tool,
)
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods, types

SCRIPT = [calls(("pay", {"amount": 3}), ("look", {})), says("done")]


class Desk:
    """An agent with one tool that needs consent and one that does not."""

    def __init__(self, store: Any, needs_approval: Any = True, **options: Any) -> None:
        self.ran: Counter[str] = Counter()

        @function_tool(needs_approval=needs_approval, **options)
        def pay(ctx: RunContext, amount: int) -> str:
            """Pay."""
            self.ran[f"pay {amount}"] += 1
            return "paid"

        @function_tool
        def look() -> str:
            """Look."""
            self.ran["look"] += 1
            return "seen"

        self.model = ScriptedModel.by_turn(SCRIPT)
        self.agent = Agentor("A", "sys", model=self.model, tools=[pay, look], store=store)


@pytest.fixture
def paused(store: Any) -> Any:
    result = Desk(store).agent.run("go", run_id="r")
    assert result.status == "paused"
    return store


def told(result: Any) -> list[Any]:
    return [m["content"] for m in result.messages if m["role"] == "tool"]


def test_the_run_stops_before_the_call_starts_and_says_what_waits(store: Any) -> None:
    desk = Desk(store)
    result = desk.agent.run("go", run_id="r")
    assert (result.status, result.final_output, result.error) == ("paused", None, None)
    [call] = result.pending
    assert (call.call_id, call.name, call.args) == ("call_1", "pay", {"amount": 3})
    assert desk.ran == {"look": 1}
    assert [e.call_id for e in result.tool_calls] == ["call_2"]
    assert types(result.events)[-1] == "run_end"


def test_a_paused_run_stays_paused_until_somebody_decides(paused: Any) -> None:
    before = paused.load("r")
    desk = Desk(paused)
    result = desk.agent.resume("r")
    assert result.status == "paused"
    assert [call.call_id for call in result.pending] == ["call_1"]
    assert paused.load("r") == before
    assert desk.model.requests == []


def test_an_approved_call_runs_and_what_was_done_is_not_done_again(paused: Any) -> None:
    Desk(paused).agent.approve("r", "call_1", by="ada")
    desk = Desk(paused)
    result = desk.agent.resume("r")
    assert (result.status, result.final_output) == ("completed", "done")
    assert desk.ran == {"pay 3": 1}
    assert told(result) == ["paid", "seen"]
    [asked, given] = [e for e in result.events if e.type == "approval"]
    assert (asked.status, given.status, given.by) == ("asked", "approved", "ada")
    assert asked.args_digest == given.args_digest
    assert given.started_at
    assert verify(paused.load("r")) == []


def test_a_rejected_call_never_runs_and_the_model_is_told_why(paused: Any) -> None:
    Desk(paused).agent.reject("r", "call_1", "too much", by="ada")
    desk = Desk(paused)
    result = desk.agent.resume("r")
    assert result.final_output == "done"
    assert not desk.ran
    assert told(result)[0] == "Error: ada did not approve this call: too much"


def test_arguments_can_be_changed_and_the_change_is_recorded_and_told(paused: Any) -> None:
    Desk(paused).agent.approve("r", "call_1", args={"amount": 2})
    desk = Desk(paused)
    result = desk.agent.resume("r")
    assert desk.ran == {"pay 2": 1}
    assert told(result)[0] == '(A person changed the arguments to {"amount":2}.)\npaid'
    assert [e.args for e in result.tool_calls if e.name == "pay"] == [{"amount": 2}]


@pytest.mark.parametrize("decide", ["approve", "reject"])
def test_a_call_is_decided_once(paused: Any, decide: str) -> None:
    agent = Desk(paused).agent
    agent.approve("r", "call_1", by="ada")
    with pytest.raises(ConfigError, match="approved by ada already"):
        getattr(agent, decide)("r", "call_1", *(["no"] if decide == "reject" else []))
    agent.resume("r")
    with pytest.raises(ConfigError, match="none of its calls waits"):
        agent.approve("r", "call_1")


def test_a_decision_for_what_does_not_wait_is_refused(paused: Any) -> None:
    agent = Desk(paused).agent
    with pytest.raises(ConfigError, match="calls that wait: call_1"):
        agent.approve("r", "call_9")
    with pytest.raises(ConfigError, match="does not wait"):
        agent.approve("r", "call_2")
    with pytest.raises(RunNotFoundError):
        agent.approve("nobody", "call_1")
    with pytest.raises(ValueError, match="run id"):
        agent.reject("../r", "call_1", "no")
    with pytest.raises(ConfigError, match="cannot be recorded"):
        agent.approve("r", "call_1", args={"amount": object()})


@pytest.mark.parametrize("call", [None, [], {}, 5, b"call_1"], ids=repr)
def test_a_call_is_named_by_text(paused: Any, call: Any) -> None:
    agent = Desk(paused).agent
    for decide, said in (("approve", {}), ("reject", {"reason": "no"}), ("settle", {"result": 1})):
        with pytest.raises(ConfigError, match="call_id is text"):
            getattr(agent, decide)("r", call, **said)


def test_consent_is_used_up_by_the_start_it_was_given_for(paused: Any) -> None:
    Desk(paused).agent.approve("r", "call_1")
    log = Desk(paused).agent.resume("r").events
    claim = next(e.seq for e in log if e.type == "tool_call" and e.name == "pay")
    for event in log[:claim]:  # it died right after the call was started
        paused.append("crashed", event)
    desk = Desk(paused)
    result = desk.agent.resume("crashed")
    assert result.status == "paused"
    assert not desk.ran
    assert "may have taken effect" in str(result.pending[0].reason)
    desk.agent.approve("crashed", "call_1")
    assert Desk(paused).agent.resume("crashed").status == "completed"


def test_a_crash_at_any_point_neither_runs_without_consent_nor_loses_it(paused: Any) -> None:
    Desk(paused).agent.approve("r", "call_1")
    log = Desk(paused).agent.resume("r").events
    for length in range(1, len(log) + 1):
        run_id = f"r{length}"
        for event in log[:length]:
            paused.append(run_id, event)
        desk = Desk(paused)
        result = desk.agent.resume(run_id)
        approved = any(e.status == "approved" for e in log[:length] if e.type == "approval")
        claimed = any(e.name == "pay" for e in log[:length] if e.type == "tool_call")
        answered = any(e.name == "pay" for e in log[:length] if e.type == "tool_result")
        assert desk.ran["pay 3"] == (approved and not claimed)
        assert result.status == (
            "completed" if (approved and not claimed) or answered else "paused"
        )
        assert verify(paused.load(run_id)) == []


def test_a_fork_keeps_what_waits_and_decides_for_itself(paused: Any) -> None:
    desk = Desk(paused)
    fork = desk.agent.fork("r", fork_id="f")
    assert (fork.status, fork.pending[0].call_id) == ("paused", "call_1")
    desk.agent.approve("f", "call_1")
    assert desk.agent.resume("f").status == "completed"
    assert desk.agent.resume("r").status == "paused"
    talked = desk.agent.fork("r", "Never mind.", fork_id="g")
    assert talked.status == "paused"
    desk.agent.reject("g", "call_1", "never mind")
    other = Desk(paused)
    other.agent.model.requests.clear()  # type: ignore[attr-defined]
    result = other.agent.resume("g")
    assert [m["role"] for m in result.messages][-3:] == ["tool", "user", "assistant"]


@pytest.mark.parametrize(
    ("predicate", "asks"),
    [
        (lambda ctx, args: args["amount"] > 2, True),
        (lambda ctx, args: args["amount"] > 3, False),
        (lambda ctx, args: 1 / 0, True),
    ],
)
def test_a_predicate_says_which_calls_need_consent_and_a_broken_one_asks(
    store: Any, predicate: Any, asks: bool
) -> None:
    result = Desk(store, predicate).agent.run("go")
    assert (result.status == "paused") is asks


def test_a_call_in_doubt_can_be_parked_for_a_person(store: Any) -> None:
    log = Desk(None, needs_approval=False, effect="once").agent.run("go").events
    for event in log[:4]:
        store.append("r", event)
    desk = Desk(store, needs_approval=False, effect="once", on_doubt="park")
    result = desk.agent.resume("r")
    assert result.status == "paused"
    assert desk.ran == {"look": 1}
    assert "may have taken effect" in str(result.pending[0].reason)
    desk.agent.approve("r", "call_1", by="ada")
    assert Desk(store, needs_approval=False, effect="once").agent.resume("r").status == "completed"


def test_a_decision_waits_for_nobody_who_is_busy_with_the_run(paused: Any) -> None:
    if isinstance(paused, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    lease = paused.acquire("r", "busy", 30.0)
    with pytest.raises(LeaseHeldError):
        Desk(paused).agent.approve("r", "call_1")
    paused.release(lease)
    Desk(paused).agent.approve("r", "call_1")


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("approve", {}),
        ("approve", {"args": {"amount": 2}}),
        ("reject", {"reason": "no"}),
        ("settle", {"result": "done"}),
    ],
)
def test_whatever_is_decided_about_a_call_that_somebody_is_at_is_told_that_he_is(
    store: Any, verb: str, words: dict[str, Any]
) -> None:
    """And not how the call stood when he began."""
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    Desk(store, needs_approval=False, effect="once").agent.run("go", run_id="whole")
    log = store.load("whole")
    for event in log[: 1 + next(i for i, e in enumerate(log) if e.type == "tool_call")]:
        store.append("r", event)
    lease = store.acquire("r", "busy", 30.0)
    with pytest.raises(LeaseHeldError):
        getattr(Desk(store).agent, verb)("r", "call_1", **words)
    store.release(lease)
    with pytest.raises(NotWaitingError, match="nobody has been asked about it yet"):
        getattr(Desk(store).agent, verb)("r", "call_1", **words)


@pytest.mark.parametrize(
    ("args", "asks"),
    [
        ({"amount": "500"}, True),  # as the tool gets it: 500
        ({}, True),  # the default
        ({"amount": 1}, False),
        ({"amount": "much"}, False),  # the tool will not run
    ],
)
def test_a_predicate_judges_the_arguments_that_the_tool_would_get(args: Any, asks: bool) -> None:
    ran = []

    @function_tool(needs_approval=lambda ctx, args: args["amount"] > 100)
    def pay(amount: int = 1000) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    model = ScriptedModel([calls(("pay", args)), says("done")])
    result = Agentor("A", model=model, tools=[pay], store=MemoryStore()).run("go")
    assert (result.status == "paused") is asks
    assert all(amount <= 100 for amount in ran)


def test_what_could_not_be_read_again_is_never_written(paused: Any) -> None:
    agent = Desk(paused).agent
    before = paused.load("r")
    attempts: list[Any] = [
        lambda: agent.approve("r", "call_1", by=5),  # type: ignore[arg-type]
        lambda: agent.reject("r", "call_1", reason=5),  # type: ignore[arg-type]
        lambda: agent.cancel("r", by=object()),  # type: ignore[arg-type]
        lambda: Agentor(5),  # type: ignore[arg-type]
        lambda: Agentor("A", instructions=5),  # type: ignore[arg-type]
        lambda: Agentor("A", tool_timeout_s="soon"),  # type: ignore[arg-type]
        lambda: function_tool(needs_approval=_async_predicate, name_override="f")(lambda: None),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError):
            attempt()
    assert paused.load("r") == before
    agent.approve("r", "call_1", by="a\ud800da")
    assert paused.load("r")[-1].by == "a�da"


async def _async_predicate(ctx: Any, args: Any) -> bool:
    return True


def test_an_approved_call_of_a_tool_that_was_withdrawn_does_not_run(paused: Any) -> None:
    desk = Desk(paused)
    desk.agent.approve("r", "call_1")
    log = paused.load("r")
    for event in log[:-1]:
        paused.append("w", event)
    for number in range(2):
        paused.append("w", Event("tool_result", name="pay", call_id=f"old{number}", error="E: no"))
    paused.append("w", log[-1].with_(seq=None))
    result = desk.agent.resume("w")
    assert desk.ran["pay 3"] == 0
    assert "no longer available" in told(result)[0]


def test_an_agent_that_nobody_could_decide_for_is_refused() -> None:
    desk = Desk(None)
    with pytest.raises(ConfigError, match="'pay' needs approval"):
        desk.agent.run("go")
    assert desk.model.requests == []


def test_changed_arguments_that_the_tool_would_not_take_are_refused_and_use_up_nothing(
    paused: Any,
) -> None:
    agent = Desk(paused).agent
    for args in ({"amount": "much"}, {}, ["x"]):
        with pytest.raises(ConfigError, match="arguments"):
            agent.approve("r", "call_1", args=args)  # type: ignore[arg-type]
    agent.approve("r", "call_1", args={"amount": "2"})
    desk = Desk(paused)
    desk.agent.resume("r")
    assert desk.ran == {"pay 2": 1}
