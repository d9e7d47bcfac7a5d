"""--json is one document on standard output, whatever the user's program prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stored_runs import BODIES, Program, read_json, write

LOUD = """
import os
import subprocess

from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls

print("loaded")


@function_tool
def get_weather(city: str) -> str:
    print("printed")
    subprocess.run("echo by a process", shell=True)
    os.write(1, b"written\\n")
    return "sunny"


model = ScriptedModel.by_turn([calls(("get_weather", {"city": "London"})), "It is sunny."])
agent = Agentor("Weather Agent", model=model, tools=[get_weather])
"""
TOLD = ("loaded", "printed", "by a process", "written")


@pytest.fixture(autouse=True)
def loud(place: Path) -> None:
    (place / "loud.py").write_text(LOUD)
    write("runs.db", "begun", BODIES[:1])
    write("runs.db", "finished", BODIES)


def outside(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose file descriptors are real."""
    command = [sys.executable, "-m", "agentor", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_resume_keeps_what_anybody_prints_out_of_its_json(place: Path) -> None:
    done = outside("resume", "loud.py:agent", "begun", "--json")
    assert json.loads(done.stdout)["output"] == "It is sunny."
    assert set(TOLD) <= set(done.stderr.splitlines())


def test_a_worker_prints_a_line_of_json_for_each_attempt_and_nothing_else(place: Path) -> None:
    done = outside("worker", "loud.py:agent", "--until-idle", "--json")
    (step,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (step["run_id"], step["outcome"]) == ("begun", "completed")
    assert set(TOLD) <= set(done.stderr.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        "resume loud.py:agent begun",
        "resume loud.py:agent begun --plan",
        "fork loud.py:agent begun",
        "enqueue loud.py:agent hi",
        "rehearse loud.py:agent",
    ],
)
def test_what_the_module_prints_when_it_is_loaded_is_not_in_the_json(
    program: Program, words: str
) -> None:
    result = program(*words.split(), "--json")
    assert isinstance(read_json(result), dict)
    assert "loaded" in result.stderr


def test_without_json_the_program_prints_where_it_wants_to(program: Program) -> None:
    result = program("resume", "loud.py:agent", "begun")
    assert result.stdout.splitlines() == ["loaded", "printed", "It is sunny."]
