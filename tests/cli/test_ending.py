"""How the program ends when its reader goes away, when Ctrl-C comes early, and when options come before the verb."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from stored_runs import BODIES, Program, write

from agentor import SQLiteStore
from agentor.cli.ending import in_good_order
from agentor.cli.options import Interrupted

MANY = 400  # runs: more text than a pipe holds
READING = [
    ("runs", "--limit", "10000"),
    ("runs", "--json"),
    ("tail", "--after", "0", "--timeout", "0"),
    ("tail", "--after", "0", "--timeout", "0", "--json"),
    ("show", "r1"),
    ("show", "r1", "--events"),
    ("show", "r1", "--json"),
    ("verify", "--json"),
    ("rehearse", "app.py:agent", "--json"),
    ("runs", "--help"),
    ("--help",),
    ("--version",),
]


@pytest.fixture
def many(place: Path) -> Path:
    write("runs.db", "r1", [BODIES[0], *({"type": "message", "text": "x" * 500},) * 1000])
    for number in range(2, MANY):
        write("runs.db", f"r{number}", BODIES)
    return place


def piped(words: Sequence[str], lines: int) -> tuple[int, str]:
    """The exit code and the standard error of a program whose reader goes away after so many lines."""
    command = [sys.executable, "-m", "agentor", *words]
    # Unbuffered, Python itself takes a half-written text for a written one.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            process.stdout.readline()
        process.stdout.close()
        return process.wait(60), process.stderr.read()


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_reader_that_goes_away_at_once_ends_it_quietly(many: Path, words: Sequence[str]) -> None:
    assert piped(words, 0) == (141, "")


@pytest.mark.parametrize("words", READING[:7], ids=" ".join)
def test_a_reader_that_has_read_enough_ends_it_quietly(many: Path, words: Sequence[str]) -> None:
    assert piped(words, 1) == (141, "")


FULL = Path("/dev/full")  # a disk on which there is no space, as Linux has one


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [(READING[0], ""), (READING[1], ""), (READING[1], "1"), (READING[9], "1"), (READING[11], "")],
)
def test_what_cannot_be_written_is_one_line(
    place: Path, words: Sequence[str], unbuffered: str
) -> None:
    write("runs.db", "r1", BODIES)
    command = [sys.executable, "-m", "agentor", *words]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with FULL.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    told = "Error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


CLOSED = "Error: standard output cannot be written: it is closed\n"


@pytest.mark.parametrize(
    "words",
    [
        *READING,
        ("resume", "app.py:agent", "r1"),
        ("export", "out.db", "--force"),
        ("prune", "--keep", "0", "--yes"),
    ],
    ids=" ".join,
)
def test_whoever_has_closed_standard_output_is_told_that_nothing_can_be_said_there(
    place: Path, words: Sequence[str]
) -> None:
    write("runs.db", "r1", BODIES)
    told = closed(">&-", words)
    assert told.returncode == 1
    assert told.stderr.endswith(CLOSED)
    assert closed(">&- 2>&-", words).returncode == 1


def test_a_verb_that_has_nothing_to_say_there_needs_no_standard_output(place: Path) -> None:
    write("runs.db", "r1", BODIES)
    nothing = closed(">&-", ("tail", "--timeout", "0"))
    assert (nothing.returncode, nothing.stderr) == (0, "")
    wrong = closed(">&-", ("show", "nobody"))
    assert wrong.returncode == 1
    assert "no run 'nobody'" in wrong.stderr
    assert CLOSED not in wrong.stderr


def test_a_worker_whose_standard_output_is_closed_does_its_work(place: Path) -> None:
    write("runs.db", "r1", BODIES[:1])
    done = closed(">&-", ("worker", "app.py:agent", "--until-idle"))
    assert (done.returncode, done.stderr.endswith(CLOSED)) == (1, True)
    with SQLiteStore("runs.db") as store:
        assert store.list_runs(status="completed") == ["r1"]


@pytest.mark.parametrize("words", ["prune --keep 0", "delete r1"])
def test_where_standard_input_is_closed_nobody_is_there_to_ask(place: Path, words: str) -> None:
    write("runs.db", "r1", BODIES)
    asked = closed("<&-", words.split())
    assert (asked.returncode, "nobody is there to ask" in asked.stderr) == (2, True)


def closed(how: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    closing = ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m", "agentor", *words]
    return subprocess.run(closing, stderr=subprocess.PIPE, text=True)


def test_another_file_that_cannot_be_written_is_another_error() -> None:
    with pytest.raises(OSError, match="disk full"), in_good_order():
        raise OSError(28, "disk full", "runs.db")


def test_a_connection_that_breaks_is_another_error(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError("the provider has hung up")

    monkeypatch.setattr("agentor.cli.going_on.tell", broken)
    with pytest.raises(BrokenPipeError, match="hung up"):
        program("resume", "app.py:agent", "finished", "--store", stored)


def test_ctrl_c_before_the_verb_has_begun_is_an_interrupt_as_later(
    program: Program, place: Path
) -> None:
    (place / "app.py").write_text("raise KeyboardInterrupt")
    result = program("resume", "app.py:agent", "killed")
    assert (result.exit_code, result.stderr) == (130, "Error: Interrupted\n")


@pytest.mark.parametrize(
    ("at_the_question", "ending"), [(KeyboardInterrupt, Interrupted), (EOFError, click.Abort)]
)
def test_ctrl_c_at_a_question_is_an_interrupt_and_no_answer_is_a_refusal(
    at_the_question: type[BaseException], ending: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(_: str) -> str:
        raise at_the_question

    monkeypatch.setattr("click.termui.visible_prompt_func", asked)
    with pytest.raises(ending), in_good_order():
        click.confirm("Delete?")


def test_an_option_before_the_verb_is_told_where_it_belongs(program: Program) -> None:
    result = program("--store", "runs.db", "runs")
    assert result.exit_code == 2
    assert "Options follow the verb: agentor runs --store PATH." in result.stderr
