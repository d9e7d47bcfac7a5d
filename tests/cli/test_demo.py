"""The demo keeps its promise: killed half-way, finished by another process, its tool run once."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentor.demo import story
from agentor.demo.provider import ANSWER, FORKED_ANSWER, weather_provider
from agentor.engine.store import SQLiteStore
from agentor.testing.replies import Gate

pytestmark = pytest.mark.slow


def demo(place: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentor", "demo", *options],
        cwd=place, env=os.environ | {"TMPDIR": str(place)} | env,
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100,
    )  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One telling of the story, and the directory it left."""
    place = tmp_path_factory.mktemp("demo")
    return demo(place, "--keep", "kept"), place / "kept"


def test_the_story_is_told_from_the_kill_to_the_list_of_runs(
    kept: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    told, _ = kept
    assert told.returncode == 0, told.stderr
    chapters = [
        "$ python weather.py",
        "get_weather gave The weather in London is sunny and 22C.",
        "Killed.",
        "$ agentor resume weather.py:agent",
        ANSWER,
        "the tool ran once",
        "$ agentor fork weather.py:agent",
        FORKED_ANSWER,
        "The parent is untouched",
        "$ agentor runs",
        "What to try next",
    ]
    places = [told.stdout.find(chapter) for chapter in chapters]
    assert -1 not in places
    assert places == sorted(places)
    assert "\x1b" not in told.stdout  # a pipe gets no colour


def test_what_was_told_is_what_the_files_say(
    kept: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, directory = kept
    assert (directory / "calls.txt").read_text() == "get_weather('London')\n"
    with SQLiteStore(directory / "runs.db") as store:
        parent, fork = store.list_runs()
        log = store.load(parent)
        assert [event.type for event in log].count("tool_result") == 1
        assert [event.type for event in log].count("run_start") == 2  # begun, and resumed
        assert store.load(fork)[len(log)].forked_from == parent


def test_every_suggestion_of_what_to_try_next_works(
    kept: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    told, directory = kept
    commands = told.stdout.partition("What to try next:")[2].strip().splitlines()
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.removeprefix("$ "))
        subprocess.run(words, cwd=directory.parent, check=True, capture_output=True, timeout=60)


def test_the_outcome_as_json_and_nothing_left_behind(tmp_path: Path) -> None:
    told = demo(tmp_path, "--json")
    outcome = json.loads(told.stdout)
    assert outcome["killed_after"] == "tool_result"
    assert outcome["tool_runs"] == 1
    assert outcome["parent_unchanged"] is True
    assert (outcome["answer"], outcome["fork_answer"]) == (ANSWER, FORKED_ANSWER)
    assert told.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_live_asks_the_endpoint_and_model_of_the_environment(tmp_path: Path) -> None:
    gate = Gate()  # stays shut while the first process lives: it is killed before an answer comes
    with weather_provider(gate) as server:
        env = {"OPENAI_API_KEY": "live", "OPENAI_BASE_URL": server.base_url}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            outcome = story.play(tmp_path, _Listener(gate), live_model="some-model")
    assert outcome.tool_runs == 1
    assert outcome.answer == ANSWER
    assert {request.body["model"] for request in server.requests} == {"some-model"}


class _Listener:
    """Opens the gate when the story says that the first process is dead."""

    silent = True

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def says(self, text: str) -> None:
        if text.startswith("Killed"):
            self._gate.open()

    def shows_program(self, code: str) -> None:
        assert '"some-model"' in code

    def shows_command(self, command: str) -> None:
        pass

    def shows_log(self, events: list[object]) -> None:
        pass


def test_live_without_a_key_is_wrong_usage(tmp_path: Path) -> None:
    told = demo(tmp_path, "--live")
    assert "OPENAI_API_KEY" in told.stderr
    assert told.returncode == 2


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    told = demo(tmp_path, "--keep", str(tmp_path))
    assert "is not empty" in told.stderr
    assert told.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_demo_that_cannot_go_as_promised_says_why(tmp_path: Path) -> None:
    env = {
        "OPENAI_API_KEY": "x",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    }  # nobody listens there
    told = demo(tmp_path, "--live", "--json", **env)
    assert told.stderr.startswith("Error: the agent ended by itself, with exit code 1")
    assert told.returncode == 1
    assert list(tmp_path.iterdir()) == []
