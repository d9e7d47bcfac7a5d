"""`agentor enqueue`, `worker`, `rehearse` and `resume --plan`: working off runs, and looking before a deploy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from stored_runs import BODIES, Program, read_json, write

from agentor import FileStore, SQLiteStore

SHOP = """
from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls, says


@function_tool(needs_approval=True)
def refund(amount: int) -> str:
    return f"refunded {amount}"


@function_tool(effect="once")
def pay(amount: int) -> str:
    return f"paid {amount}"


def down(messages):
    raise ConnectionError("the provider is \\x1b[31mdown")


def shop(model, tools=(refund, pay), instructions=None, **settings):
    return Agentor("Shop", instructions, model=model, tools=tools, **settings)


asks = ScriptedModel.by_turn([calls(("refund", {"amount": 40})), says("done")])
agent = shop(asks)
unlucky = shop(ScriptedModel(down))
without = shop(asks, tools=[pay])
changed = shop(asks, instructions="Be brief.")
strict = shop(asks, instructions="Be brief.", on_change="refuse")
at_home = shop(asks, store="home/")
"""


@pytest.fixture(autouse=True)
def shop(place: Path) -> None:
    (place / "shop.py").write_text(SHOP)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def count_events(store_path: str) -> int:
    store: Any = FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path)
    try:
        return sum(len(store.load(run_id)) for run_id in store.list_runs())
    finally:
        store.close()


def in_doubt(store_path: str, run_id: str) -> None:
    """A run whose process died while it paid."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "pay", "arguments": '{"amount":3}'},
    }
    start = BODIES[0] | {"agent": "Shop"}
    claim = {"type": "tool_call", "name": "pay", "args": {"amount": 3}, "call_id": "c1"}
    asked = {"type": "generation", "turn": 1, "calls": [call], "finish_reason": "tool_calls"}
    write(store_path, run_id, [start, asked, claim | {"turn": 1, "effect": "once"}])


# Enqueue and worker -----------------------------------------------------------------------------------------------


def test_what_is_enqueued_is_finished_by_a_worker(program: Program, store_path: str) -> None:
    said = program("enqueue", "app.py:agent", "How is London?", "--id", "r", "--store", store_path)
    assert (said.stdout, said.exit_code) == ("r\n", 0)
    assert "queued" in program("show", "r", "--store", store_path).stdout
    worked = program("worker", "app.py:agent", "--until-idle", "--store", store_path)
    assert worked.stdout.endswith("  r  attempt 1  completed\n")
    assert worked.stderr == "Working for 'Weather Agent'. Ctrl-C stops.\n1 completed\n"
    assert worked.exit_code == 0


