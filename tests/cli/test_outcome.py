"""What `resume` and `fork` tell when the run waits for a person, or began elsewhere than was asked."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest
from stored_runs import BODIES, Program, read_json, write

from agentor import FileStore, SQLiteStore
from agentor.engine.store import owner_id

SHOP = """
from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls


@function_tool(needs_approval=True)
def refund(order: str, amount: int) -> str:
    return f"refunded {amount} for {order}"


@function_tool(effect="once", on_doubt="park")
def pay(amount: int) -> str:
    return "paid"


script = [
    calls(("refund", {"order": "A-17\\u202e", "amount": 40}), ("refund", {"order": "B", "amount": 1})),
    "Refunded.",
]
desk = Agentor("Desk", model=ScriptedModel.by_turn(script), tools=[refund, pay])
at_home = Agentor("Desk", model=ScriptedModel.by_turn(script), tools=[refund, pay], store="home/")
"""
IN_DOUBT = [
    {"type": "run_start", "agent": "Desk", "messages": [{"role": "user", "content": "Pay."}]},
    {
        "type": "generation",
        "turn": 1,
        "calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "pay", "arguments": '{"amount":4}'},
            }
        ],
    },
    {
        "type": "tool_call",
        "name": "pay",
        "args": {"amount": 4},
        "call_id": "c1",
        "turn": 1,
        "effect": "once",
    },
]


@pytest.fixture
def shop(place: Path, program: Program) -> Program:
    (place / "shop.py").write_text(SHOP)
    return program


def commands(told: str) -> list[list[str]]:
    """The commands that a text names, in words."""
    return [shlex.split(words) for words in re.findall(r"agentor ((?!APP).*)", told)]


@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_a_run_that_pauses_names_the_calls_and_the_commands_that_decide(
    shop: Program, store_path: str, verb: str
) -> None:
    shop("enqueue", "shop.py:desk", "Refund.", "--id", "r", "--store", store_path)
    result = shop(verb, "shop.py:desk", "r", "--store", store_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    run_id = re.findall(r"^run (\S+) paused", result.stderr, re.M)[0]
    calls = re.findall(r"waits for a person: (\S+)  (.*)", result.stderr)
    assert [written for _, written in calls] == [
        'refund(order="A-17\\u202e", amount=40)',
        'refund(order="B", amount=1)',
    ]
    where = ["--store", store_path]
    waits = json.loads(shop("pending", "--store", store_path, "--json").stdout)
    questions = [str(call["question"]) for call in waits if call["run_id"] == run_id]
    named = []
    for (call_id, _), question in zip(calls, questions, strict=True):
        named += [
            ["approve", run_id, call_id, "--question", question, *where],
            ["reject", run_id, call_id, "--reason", "TEXT", "--question", question, *where],
        ]
    assert commands(result.stderr) == [*named, ["resume", "shop.py:desk", run_id, *where]]


def test_the_commands_that_are_named_work_as_they_stand(shop: Program, place: Path) -> None:
    """Also when the store is the agent's own, of which the command line was told nothing."""
    shop("enqueue", "shop.py:at_home", "Refund.", "--id", "r")
    paused = shop("resume", "shop.py:at_home", "r").stderr
    for words in commands(paused)[:1]:
        assert shop(*words).exit_code == 0
    again = shop("resume", "shop.py:at_home", "r").stderr
    approve, reject, resume = commands(again)
    assert resume[-2:] == ["--store", "home/"]
    assert shop(*reject).exit_code == 0
    assert shop(*resume).stdout == "Refunded.\n"
    assert approve[1:3] == reject[1:3]


def test_no_command_that_is_named_is_refused_whatever_the_calls_wait_for(shop: Program) -> None:
    """One may have happened, the other was never started: what goes for the one does not for the other."""
    start, generation, call = IN_DOUBT
    args = '{"order":"A","amount":500}'
    other = {"id": "c0", "type": "function", "function": {"name": "refund", "arguments": args}}
    both = {**generation, "calls": [other, *generation["calls"]]}
    verbs = []
    for number in range(6):
        write("mix.db", f"r{number}", [start, both, call])
        told = shop("resume", "shop.py:desk", f"r{number}", "--store", "mix.db").stderr
        words = commands(told)[number]
        verbs.append((words[0], words[2]))
        done = shop(*words)
        assert "Error" not in done.stderr, done.stderr
        assert done.exit_code == (1 if words[0] == "resume" else 0)  # paused, as before
    assert verbs == [
        *(("approve", "c0"), ("reject", "c0")),
        *(("approve", "c1"), ("reject", "c1"), ("settle", "c1")),
        ("resume", "r5"),
    ]


