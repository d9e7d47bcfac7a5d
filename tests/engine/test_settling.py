"""A call in doubt that a person knows to have happened: its result is written in, and it is never started again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    LeaseHeldError,
    MemoryStore,
    RunContext,
    RunNotFoundError,
    function_tool,
)
from agentor.engine.events import Event
from agentor.engine.replay import replay, verify
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods

BOTH = [calls(("pay", {"amount": 3}), ("look", {})), says("done")]
ALONE = [calls(("pay", {"amount": 3})), says("done")]


class Till:
    """An agent whose one tool pays, and parks the run when nobody knows whether it did."""

    def __init__(self, store: Any, script: Any = BOTH, **options: Any) -> None:
        self.ran: Counter[str] = Counter()

        @function_tool(**({"effect": "once", "on_doubt": "park"} | options))
        def pay(ctx: RunContext, amount: int) -> str:
            """Pay."""
            self.ran["pay"] += 1
            return "paid"

        @function_tool
        def look() -> str:
            """Look."""
            self.ran["look"] += 1
            return "seen"

        self.model = ScriptedModel.by_turn(script)
        self.agent = Agentor("A", "sys", model=self.model, tools=[pay, look], store=store)


def park(store: Any, script: Any = BOTH, run_id: str = "r") -> None:
    """A run whose process died while it paid, and which was resumed once since."""
    log = Till(None, script).agent.run("go").events
    claims = [event for event in log if event.type == "tool_call"]
    for event in log[: claims[-1].seq]:
        store.append(run_id, event)
    assert Till(store, script).agent.resume(run_id).status == "paused"


def told(result: Any) -> list[Any]:
    return [m["content"] for m in result.messages if m["role"] == "tool"]


@pytest.mark.parametrize("script", [BOTH, ALONE])
def test_a_settled_call_is_never_started_again_and_the_model_is_told_its_result(
    store: Any, script: Any
) -> None:
    park(store, script)
    [call] = Till(store, script).agent.result("r").pending
    assert (call.call_id, call.in_doubt) == ("call_1", True)
    Till(store, script).agent.settle("r", "call_1", {"receipt": 4711}, by="ada")
    till = Till(store, script)
    assert till.agent.plan("r").ask_model
    result = till.agent.resume("r")
    assert (result.status, result.final_output) == ("completed", "done")
    assert till.ran["pay"] == 0
    assert told(result)[0] == '{"receipt": 4711}'
    assert verify(store.load("r")) == []


def test_the_decision_says_who_and_when_and_for_which_arguments_and_comes_with_the_result(
    store: Any,
) -> None:
    park(store)
    Till(store).agent.settle("r", "call_1", "paid, 4711", by="ada")
    decision, result = store.load("r")[-2:]
    asked = next(e for e in store.load("r") if e.type == "approval")
    assert (decision.type, decision.status, decision.by) == ("approval", "settled", "ada")
    assert decision.started_at
    assert decision.args_digest == asked.args_digest
    assert (result.type, result.call_id, result.result) == ("tool_result", "call_1", "paid, 4711")
    assert (result.name, result.error) == ("pay", None)


@pytest.mark.parametrize("again", ["approve", "reject", "settle"])
@pytest.mark.parametrize("script", [BOTH, ALONE])
def test_a_call_is_settled_once_and_nothing_can_be_decided_about_it_later(
    store: Any, again: str, script: Any
) -> None:
    park(store, script)
    agent = Till(store, script).agent
    agent.settle("r", "call_1", "paid", by="ada")
    before = store.load("r")
    more = [] if again == "approve" else ["no"]
    with pytest.raises(ConfigError, match="was settled by ada already"):
        getattr(agent, again)("r", "call_1", *more)
    agent.resume("r")
    with pytest.raises(ConfigError, match="was settled by ada already; none of its calls waits"):
        getattr(agent, again)("r", "call_1", *more)
    assert store.load("r")[: len(before)] == before


@pytest.mark.parametrize("first", ["approve", "reject"])
def test_a_call_that_was_decided_otherwise_can_no_longer_be_settled(store: Any, first: str) -> None:
    park(store)
    agent = Till(store).agent
    getattr(agent, first)("r", "call_1", *(["no"] if first == "reject" else []), by="ada")
    with pytest.raises(ConfigError, match=rf"was {first.removesuffix('e')}ed by ada already"):
        agent.settle("r", "call_1", "paid")


def test_a_call_that_never_started_cannot_have_happened(store: Any) -> None:
    till = Till(store, ALONE, effect=None, on_doubt="tell", needs_approval=True)
    till.agent.run("go", run_id="r")
    before = store.load("r")
    with pytest.raises(ConfigError, match="never started, so it cannot have happened: approve"):
        till.agent.settle("r", "call_1", "paid")
    assert store.load("r") == before


def test_a_call_whose_consent_is_used_up_can_be_settled_instead_of_asked_for_again(
    store: Any,
) -> None:
    options: dict[str, Any] = {"effect": None, "on_doubt": "tell", "needs_approval": True}
    till = Till(store, ALONE, **options)
    till.agent.run("go", run_id="whole")
    till.agent.approve("whole", "call_1")
    log = till.agent.resume("whole").events
    claim = next(event.seq for event in log if event.type == "tool_call")
    for event in log[:claim]:
        store.append("r", event)
    assert Till(store, ALONE, **options).agent.resume("r").pending[0].in_doubt
    Till(store, ALONE, **options).agent.settle("r", "call_1", "paid")
    late = Till(store, ALONE, **options)
    assert late.agent.resume("r").final_output == "done"
    assert not late.ran


def test_what_cannot_be_settled_is_refused_and_nothing_is_written(store: Any) -> None:
    park(store)
    agent = Till(store).agent
    before = store.load("r")
    for call_id, wanted in (("call_9", "calls that wait: call_1"), ("call_2", "does not wait")):
        with pytest.raises(ConfigError, match=wanted):
            agent.settle("r", call_id, "paid")
    with pytest.raises(RunNotFoundError):
        agent.settle("nobody", "call_1", "paid")
    with pytest.raises(ValueError, match="run id"):
        agent.settle("../r", "call_1", "paid")
    with pytest.raises(ConfigError, match="by is text"):
        agent.settle("r", "call_1", "paid", by=5)  # type: ignore[arg-type]
    assert store.load("r") == before


def test_a_worker_that_is_busy_with_the_run_is_not_disturbed(store: Any) -> None:
    park(store)
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    lease = store.acquire("r", "busy", 30.0)
    with pytest.raises(LeaseHeldError):
        Till(store).agent.settle("r", "call_1", "paid")
    store.release(lease)
    Till(store).agent.settle("r", "call_1", "paid")


def test_a_decision_torn_from_its_result_leaves_the_call_waiting_and_starts_nothing() -> None:
    store = MemoryStore()
    park(store)
    Till(store).agent.settle("r", "call_1", "paid", by="ada")
    torn = MemoryStore()
    for event in store.load("r")[:-1]:
        torn.append("r", event)
    till = Till(torn)
    assert till.agent.resume("r").status == "paused"
    assert not till.ran
    till.agent.settle("r", "call_1", "paid", by="ada")
    assert Till(torn).agent.resume("r").final_output == "done"


def test_a_fork_inherits_what_was_settled_and_what_waits(store: Any) -> None:
    park(store)
    waiting = Till(store).agent.fork("r", fork_id="early")
    assert [call.in_doubt for call in waiting.pending] == [True]
    Till(store).agent.settle("r", "call_1", "paid")
    till = Till(store)
    assert till.agent.fork("r", fork_id="late").final_output == "done"
    till.agent.settle("early", "call_1", "refunded")
    assert told(till.agent.resume("early"))[0] == "refunded"
    assert not till.ran


def test_a_worker_goes_on_with_a_run_whose_last_open_call_was_settled(store: Any) -> None:
    park(store, ALONE)
    till = Till(store, ALONE)
    assert till.agent.work(until_idle=True).finished == {}
    till.agent.settle("r", "call_1", "paid")
    assert till.agent.work(until_idle=True).finished == {"r": "completed"}
    assert not till.ran


def test_a_result_is_cut_where_the_tools_results_are() -> None:
    store = MemoryStore()
    park(store)
    Till(store, max_result_chars=200).agent.settle("r", "call_1", "x" * 5000)
    assert len(store.load("r")[-1].result or "") < 400


def test_settling_speaks_of_no_open_call_in_a_foreign_log_and_means_nothing() -> None:
    log = [
        Event("run_start", messages=[{"role": "user", "content": "go"}]),
        Event("approval", status="settled", call_id="call_7"),
    ]
    assert replay(log).status is None
    assert verify(log) == []
