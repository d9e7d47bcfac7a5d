"""Idempotency keys: the same for every start of one call, and of no other call of any run that ever was."""

from __future__ import annotations

from typing import Any

import pytest

from agentor import Agentor, MemoryStore, RunContext, function_tool
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import types

SCRIPT = [calls(("pay", {"n": 1})), says("done")]


class Desk:
    """Pays, and knows under which keys."""

    def __init__(self, store: Any) -> None:
        self.keys: list[str] = []

        @function_tool(effect="idempotent")
        def pay(ctx: RunContext, n: int) -> str:
            """Pay."""
            assert ctx.idempotency_key is not None
            self.keys.append(ctx.idempotency_key)
            return "paid"

        self.agent = Agentor("A", model=ScriptedModel.by_turn(SCRIPT), tools=[pay], store=store)


def test_a_run_that_takes_the_id_of_a_deleted_one_has_keys_of_its_own(store: Any) -> None:
    if not hasattr(store, "delete"):
        pytest.skip("a store that deletes nothing")
    desk = Desk(store)
    for _ in range(2):
        desk.agent.run("go", run_id="order-17")
        store.delete("order-17")
    assert len(set(desk.keys)) == 2


def test_runs_of_one_id_in_two_stores_have_keys_of_their_own() -> None:
    desks = [Desk(MemoryStore()) for _ in range(2)]
    for desk in desks:
        desk.agent.run("go", run_id="order-17")
    assert desks[0].keys != desks[1].keys


def test_a_fork_that_takes_the_id_of_a_deleted_one_has_keys_of_its_own(store: Any) -> None:
    if not hasattr(store, "delete"):
        pytest.skip("a store that deletes nothing")
    desk = Desk(store)
    desk.agent.run("go", run_id="r")
    for _ in range(2):
        desk.agent.fork("r", fork_id="f", at=1)
        store.delete("f")
    assert len(set(desk.keys)) == 3


@pytest.mark.parametrize("queued", [False, True])
def test_a_call_has_one_key_however_often_its_run_is_resumed_and_copied(
    store: Any, queued: bool
) -> None:
    desk = Desk(store)
    if queued:
        desk.agent.enqueue("go", run_id="r")
        desk.agent.resume("r")
    else:
        desk.agent.run("go", run_id="r")
    log = store.load("r")
    claimed = types(log).index("tool_call") + 1
    for _ in range(2):  # in other stores, by other processes: the same run
        again = Desk(MemoryStore())
        again.agent.store.append_many("r", log[:claimed])
        again.agent.resume("r")
        assert again.keys == desk.keys[:1]
