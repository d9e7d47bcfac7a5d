"""What a resume or fork is refused for: told in words that can be read, with exit code 1; a wrong word of the command is 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_runs import BODIES, Program, read_json, write

from agentor.engine.store import FileStore, SQLiteStore
from agentor.engine.store.owner import owner_id
from agentor.errors import ConfigError

STRICT = """
from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls


@function_tool
def refund(amount: int) -> str:
    return "done"


model = ScriptedModel.by_turn([calls(("refund", {"amount": 1})), "Done.", "Done."])
first = Agentor("Shop", "Be brief.", model=model, tools=[refund], max_turns=1)
strict = Agentor("Shop", "Be kind.\\nBe brief.", model=model, on_change="refuse")
"""


@pytest.fixture
def changed(program: Program, place: Path, store_path: str) -> str:
    """A store with a run of an agent that has changed since, and refuses that."""
    (place / "strict.py").write_text(STRICT)
    program("enqueue", "strict.py:first", "go", "--id", "r", "--store", store_path)
    program("resume", "strict.py:first", "r", "--store", store_path)
    return store_path


@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_a_change_that_is_refused_is_told_change_by_change(
    program: Program, changed: str, verb: str
) -> None:
    result = program(verb, "strict.py:strict", "r", "--store", changed)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "has changed: instructions: " in line
    assert "; tool refund was removed; Build the agent with" in line


def test_a_seq_that_is_not_there_is_as_a_run_that_is_not_there(
    program: Program, stored: str
) -> None:
    for words in (("finished", "--at", "999"), ("nobody",)):
        assert program("fork", "app.py:agent", *words, "--store", stored).exit_code == 1


@pytest.mark.parametrize("words", ["resume app.py:agent ..", "fork app.py:agent killed --id a/b"])
def test_an_id_that_cannot_be_one_is_wrong_usage(program: Program, stored: str, words: str) -> None:
    assert program(*words.split(), "--store", stored).exit_code == 2


@pytest.fixture
def busy(place: Path, store_path: str) -> Iterator[Any]:
    """The lease of a run that is worked on."""
    write(store_path, "busy", BODIES[:4])
    with FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path) as store:
        yield store.acquire("busy", owner_id(), 1000.0)


def test_a_plan_says_that_a_worker_has_the_run_now(
    program: Program, busy: Any, store_path: str
) -> None:
    words = ("resume", "app.py:agent", "busy", "--plan", "--store", store_path)
    result = program(*words)
    worker = busy.owner.split("/")[0]
    assert f"run busy is running now, by {worker}" in result.stdout
    assert "  ask the model" in result.stdout
    assert result.exit_code == 1
    assert program(*words[:3], "--store", store_path).exit_code == 1
    told = read_json(program(*words, "--json"))
    assert (told["worker"]["owner"], told["problems"]) == (busy.owner, [])
    assert told["status"] == "unfinished"


def test_a_rehearsal_notes_that_a_worker_has_the_run_now(
    program: Program, busy: Any, store_path: str
) -> None:
    write(store_path, "free", BODIES[:4])
    words = ("rehearse", "app.py:agent", "--store", store_path)
    result = program(*words)
    assert "run busy is running now, by " in result.stderr
    assert "run free" not in result.stderr
    assert result.exit_code == 0
    told = {run["run_id"]: run for run in read_json(program(*words, "--json"))["runs"]}
    assert told["busy"]["worker"]["owner"] == busy.owner
    assert told["free"]["worker"] is None
    assert {run["status"] for run in told.values()} == {"unfinished"}


@pytest.mark.parametrize(
    "words",
    [
        *("resume app.py:agent killed --wait", "tail killed --timeout"),
        *("worker app.py:agent --grace", "worker app.py:agent --backoff"),
    ],
)
def test_nan_is_no_time_to_wait(program: Program, stored: str, words: str) -> None:
    result = program(*words.split(), "nan", "--store", stored)
    assert result.exit_code == 2
    assert "'nan' is no number of seconds" in result.stderr


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        *(("backup", LONG), ("backup", f"{LONG}/a.db"), ("import", LONG), ("import", f"{LONG}/a")),
        *(("export", LONG), ("export", LONG, "--force"), ("export", "--jsonl", LONG)),
        *(("resume", f"{LONG}.py:agent", "r"), ("enqueue", f"{LONG}.py:agent", "go")),
        *(("runs", "--store", LONG), ("import", "runs.jsonl", "--store", LONG)),
        *(("crashtest", "app.py:agent", "go", "--junit", f"{LONG}/x"), ("demo", "--keep", LONG)),
        ("crashtest", "app.py:agent", "go", "--keep", LONG),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long_is_told_in_one_line(
    program: Program, place: Path, words: tuple[str, ...]
) -> None:
    write("runs.db", "finished", BODIES)
    (place / "runs.jsonl").write_text("")
    before = sorted(place.iterdir())
    result = program(*words)
    assert result.exit_code in (1, 2)
    assert len(result.stderr.splitlines()) in (1, 4)  # wrong usage may say how it is used
    assert sorted(place.iterdir()) == before


def test_a_key_that_is_no_text_is_that_of_no_letter(program: Program, place: Path) -> None:
    write("runs.db", "finished", BODIES)
    for option in ("--retry", "--drop"):
        result = program("outbox", option, "\udcff")
        assert (result.exit_code, "no letter '\\udcff'" in result.stderr) == (1, True)


def test_a_number_beyond_all_floats_is_told_by_verify_and_shown_as_json(
    program: Program, place: Path
) -> None:
    (place / "runs").mkdir()
    (place / "runs" / "r.jsonl").write_text(
        '{"type":"run_start","agent":"a","messages":[{"role":"user","content":"x"}],"seq":1,"score":1e400}\n'
    )
    for words in (("show", "r", "--json"), ("tail", "r", "--json", "--timeout", "0")):
        printed = program(*words, "--store", "runs").stdout
        assert '"score":1e999' in printed.replace(" ", "")
    assert program("export", "--jsonl", "out", "--store", "runs").exit_code == 0
    verified = program("verify", "--store", "runs")
    assert verified.exit_code == 1
    assert "run r: seq 1: a number is too large for a float" in verified.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["backup", ""],
        ["export", ""],
        ["export", "--jsonl", ""],
        ["import", ""],
        ["import", "run.jsonl", "--store", ""],
        ["runs", "--store", ""],
        ["prune", "--keep", "0", "--yes", "--store", ""],
        ["resume", "app.py:agent", "run", "--store", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused_and_is_neither_this_directory_nor_the_usual_store(
    program: Program, place: Path, words: list[str]
) -> None:
    write("runs.db", "run", BODIES)
    (place / "run.jsonl").write_text("")
    before = sorted(os.listdir())
    result = program(*words)
    assert result.exit_code == 2
    assert "an empty text is no path" in result.stderr
    assert (sorted(os.listdir()), result.stdout) == (before, "")


def test_a_backup_to_an_empty_path_is_a_config_error_that_asks_for_a_file(
    empty_place: Path,
) -> None:
    with SQLiteStore("runs.db") as store, pytest.raises(ConfigError, match="name of a new file"):
        store.backup("")


@pytest.mark.parametrize(
    ("kind", "meant"), [("list", "runs"), ("ls", "runs"), ("rm", "delete"), ("rns", "runs")]
)
def test_a_verb_that_other_programs_have_is_answered_with_the_one_that_is_meant(
    program: Program, kind: str, meant: str
) -> None:
    told = program(kind)
    assert (told.exit_code, f"Did you mean {meant!r}?" in told.stderr) == (2, True)
    assert "Did you mean" not in program("xyzzy").stderr
