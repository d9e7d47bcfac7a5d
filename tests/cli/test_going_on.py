"""`agentor resume` and `fork`: the run goes on, the answer is printed, the exit code says how it ended."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from stored_runs import BODIES, Program, read_json, write

from agentor import Agentor, FileStore, SQLiteStore
from agentor.cli import main
from agentor.engine.store import owner_id


def test_resume_finishes_a_killed_run_and_runs_no_tool_again(
    program: Program, stored: str, place: Path
) -> None:
    result = program("resume", "app.py:agent", "killed", "--store", stored)
    assert result.stdout == "It is sunny.\n"
    assert "run killed completed" in result.stderr
    assert result.exit_code == 0
    assert not (place / "calls.txt").exists()
    assert "completed" in program("show", "killed", "--store", stored).stdout


def test_resume_of_a_finished_run_prints_its_answer_again(program: Program, stored: str) -> None:
    before = program("show", "finished", "--events", "--store", stored).stdout
    assert program("resume", "app.py:agent", "finished", "--store", stored).stdout == "Sunny.\n"
    assert program("show", "finished", "--events", "--store", stored).stdout == before


def test_resume_as_json(program: Program, stored: str) -> None:
    told = read_json(program("resume", "app.py:agent", "killed", "--store", stored, "--json"))
    assert (told["run_id"], told["status"], told["output"]) == (
        "killed",
        "completed",
        "It is sunny.",
    )
    assert (told["error"], told["unsaved"]) == (None, 0)
    assert told["usage"]["total_tokens"] >= 15


def test_a_typed_answer_is_printed_as_json(program: Program, stored: str) -> None:
    words = ("resume", "app.py:typed", "killed", "--store", stored)
    assert json.loads(program(*words).stdout) == {"sky": "blue", "degrees": 22}
    assert read_json(program(*words, "--json"))["output"] == {"sky": "blue", "degrees": 22}


def test_ctrl_c_says_that_the_run_is_saved(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Agentor, "resume", interrupted)
    result = program("resume", "app.py:agent", "killed", "--store", stored)
    goes_on = f"`agentor resume app.py:agent killed --store {stored}` goes on with it."
    assert f"Run killed is saved up to here; {goes_on}" in result.stderr
    assert result.exit_code == 130


@pytest.mark.parametrize("is_there", [True, False])
def test_ctrl_c_of_a_fork_names_the_fork_and_not_its_parent(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        interrupt = KeyboardInterrupt()
        if is_there:
            interrupt.add_note("The fork is run 'f': resume it, or fork again.")
        raise interrupt

    monkeypatch.setattr(Agentor, "fork", interrupted)
    result = program("fork", "app.py:agent", "killed", "--store", stored)
    goes_on = f"`agentor resume app.py:agent f --store {stored}` goes on with it, or fork again."
    assert (f"The fork is run 'f': {goes_on}" in result.stderr) == is_there
    assert "killed" not in result.stderr
    assert result.exit_code == 130


def test_resume_uses_the_agents_own_store_unless_another_is_named(
    program: Program, place: Path
) -> None:
    write("home/", "killed", BODIES[:4])
    write("runs.db", "killed-too", BODIES[:4])
    env = {"AGENTOR_STORE": "runs.db"}
    assert program("resume", "app.py:at_home", "killed", env=env).exit_code == 0
    assert program("resume", "app.py:at_home", "killed-too").exit_code == 1
    assert program("resume", "app.py:at_home", "killed-too", "--store", "runs.db").exit_code == 0


def test_the_environment_names_the_store_of_an_agent_without_one(
    program: Program, place: Path
) -> None:
    write("other.db", "killed", BODIES[:4])
    env = {"AGENTOR_STORE": "other.db"}
    assert program("resume", "app.py:agent", "killed", env=env).stdout == "It is sunny.\n"


def test_a_run_that_does_not_complete_ends_with_exit_code_1(program: Program, stored: str) -> None:
    write(stored, "begun", BODIES[:1])
    result = program("resume", "app.py:hasty", "begun", "--store", stored)
    assert result.stdout == ""
    assert "max_turns" in result.stderr
    assert "Reached max_turns (1) without a final answer." in result.stderr
    assert result.exit_code == 1


def test_max_turns_can_be_given(program: Program, stored: str) -> None:
    write(stored, "begun", BODIES[:1])
    words = ("resume", "app.py:hasty", "begun", "--store", stored)
    assert program(*words, "--max-turns", "2").exit_code == 0
    assert program(*words, "--max-turns", "0").exit_code == 2


def test_a_failing_model_is_told_in_one_line_that_names_the_run(
    program: Program, stored: str
) -> None:
    result = program("resume", "app.py:unlucky", "killed", "--store", stored)
    assert result.stderr.startswith("Error: ConnectionError: the provider is down")
    assert "'killed'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.exit_code == 1


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_as_json_a_run_that_fails_has_an_outcome_like_any_other(
    program: Program, stored: str, verb: str, debug: tuple[str, ...]
) -> None:
    words = (verb, "app.py:unlucky", "killed", "--store", stored, "--json", *debug)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    told = read_json(result)
    assert (told["status"], told["output"], told["pending"]) == ("failed", None, [])
    assert told["error"].startswith("ConnectionError: the provider is")
    assert (told["run_id"] == "killed") == (verb == "resume")
    assert told["forked_from"] == (None if verb == "resume" else "killed")
    assert told["usage"]["total_tokens"] == 15
    row = read_json(program("show", told["run_id"], "--store", stored, "--json"))
    assert (row["status"], row["error"]) == (told["status"], told["error"])


def test_as_json_an_answer_that_cannot_be_read_is_told_of_a_run_that_is_complete(
    program: Program, stored: str
) -> None:
    result = program("resume", "app.py:typed", "finished", "--store", stored, "--json")
    told = read_json(result)
    assert (told["status"], told["output"], result.exit_code) == ("completed", None, 1)
    assert "is no Weather" in told["error"]


REFUSED = {
    "nobody": ("resume", "app.py:unlucky", "nobody"),
    "no parent": ("fork", "app.py:unlucky", "nobody", "Hello"),
    "the id is taken": ("fork", "app.py:unlucky", "killed", "--id", "finished"),
    "no such seq": ("fork", "app.py:unlucky", "killed", "--at", "99"),
    "a file that raises": ("resume", "broken.py:agent", "killed"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_as_json_what_is_refused_has_no_outcome(
    program: Program, stored: str, place: Path, words: tuple[str, ...]
) -> None:
    (place / "broken.py").write_text("1 / 0")
    before = program("show", "killed", "--events", "--store", stored).stdout
    result = program(*words, "--store", stored, "--json")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert program("show", "killed", "--events", "--store", stored).stdout == before


def test_as_json_a_run_that_somebody_has_has_no_outcome(program: Program, stored: str) -> None:
    store = FileStore(stored) if stored.endswith("/") else SQLiteStore(stored)
    with contextlib.closing(store):
        lease = store.acquire("killed", owner_id(), 30.0)
        result = program("resume", "app.py:agent", "killed", "--store", stored, "--json")
        store.release(lease)
    assert (result.stdout, result.exit_code) == ("", 1)


def test_a_fork_whose_id_is_taken_tells_nothing_of_what_it_would_do(
    program: Program, stored: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program("enqueue", "app.py:agent", "Hello", "--id", "begun", "--store", stored)
    words = ("fork", "app.py:unlucky", "begun", "Hello", "--store", stored, "--id")
    program(*words, "free")
    assert "get_weather was removed" in caplog.text
    caplog.clear()
    result = program(*words, "finished")
    assert result.stderr == "Error: run 'finished' already exists; choose another id\n"
    assert caplog.text == ""


def test_a_failing_model_with_debug_gives_the_error_itself(program: Program, stored: str) -> None:
    with pytest.raises(ConnectionError):
        program("resume", "app.py:unlucky", "killed", "--store", stored, "--debug")


def test_fork_goes_on_with_the_new_input_and_leaves_its_parent_alone(
    program: Program, stored: str
) -> None:
    before = program("show", "finished", "--events", "--store", stored).stdout
    words = ("fork", "app.py:agent", "finished", "Like a pirate", "--id", "pirate")
    told = read_json(program(*words, "--store", stored, "--json"))
    assert (told["run_id"], told["output"]) == ("pirate", "Arr!")
    assert program("show", "finished", "--events", "--store", stored).stdout == before
    row = read_json(program("show", "pirate", "--store", stored, "--json"))
    assert row["forked_from"] == "finished"


def test_fork_without_input_copies_a_finished_run(program: Program, stored: str) -> None:
    told = read_json(program("fork", "app.py:agent", "finished", "--store", stored, "--json"))
    assert told["output"] == "Sunny."
    assert told["run_id"] != "finished"


def test_fork_at_a_seq_takes_the_parent_up_to_there(
    program: Program, stored: str, place: Path
) -> None:
    words = ("fork", "app.py:agent", "finished", "--at", "1", "--id", "early")
    assert program(*words, "--store", stored).stdout == "It is sunny.\n"
    assert (place / "calls.txt").read_text() == "London"


def test_a_fork_id_that_is_taken_is_an_error(program: Program, stored: str) -> None:
    words = ("fork", "app.py:agent", "finished", "again", "--id", "killed", "--store", stored)
    result = program(*words)
    assert result.stderr.startswith("Error: run 'killed' already exists")
    assert result.exit_code == 1


@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_an_unknown_run_is_exit_code_1(program: Program, stored: str, verb: str) -> None:
    result = program(verb, "app.py:agent", "unknown", "--store", stored)
    assert result.stderr.startswith("Error: no run 'unknown'")
    assert result.exit_code == 1


@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_a_missing_store_is_wrong_usage(program: Program, place: Path, verb: str) -> None:
    result = program(verb, "app.py:agent", "killed")
    assert "there is no store at 'runs.db'" in result.stderr
    assert result.exit_code == 2
    assert not (place / "runs.db").exists()


@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_a_missing_agent_is_wrong_usage(program: Program, stored: str, verb: str) -> None:
    result = program(verb, "app.py:nobody", "killed", "--store", stored)
    assert result.stderr.startswith("Error: app.py has no 'nobody'")
    assert result.exit_code == 2


def test_an_app_that_raises_is_exit_code_1(program: Program, stored: str, place: Path) -> None:
    (place / "broken.py").write_text("1 / 0")
    result = program("resume", "broken.py:agent", "killed", "--store", stored)
    assert result.stderr.startswith("Error: broken.py raised ZeroDivisionError")
    assert result.exit_code == 1


PAYER = """
from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls, says

