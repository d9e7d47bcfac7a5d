"""A module that begins a run when it is loaded begins one for every command: whoever loads it is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_runs import BODIES, Program, write

from agentor.beginning import note_begun, runs_begun
from agentor.testing import crashtest

TOLD = 'put what is to happen once under `if __name__ == "__main__":`'
BEGINS = {
    "agent.run('Hello')": 1,
    "agent.run(['Hello', 'Hi'])": 2,
    "asyncio.run(agent.arun('Hello'))": 1,
    "agent.enqueue('Hello')": 1,
    "agent.fork('finished', 'Hello')": 1,
    "asyncio.run(streamed('Hello'))": 1,
    "agent.result('finished')": 0,
    "agent.resume('finished')": 0,
    "agent.worker()": 0,
    "__name__ == '__main__' and agent.run('Hello')": 0,
}
APP = """
import asyncio

from agentor import Agentor
from agentor.testing import ScriptedModel

agent = Agentor("Weather Agent", model=ScriptedModel(lambda messages: "Hi."), store="runs.db")


async def streamed(text):
    return [event async for event in agent.astream(text)]


"""


@pytest.fixture
def finished(place: Path) -> Path:
    write("runs.db", "finished", BODIES)
    return place


@pytest.mark.parametrize(("code", "count"), BEGINS.items(), ids=BEGINS)
def test_a_command_tells_that_loading_the_app_begins_runs(
    program: Program, finished: Path, code: str, count: int
) -> None:
    (finished / "app.py").write_text(f"{APP}{code}\n")
    result = program("resume", "app.py:agent", "finished")
    assert (result.stdout, result.exit_code) == ("Sunny.\n", 0)
    words = f"Loading app.py begins {count} run{'' if count == 1 else 's'}, and every command loads"
    assert (words in result.stderr) == (TOLD in result.stderr) == (count > 0)


@pytest.mark.parametrize("begins", [True, False])
def test_an_app_that_fails_in_a_run_of_its_own_says_that_loading_it_began_one(
    program: Program, finished: Path, begins: bool
) -> None:
    code = "agent.run('Hello')\n1 / 0" if begins else "1 / 0"
    (finished / "app.py").write_text(f"{APP}{code}\n")
    result = program("resume", "app.py:agent", "finished")
    assert "raised ZeroDivisionError: division by zero. --debug shows where" in result.stderr
    assert ("It had begun a run by then" in result.stderr) == (TOLD in result.stderr) == begins
    assert result.exit_code == 1


def test_a_message_that_ends_with_a_full_stop_is_told_with_one(
    program: Program, finished: Path
) -> None:
    (finished / "app.py").write_text("raise ConnectionError('Connection error.')")
    told = program("resume", "app.py:agent", "finished").stderr
    assert "ConnectionError: Connection error. --debug" in told
    (finished / "app.py").write_text("raise ConnectionError")
    told = program("resume", "app.py:agent", "finished").stderr
    assert "raised ConnectionError. --debug" in told


@pytest.mark.parametrize("begins", [True, False])
def test_a_crash_test_notes_that_loading_the_module_begins_a_run(
    finished: Path, begins: bool
) -> None:
    code = "agent.run('Hello')" if begins else ""
    (finished / "app.py").write_text(f"{APP}{code}\n")
    report = crashtest("app.py:agent", "Hello", at="before commit 1")
    report.assert_safe()
    assert any(TOLD in note for note in report.notes) == begins


def test_what_begins_within_is_counted_without_as_well() -> None:
    with runs_begun() as outer:
        note_begun("first")
        with runs_begun() as inner:
            note_begun("second")
        assert inner == ["second"]
    note_begun("third")
    assert outer == ["first", "second"]
