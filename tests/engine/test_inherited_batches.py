"""A fork that inherits a half-finished batch: its parent may do at any moment what the fork is about to do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    DidNotHappen,
    Happened,
    MemoryStore,
    RunContext,
    SQLiteStore,
    function_tool,
)
from agentor.engine.batch import CONSENT_STAYS
from agentor.engine.replay import verify
from agentor.engine.store import fork_run
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods

pytestmark = pytest.mark.usefixtures("plain_keys")

SCRIPT = [calls(("pay", {"n": 1}), ("pay", {"n": 2})), says("done")]
ALONE = [calls(("pay", {"n": 1})), says("done")]


class Till:
    """An agent with one tool that pays; its starts are counted by key."""

    def __init__(self, store: Any, script: Any = SCRIPT, **options: Any) -> None:
        self.starts: Counter[str] = Counter()

        @function_tool(**({"effect": "once"} | options))
        def pay(ctx: RunContext, n: int) -> str:
            """Pay."""
            self.starts[str(ctx.idempotency_key)] += 1
            return "paid"

        self.model = ScriptedModel.by_turn(script)
        self.agent = Agentor("A", "sys", model=self.model, tools=[pay], store=store)


def cut(store: Any, length: int, script: Any = SCRIPT, **options: Any) -> Till:
    """A run whose first events alone are saved."""
    for event in Till(MemoryStore(), script, **options).agent.run("go").events[:length]:
        store.append("p", event)
    return Till(store, script, **options)


@pytest.mark.parametrize("parent_first", [True, False])
@pytest.mark.parametrize("length", [3, 4, 5])
def test_no_call_of_a_once_tool_is_started_by_parent_and_fork(
    length: int, parent_first: bool
) -> None:
    store = ThreeMethods()
    till = cut(store, length)
    fork_run(store, "p", "f")
    for run_id in ("p", "f") if parent_first else ("f", "p"):
        assert till.agent.resume(run_id).status == "completed"
        assert verify(store.load(run_id)) == []
    assert max(till.starts.values(), default=1) == 1
    assert not [key for key in till.starts if key.startswith("f:")]


def test_a_fork_of_a_generation_whose_calls_are_not_claimed_yet_leaves_them_to_its_parent() -> None:
    store = ThreeMethods()
    till = cut(store, 2)
    fork = till.agent.fork("p", fork_id="f")
    assert not till.starts
    told = [e for e in fork.events if e.type == "tool_result"]
    assert [e.error for e in told] == ["outcome unknown"] * 2
    assert "not started here" in str(told[0].result)
    assert "was started, and the work was broken off" not in str(told[0].result)


def test_the_model_is_told_apart_what_was_started_and_what_may_be_started_elsewhere() -> None:
    till = cut(ThreeMethods(), 3)
    fork_run(till.agent.store, "p", "f")
    plan = till.agent.plan("f")
    assert (plan.in_doubt, plan.to_run, plan.ask_model) == (("call_1", "call_2"), (), True)
    told = [e.result for e in till.agent.resume("f").events if e.type == "tool_result"]
    assert ["the work was broken off" in str(text) for text in told] == [True, False]


def test_an_unclaimed_call_that_the_parent_made_meanwhile_is_found_out() -> None:
    till = cut(ThreeMethods(), 3, reconcile=lambda ctx: Happened(f"receipt of {ctx.args['n']}"))
    fork = till.agent.fork("p", fork_id="f")
    assert not till.starts
    told = [m["content"] for m in fork.messages if m["role"] == "tool"]
    assert told == ["receipt of 1", "receipt of 2"]


def test_that_the_parent_has_not_made_an_unclaimed_call_yet_starts_nothing_in_the_fork() -> None:
    till = cut(ThreeMethods(), 3, reconcile=lambda ctx: DidNotHappen())
    till.agent.fork("p", fork_id="f")
    assert not till.starts
    assert till.agent.resume("p").status == "completed"
    assert sorted(till.starts) == ["p:2:0", "p:2:1"]


def test_an_unclaimed_call_can_wait_for_a_person_who_starts_or_settles_it() -> None:
    till = cut(ThreeMethods(), 3, on_doubt="park")
    fork = till.agent.fork("p", fork_id="f")
    assert fork.status == "paused"
    assert [call.in_doubt for call in fork.pending] == [True, True]
    assert "forked from" in str(fork.pending[1].reason)
    till.agent.settle("f", "call_1", "paid by the parent")
    till.agent.approve("f", "call_2")
    done = till.agent.resume("f")
    assert (done.status, till.starts) == ("completed", {"p:2:1": 1})
    assert [m["content"] for m in done.messages if m["role"] == "tool"] == [
        "paid by the parent",
        "paid",
    ]


@pytest.mark.parametrize("effect", [None, "read", "idempotent"])
def test_unclaimed_calls_that_may_be_repeated_are_made_by_the_fork_with_its_parents_keys(
    effect: Any,
) -> None:
    till = cut(ThreeMethods(), 2, effect=effect)
    assert till.agent.fork("p", fork_id="f").status == "completed"
    assert len(till.starts) == 2
    settled = {key.startswith("p:") for key in till.starts}
    assert settled == {effect == "idempotent"}  # else the model was asked anew


def test_a_transactional_call_is_made_by_each_branch_for_itself(tmp_path: Any) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        whole = Till(store, effect="transactional").agent.run("go", run_id="whole").events
        store.append_many("p", whole[:3])
        till = Till(store, effect="transactional")
        till.agent.fork("p", fork_id="f")
        till.agent.resume("p")
        assert till.starts == {"p:2:0": 2, "p:2:1": 2}


@pytest.mark.parametrize("effect", [None, "once", "idempotent"])
def test_consent_that_is_not_used_up_starts_a_call_in_one_run_only(store: Any, effect: Any) -> None:
    options: dict[str, Any] = {"effect": effect, "needs_approval": True}
    till = Till(store, ALONE, **options)
    till.agent.run("go", run_id="p")
    till.agent.approve("p", "call_1", args={"n": 7}, by="ada")
    fork = till.agent.fork("p", fork_id="f")
    assert fork.status == "paused"
    [call] = fork.pending
    assert (call.args, call.reason, call.in_doubt) == ({"n": 7}, CONSENT_STAYS, True)
    assert till.agent.plan("f").waiting == ("call_1",)
    assert till.agent.resume("p").status == "completed"
    assert till.starts == {"p:2:0": 1}
    assert till.agent.resume("f").status == "paused"

    till.agent.settle("f", "call_1", "paid already")
    assert till.agent.resume("f").status == "completed"
    assert till.starts == {"p:2:0": 1}


def test_a_person_may_have_the_fork_make_the_call_too(store: Any) -> None:
    till = Till(store, ALONE, needs_approval=True)
    till.agent.run("go", run_id="p")
    till.agent.approve("p", "call_1")
    till.agent.fork("p", fork_id="f")
    till.agent.approve("f", "call_1", by="bob")
    for run_id in ("p", "f"):
        assert till.agent.resume(run_id).status == "completed"
        assert [e.by for e in store.load(run_id) if e.status == "approved"][-1] == (
            "bob" if run_id == "f" else None
        )
    assert till.starts == {"p:2:0": 2}


def test_a_refusal_holds_in_a_fork_too(store: Any) -> None:
    till = Till(store, ALONE, needs_approval=True)
    till.agent.run("go", run_id="p")
    till.agent.reject("p", "call_1", "too much", by="ada")
    fork = till.agent.fork("p", fork_id="f")
    assert (fork.status, till.starts) == ("completed", {})
    assert "ada did not approve" in fork.messages[-2]["content"]


def test_a_fork_that_could_not_go_on_is_not_made(store: Any) -> None:
    till = Till(store, ALONE, needs_approval=True)
    till.agent.run("go", run_id="p")
    till.agent.approve("p", "call_1")
    bare = Agentor("A", "sys", model=ScriptedModel([]), store=store)
    with pytest.raises(ConfigError, match="needs the tool 'pay'"):
        bare.fork("p", fork_id="f")
    assert store.list_runs() == ["p"]


def test_a_new_batch_of_the_fork_is_its_own() -> None:
    store = MemoryStore()
    again = [*SCRIPT[:1], calls(("pay", {"n": 3})), says("done")]
    till = cut(store, 4, again)
    assert till.agent.fork("p", fork_id="f").status == "completed"
    assert [key.split(":")[0] for key in till.starts] == ["f"]