paid = []

def act(amount: int = 40) -> str:
    "Act."
    paid.append(amount)
    return f"paid {amount}"

def agent_of(*tools):
    model = ScriptedModel([calls(("pay", {})), says("Paid.")])
    return Agentor("Payer", model=model, tools=tools)

pay = function_tool(name_override="pay", effect="once")(act)
asked = function_tool(name_override="asked", effect="once", needs_approval=True)(act)
look = function_tool(name_override="look", effect="read")(act)
agent = agent_of(pay, asked, look)
undeclared = agent_of(function_tool(name_override="pay")(act), look)
harmless = agent_of(look)
asking = agent_of(function_tool(name_override="pay", effect="once", needs_approval=True)(act))
"""
ACTS = "The fork starts tools for real, also for what its parent has done already: pay (once)."


@pytest.mark.parametrize(
    ("target", "is_told"),
    [("agent", True), ("undeclared", True), ("harmless", False), ("asking", False)],
)
def test_a_fork_tells_beforehand_which_tools_with_an_effect_it_may_start(
    program: Program, place: Path, target: str, is_told: bool
) -> None:
    (place / "payer.py").write_text(PAYER)
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    bodies = [
        {"type": "run_start", "agent": "Payer", "messages": [{"role": "user", "content": "Pay."}]},
        {"type": "generation", "calls": [call], "turn": 1},
        {"type": "tool_call", "name": "pay", "call_id": "c1", "args": {}, "effect": "once"},
        {"type": "tool_result", "name": "pay", "call_id": "c1", "result": "paid 40", "turn": 1},
        {"type": "generation", "text": "Paid.", "turn": 2},
        {"type": "message", "text": "Paid.", "turn": 2},
        {"type": "run_end", "status": "completed", "text": "Paid."},
    ]
    write("runs.db", "paid", bodies)
    went_on = program("fork", f"payer.py:{target}", "paid", "And once more?")
    assert (ACTS in went_on.stderr) == is_told
    assert ("starts tools" in went_on.stderr) == is_told
    copied = program("fork", f"payer.py:{target}", "paid")
    assert "starts tools" not in copied.stderr
    assert copied.exit_code == 0
    for refused in (["--at", "99"], ["--id", "paid"]):
        told = program("fork", f"payer.py:{target}", "paid", "And once more?", *refused)
        assert told.exit_code == 1
        assert told.stderr.startswith("Error: ")
    missing = program("fork", f"payer.py:{target}", "nobody", "And?")
    assert "nobody" in missing.stderr
    assert missing.exit_code == 1