def test_the_summary_counts_the_runs_that_are_not_named_any_more(
    program: Program, store_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentor.worker.MOST_NAMED", 1)
    for run_id in ("a", "b", "c"):
        program("enqueue", "app.py:agent", "How is London?", "--id", run_id, "--store", store_path)
    worked = program("worker", "app.py:agent", "--until-idle", "--store", store_path)
    assert worked.stderr.endswith("\n3 completed\n")


def test_enqueue_as_json_names_the_run_it_made(program: Program, store_path: str) -> None:
    told = read_json(program("enqueue", "app.py:agent", "go", "--store", store_path, "--json"))
    assert told["agent"] == "Weather Agent"
    row = read_json(program("show", told["run_id"], "--store", store_path, "--json"))
    assert (row["status"], row["turns"]) == ("unfinished", 0)


def test_enqueue_refuses_an_id_that_is_taken_and_an_empty_input(
    program: Program, stored: str
) -> None:
    taken = program("enqueue", "app.py:agent", "go", "--id", "killed", "--store", stored)
    assert "already exists" in taken.stderr
    assert taken.exit_code == 1
    assert program("enqueue", "app.py:agent", " ", "--store", stored).exit_code == 2


def test_an_agent_with_a_store_of_its_own_enqueues_and_works_there(
    program: Program, place: Path
) -> None:
    program("enqueue", "shop.py:at_home", "go", "--id", "r")
    assert (place / "home" / "r.jsonl").exists()
    worked = program("worker", "shop.py:at_home", "--until-idle", "--json")
    assert [step["outcome"] for step in lines(worked)] == ["paused"]


def test_a_worker_needs_a_store_that_is_there(program: Program, place: Path) -> None:
    result = program("worker", "app.py:agent", "--store", "mistyped.db")
    assert "there is no store at 'mistyped.db'" in result.stderr
    assert "--make-store" in result.stderr
    assert result.exit_code == 2
    assert not (place / "mistyped.db").exists()
    assert "--make-store" in program("worker", "shop.py:at_home").stderr
    assert "--make-store" not in program("rehearse", "shop.py:at_home").stderr


def test_a_worker_takes_what_a_dead_process_left_and_tells_each_attempt_as_json(
    program: Program, stored: str
) -> None:
    (step,) = lines(program("worker", "app.py:agent", "--until-idle", "--store", stored, "--json"))
    assert step.pop("at") > 0
    assert step == {"run_id": "killed", "attempt": 2, "outcome": "completed", "error": None}


def test_a_run_that_keeps_failing_is_parked_and_the_exit_code_says_so(
    program: Program, store_path: str
) -> None:
    program("enqueue", "shop.py:unlucky", "go", "--id", "r", "--store", store_path)
    words = ("worker", "shop.py:unlucky", "--until-idle", "--max-attempts", "2", "--backoff", "0")
    result = program(*words, "--store", store_path)
    told = [line.split("  ", 2)[2] for line in result.stdout.splitlines()]
    assert told == [
        "attempt 1  failed  ConnectionError: the provider is down",
        "attempt 2  failed  ConnectionError: the provider is down",
        "attempt 2  parked  Gave up after 2 attempts; the last error: ConnectionError: the provider is down",
    ]
    assert result.stderr.endswith("1 parked\n")
    assert result.exit_code == 1
    assert program(*words, "--store", store_path).exit_code == 0  # it is left alone


def test_a_run_that_this_code_cannot_resume_is_told_once_and_left_alone(
    program: Program, store_path: str
) -> None:
    program("enqueue", "shop.py:agent", "go", "--id", "r", "--store", store_path)
    program("worker", "shop.py:agent", "--until-idle", "--store", store_path)
    program("approve", "r", "call_1", "--store", store_path)
    before = count_events(store_path)
    words = ("worker", "shop.py:without", "--until-idle", "--store", store_path, "--json")
    result = program(*words)
    (step,) = lines(result)
    assert step["outcome"] == "refused"
    assert "it has been working with tools that this agent does not have (refund)" in step["error"]
    assert result.exit_code == 1
    assert count_events(store_path) == before


def test_a_worker_goes_on_after_a_decision(program: Program, store_path: str) -> None:
    program("enqueue", "shop.py:agent", "go", "--id", "r", "--store", store_path)
    words = ("worker", "shop.py:agent", "--until-idle", "--store", store_path, "--json")
    assert [step["outcome"] for step in lines(program(*words))] == ["paused"]
    assert lines(program(*words)) == []
    program("approve", "r", "call_1", "--store", store_path)
    assert [step["outcome"] for step in lines(program(*words))] == ["completed"]


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_order_can_be_chosen(program: Program, place: Path, newest_first: bool) -> None:
    for run_id in ("first", "second", "third"):
        program("enqueue", "app.py:agent", "go", "--id", run_id, "--store", "runs.db")
    words = ("worker", "app.py:agent", "--until-idle", "--concurrency", "1", "--json")
    steps = lines(program(*words, *["--newest-first"] * newest_first))
    ids = [step["run_id"] for step in steps]
    assert ids == (["third", "second", "first"] if newest_first else ["first", "second", "third"])


@pytest.mark.parametrize(
    "option",
    [("--concurrency", "0"), ("--max-attempts", "0"), ("--backoff", "-1"), ("--grace", "x")],
)
def test_numbers_that_cannot_be_meant_are_wrong_usage(
    program: Program, stored: str, option: tuple[str, str]
) -> None:
    assert program("worker", "app.py:agent", *option, "--store", stored).exit_code == 2


# Rehearse ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(program: Program, store_path: str) -> str:
    """A store with a paused run of the shop, one in doubt, and others that are not the shop's or are finished."""
    program("enqueue", "shop.py:agent", "go", "--id", "refund", "--store", store_path)
    program("worker", "shop.py:agent", "--until-idle", "--store", store_path)
    in_doubt(store_path, "doubt")
    write(store_path, "finished", [BODIES[0] | {"agent": "Shop"}, *BODIES[1:]])
    write(store_path, "another", BODIES[:4])
    return store_path


def test_rehearse_tells_what_a_resume_of_each_run_would_do_and_writes_nothing(
    program: Program, waiting: str
) -> None:
    before = count_events(waiting)
    result = program("rehearse", "shop.py:agent", "--store", waiting)
    assert result.stdout.splitlines() == [
        "run     status      a resume would",
        "doubt   unfinished  tell the model that nobody knows of 1 call, ask the model",
        "refund  paused      wait for 1 decision",
        "2 runs rehearsed: none would be refused.",
    ]
    assert result.exit_code == 0
    assert count_events(waiting) == before


def test_rehearse_finds_the_tool_that_is_gone(program: Program, waiting: str) -> None:
    result = program("rehearse", "shop.py:without", "--store", waiting)
    assert "refund  paused      be refused" in result.stdout
    assert "run refund: call call_1 needs the tool 'refund'" in result.stdout
    assert "The agent has changed since 1 run began:\n  tool refund was removed" in result.stdout
    assert "2 runs rehearsed: 1 would be refused." in result.stdout
    assert result.exit_code == 1


def test_rehearse_tells_which_runs_workers_would_leave_alone_since_a_tool_is_gone(
    program: Program, store_path: str
) -> None:
    program("enqueue", "shop.py:agent", "go", "--id", "queued", "--store", store_path)
    words = ("rehearse", "shop.py:without", "--store", store_path)
    result = program(*words)
    assert "queued  unfinished  ask the model" in result.stdout
    assert "run queued: workers leave it alone: it has been working with tools" in result.stdout
    assert "1 run rehearsed: none would be refused, 1 left alone by workers." in result.stdout
    assert result.exit_code == 1
    told = read_json(program(*words, "--json"))
    assert (told["ok"], told["runs"][0]["refused"]) == (False, False)
    assert "(refund)" in told["runs"][0]["left_alone"]


def test_rehearse_lets_a_change_pass_unless_the_agent_refuses_changes(
    program: Program, waiting: str
) -> None:
    changed = program("rehearse", "shop.py:changed", "--store", waiting)
    assert "  instructions:\n    +Be brief." in changed.stdout
    assert changed.exit_code == 0
    refused = program("rehearse", "shop.py:strict", "--store", waiting)
    assert (
        "run refund: the agent has changed, and is built with on_change='refuse'" in refused.stdout
    )
    assert refused.exit_code == 1


def test_rehearse_as_json(program: Program, waiting: str) -> None:
    told = read_json(program("rehearse", "shop.py:without", "--store", waiting, "--json"))
    assert (told["ok"], told["agent"]) == (False, "Shop")
    doubt, refund = told["runs"]
    assert (doubt["run_id"], doubt["in_doubt"], doubt["refused"]) == ("doubt", ["c1"], False)
    assert (refund["run_id"], refund["status"], refund["refused"]) == ("refund", "paused", True)
    (change,) = refund["changes"]
    assert (change["part"], change["name"], change["after"]) == ("tool", "refund", None)
    assert change["before"]["needs_approval"] is True


def test_rehearse_says_what_the_resume_then_says(program: Program, waiting: str) -> None:
    for run in read_json(program("rehearse", "shop.py:strict", "--store", waiting, "--json"))[
        "runs"
    ]:
        before = count_events(waiting)
        resumed = program("resume", "shop.py:strict", run["run_id"], "--store", waiting)
        assert (count_events(waiting) == before) == run["refused"]
        assert "has changed" in resumed.stderr or not run["refused"]


def test_rehearse_of_nothing_is_fine(program: Program, stored: str) -> None:
    result = program("rehearse", "shop.py:agent", "--store", stored)
    assert (result.stdout, result.exit_code) == ("0 runs rehearsed: none would be refused.\n", 0)


def test_rehearse_of_a_damaged_log_is_refused_where_the_store_knows_whose_it_is(
    program: Program, place: Path
) -> None:
    in_doubt("runs.db", "torn")
    with SQLiteStore("runs.db") as store:
        store._write(lambda db: db.execute("DROP TRIGGER agentor_events_no_update"))
        store._write(lambda db: db.execute("UPDATE agentor_events SET body = '[1]' WHERE seq = 2"))
    result = program("rehearse", "shop.py:agent")
    assert "run torn: damaged at seq 2" in result.stdout
    assert result.exit_code == 1


def test_rehearse_leaves_out_a_damaged_file_that_may_be_anybodys(
    program: Program, place: Path
) -> None:
    in_doubt("runs/", "torn")
    path = place / "runs" / "torn.jsonl"
    first, second, third = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[:20] + "\n" + third)
    result = program("rehearse", "shop.py:agent", "--store", "runs/")
    assert "run 'torn' is damaged at seq 2" in result.stderr
    assert result.exit_code == 0


