"""`--help` of every verb: what it does, what its arguments are, and examples that are commands."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from agentor.cli import main

VERBS = main.list_commands(click.Context(main))


def command(verb: str) -> click.Command:
    found = main.get_command(click.Context(main), verb)
    assert found is not None
    return found


def help_of(verb: str) -> str:
    return " ".join(CliRunner().invoke(main, [verb, "--help"]).stdout.split())


@pytest.mark.parametrize(("typed", "meant"), [("shwo", "show"), ("work", "worker"), ("qqq", None)])
def test_a_verb_that_is_none_is_answered_with_the_one_that_may_be_meant(
    typed: str, meant: str | None
) -> None:
    told = CliRunner().invoke(main, [typed])
    assert told.exit_code == 2
    assert f"No such command '{typed}'." in told.output
    assert (f"Did you mean '{meant}'?" in told.output) == (meant is not None)


@pytest.mark.parametrize(
    "words", ["runs --limit x", "approve r c --question x", "worker app.py:agent --concurrency 1.5"]
)
def test_a_number_that_is_none_is_told_in_plain_words(words: str) -> None:
    told = CliRunner().invoke(main, words.split())
    assert told.exit_code == 2
    assert "is not a valid whole number." in told.output


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["enqueue", "app.py:agent", "-5 degrees, why?"], True),
        (["fork", "app.py:agent", "r", "--cold"], True),
        (["show", "-r"], True),
        (["runs", "--cold"], False),  # takes no argument
    ],
)
def test_what_begins_with_a_dash_and_is_no_option_is_told_where_it_may_stand(
    words: list[str], is_told: bool
) -> None:
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 2
    assert "No such option" in told.output
    assert ("What begins with - and is no option comes last, after --." in told.output) is is_told


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_is_for(verb: str) -> None:
    options = [p for p in command(verb).params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_needs_an_agent_says_how_to_name_one(verb: str) -> None:
    needs = any(parameter.name == "target" for parameter in command(verb).params)
    assert ("app.py:agent is `agent` in app.py" in help_of(verb)) is needs


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_is_a_command_that_the_verb_takes(verb: str) -> None:
    found = command(verb)
    examples = (found.epilog or "").splitlines()
    assert examples
    for line in examples:
        program, name, *words = shlex.split(line.removeprefix("OPENAI_API_KEY=... "))
        assert (program, name) == ("agentor", verb)
        found.make_context(verb, words)
