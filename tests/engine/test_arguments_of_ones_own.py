"""Whoever is given a call's arguments may change them, and nobody else notices: neither the log nor who comes next."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, DidNotHappen, MemoryStore, RunContext
from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.replay import replay, verify
from agentor.engine.tools import Tool
from agentor.testing import ScriptedModel, calls, says

ASKED = {"order": {"to": ["Ada"], "amount": 5}}
SCHEMA = {"type": "object", "properties": {"order": {"type": "object"}}}
SCRIPT = [calls(("pay", ASKED)), says("done")]


def overwrites(args: Any) -> None:
    args["order"] = {"amount": 500}


def reaches_into(args: Any) -> None:
    args["order"]["amount"] = 500
    args["order"]["to"].append("Eve")


def spoils(args: Any) -> None:
    args["order"]["now"] = object()  # which no JSON can say


def clears(args: Any) -> None:
    args.clear()


MEDDLERS = [overwrites, reaches_into, spoils, clears]
Meddler = Callable[[Any], None]


class Shop:
    """Everybody who is given the arguments notes them, and meddles with them. The tool is one made by hand: no schema
    reads its arguments anew."""

    def __init__(self, store: MemoryStore, meddle: Meddler, asks: bool = False) -> None:
        self.given: list[Any] = []

        def note(*several: Any) -> None:
            for args in several:
                self.given.append(copy.deepcopy(args))
            for args in several:
                meddle(args)

        def needs_approval(ctx: RunContext, args: dict[str, Any]) -> bool:
            note(ctx.args, args)
            return asks

        def reconcile(ctx: RunContext) -> DidNotHappen:
            note(ctx.args)
            return DidNotHappen()

        def pay(ctx: RunContext, **args: Any) -> str:
            note(ctx.args, args)
            return "paid"

        tool = Tool(
            "pay",
            "Pay.",
            SCHEMA,
            pay,
            "ctx",
            effect="once",
            reconcile=reconcile,
            needs_approval=needs_approval,
        )
        self.agent = Agentor("A", model=ScriptedModel.by_turn(SCRIPT), tools=[tool], store=store)


def said_of_the_call(log: list[Event]) -> list[Any]:
    return [event.args for event in log if event.type == "tool_call"]


@pytest.mark.parametrize("meddle", MEDDLERS)
def test_what_a_predicate_does_to_the_arguments_is_neither_logged_nor_started(
    meddle: Meddler,
) -> None:
    store = MemoryStore()
    shop = Shop(store, meddle)
    assert shop.agent.run("go", run_id="r").status == "completed"
    assert shop.given == [ASKED] * 4  # the predicate's, and the tool's
    assert said_of_the_call(store.load("r")) == [ASKED]
    assert verify(store.load("r")) == []


@pytest.mark.parametrize("meddle", MEDDLERS)
def test_what_reconcile_does_to_the_arguments_does_not_reach_the_tool(meddle: Meddler) -> None:
    store, dead = MemoryStore(), MemoryStore()
    Shop(store, lambda args: None).agent.run("go", run_id="r")
    until = next(e.seq for e in store.load("r") if e.type == "tool_call")
    assert until is not None
    dead.append_many("r", store.load("r")[:until])
    shop = Shop(dead, meddle)
    assert shop.agent.resume("r").status == "completed"
    assert len(shop.given) >= 3  # reconcile's and the tool's
    assert all(args == ASKED for args in shop.given)
    assert all(args == ASKED for args in said_of_the_call(dead.load("r")))
    assert dead.load("r")[until + 1].result == "paid"


@pytest.mark.parametrize("meddle", MEDDLERS)
def test_a_person_is_shown_and_the_model_is_told_what_was_changed_by_the_person_alone(
    meddle: Meddler,
) -> None:
    store, edited = MemoryStore(), {"order": {"to": ["Bob"], "amount": 1}}
    [shown] = Shop(store, meddle, asks=True).agent.run("go", run_id="r").pending
    assert shown.args == ASKED
    assert [e.args_digest for e in store.load("r") if e.args_digest] == [strict_json.digest(ASKED)]
    meddle(shown.args)
    shop = Shop(store, meddle, asks=True)
    shop.agent.approve("r", "call_1", args=edited)
    shop.agent.resume("r")
    assert shop.given[-2:] == [edited, edited]
    assert said_of_the_call(store.load("r")) == [edited]
    [told] = [e.result for e in store.load("r") if e.type == "tool_result"]
    assert told == f"(A person changed the arguments to {strict_json.dumps(edited)}.)\npaid"


@pytest.mark.parametrize("meddle", MEDDLERS)
async def test_who_reads_along_does_not_change_what_is_started(meddle: Meddler) -> None:
    store = MemoryStore()
    shop = Shop(store, lambda args: None)
    async for event in shop.agent.astream("go", run_id="r"):
        if event.type == "tool_call":
            meddle(event.args)
    assert shop.given[-2:] == [ASKED, ASKED]
    assert said_of_the_call(store.load("r")) == [ASKED]
    assert replay(store.load("r")).status == "completed"