# resume --plan ----------------------------------------------------------------------------------------------------


def test_resume_plan_tells_and_does_nothing(program: Program, waiting: str) -> None:
    before = count_events(waiting)
    result = program("resume", "shop.py:changed", "doubt", "--plan", "--store", waiting)
    assert result.stdout.splitlines() == [
        "run doubt (unfinished)",
        "  tell the model that nobody knows what became of c1",
        "  ask the model",
    ]
    assert result.exit_code == 0
    assert count_events(waiting) == before


def test_resume_plan_of_a_resume_that_would_be_refused(program: Program, waiting: str) -> None:
    words = ("resume", "shop.py:without", "refund", "--plan", "--store", waiting)
    result = program(*words)
    assert result.stdout.splitlines()[1:3] == [
        "  nothing: the resume would be refused",
        "  problem: call call_1 needs the tool 'refund', which this agent does not have: add it, or give the call up "
        f"(`agentor reject refund call_1 --reason TEXT --give-up --store {waiting}`)",
    ]
    assert "ask the model" not in result.stdout
    assert "tool refund was removed" in result.stdout
    assert result.exit_code == 1
    told = read_json(program(*words, "--json"))
    assert (told["run_id"], told["waiting"]) == ("refund", [])
    assert len(told["problems"]) == 1


def test_resume_plan_of_a_finished_run_is_nothing(program: Program, waiting: str) -> None:
    result = program("resume", "shop.py:strict", "finished", "--plan", "--store", waiting)
    assert result.stdout == "run finished (completed)\n  nothing\n"
    assert result.exit_code == 0