def test_a_call_in_doubt_says_so_and_can_be_settled(shop: Program, store_path: str) -> None:
    write(store_path, "r", IN_DOUBT)
    result = shop("resume", "shop.py:desk", "r", "--store", store_path)
    assert "c1  pay(amount=4)  (in doubt: it may have happened; key r:2:0)" in result.stderr
    assert ["settle", "r", "c1", "--result", "TEXT"] in [w[:5] for w in commands(result.stderr)]


def test_the_key_of_a_call_in_doubt_is_shown_wherever_somebody_may_look_for_it(
    shop: Program, store_path: str
) -> None:
    write(store_path, "r", IN_DOUBT)
    doubt = {"call_id": "c1", "name": "pay", "args": {"amount": 4}, "idempotency_key": "r:2:0"}
    where = ("--store", store_path)
    for is_asked in (False, True):
        shown = shop("show", "r", *where).stdout
        assert "in doubt  c1, key r:2:0: pay(amount=4)" in shown
        assert read_json(shop("show", "r", "--json", *where))["in_doubt"] == [doubt]
        if not is_asked:
            told = read_json(shop("resume", "shop.py:desk", "r", "--json", *where))
            assert told["pending"][0]["idempotency_key"] == "r:2:0"
    assert "\n    key r:2:0\n" in shop("pending", *where).stdout
    assert read_json(shop("pending", "--json", *where))[0]["idempotency_key"] == "r:2:0"
    shop("settle", "r", "c1", "--result", "paid", *where)
    assert "in doubt" not in shop("show", "r", *where).stdout
    assert read_json(shop("show", "r", "--json", *where))["in_doubt"] == []


def test_a_call_that_a_worker_is_at_is_in_no_doubt(shop: Program, store_path: str) -> None:
    write(store_path, "r", IN_DOUBT)
    store = FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path)
    with contextlib.closing(store):
        lease = store.acquire("r", owner_id(), 30.0)
        assert read_json(shop("show", "r", "--json", "--store", store_path))["in_doubt"] == []
        store.release(lease)


def test_to_settle_what_nobody_was_asked_about_yet_names_the_command_that_asks(
    shop: Program, store_path: str
) -> None:
    write(store_path, "r", IN_DOUBT)
    refused = shop("settle", "r", "c1", "--result", "paid", "--store", store_path)
    assert refused.exit_code == 1
    assert (
        f"nobody has been asked about it yet: `agentor resume APP r --store {store_path}` goes on"
        in refused.stderr
    )


def test_a_call_that_waits_before_its_start_shows_no_key_in_words(
    shop: Program, store_path: str
) -> None:
    shop("enqueue", "shop.py:desk", "Refund.", "--id", "r", "--store", store_path)
    assert "key" not in shop("resume", "shop.py:desk", "r", "--store", store_path).stderr
    assert "key" not in shop("pending", "--store", store_path).stdout


def test_as_json_the_calls_that_wait_are_in_the_document(shop: Program, store_path: str) -> None:
    shop("enqueue", "shop.py:desk", "Refund.", "--id", "r", "--store", store_path)
    told = read_json(shop("resume", "shop.py:desk", "r", "--json", "--store", store_path))
    assert told["status"] == "paused"
    assert [call["name"] for call in told["pending"]] == ["refund", "refund"]
    assert told["pending"][1]["args"] == {"order": "B", "amount": 1}
    assert (told["forked_from"], told["forked_at"]) == (None, None)


@pytest.mark.parametrize(("at", "branched"), [(1, 1), (2, 1), (3, 1), (4, 4), (5, 5)])
def test_a_fork_that_left_its_parent_earlier_than_asked_says_where(
    program: Program, store_path: str, at: int, branched: int
) -> None:
    write(store_path, "parent", BODIES)
    words = ("fork", "app.py:agent", "parent", "Go on.", "--at", str(at), "--store", store_path)
    result = program(*words)
    told = f"Branched off after seq {branched}, not {at}"
    assert (told in result.stderr) is (at != branched)
    assert read_json(program(*words, "--json"))["forked_at"] == branched
