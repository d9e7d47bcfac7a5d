"""Only `import`, `enqueue` and `worker --make-store` make a store: whatever else loads an agent leaves the directory as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from stored_runs import Program, write

from agentor.cli import main

WITH_APP = {
    ("resume", "app.py:at_home", "killed"),
    ("resume", "app.py:at_home", "killed", "--plan"),
    ("fork", "app.py:at_home", "killed", "And now?"),
    ("rehearse", "app.py:at_home"),
    ("worker", "app.py:at_home", "--until-idle"),
}
MAKING = {"enqueue"}
STORES_OF_ITS_OWN = {"crashtest"}


def test_these_are_all_the_verbs_that_load_an_agent() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    with_app = {
        name
        for name, command in commands.items()
        if command and any(parameter.name == "target" for parameter in command.params)
    }
    assert with_app - MAKING - STORES_OF_ITS_OWN == {verb for verb, *_ in WITH_APP}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("words", sorted(WITH_APP), ids=" ".join)
@pytest.mark.parametrize("home", ["home/", "home.db"])
def test_a_missing_store_of_the_agent_is_wrong_usage_and_is_not_made(
    program: Program, place: Path, home: str, words: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    app = place / "app.py"
    app.write_text(app.read_text().replace("home/", home))
    before = sorted(place.iterdir())
    result = program(*words, *as_json)
    assert result.exit_code == 2
    assert f"there is no store at '{home}'" in result.stderr
    assert result.stdout == ""
    assert sorted(place.iterdir()) == before


def test_with_another_store_named_the_agents_own_is_not_needed_and_not_made(
    program: Program, stored: str, place: Path
) -> None:
    result = program("resume", "app.py:at_home", "killed", "--store", stored)
    assert result.exit_code == 0
    assert program("enqueue", "app.py:at_home", "Hello", "--store", stored).exit_code == 0
    assert not (place / "home").exists()


def test_an_agent_with_a_transactional_tool_can_be_given_another_store(
    program: Program, place: Path
) -> None:
    app = place / "app.py"
    app.write_text(
        app.read_text()
        + """
from agentor import RunContext, function_tool


@function_tool(effect="transactional")
def book(ctx: RunContext) -> str:
    return "booked"


booking = Agentor("Books", model=model, tools=[book], store="away.db")
"""
    )
    write("runs.db", "other", [])
    missing = program("worker", "app.py:booking", "--until-idle")
    assert (missing.exit_code, "there is no store at 'away.db'" in missing.stderr) == (2, True)
    assert program("worker", "app.py:booking", "--until-idle", "--store", "runs.db").exit_code == 0
    files = program("worker", "app.py:booking", "--until-idle", "--store", "home/")
    assert (files.exit_code, "there is no store at 'home/'" in files.stderr) == (2, True)
    write("home/", "other", [])
    told = program("worker", "app.py:booking", "--until-idle", "--store", "home/").stderr
    assert "a store that has transactions" in told
    assert not (place / "away.db").exists()


def test_enqueue_makes_the_store_of_the_agent(program: Program, place: Path) -> None:
    assert program("enqueue", "app.py:at_home", "Hello").exit_code == 0
    assert (place / "home").is_dir()


@pytest.mark.parametrize(
    ("words", "made"),
    [(("app.py:at_home",), "home"), (("app.py:at_home", "--store", "away.db"), "away.db")],
)
def test_a_worker_makes_its_store_only_if_it_is_told_that_it_may(
    program: Program, place: Path, words: tuple[str, ...], made: str
) -> None:
    assert program("worker", *words, "--until-idle").exit_code == 2
    assert not (place / made).exists()
    assert program("worker", *words, "--until-idle", "--make-store").exit_code == 0
    assert [name for name in ("home", "away.db") if (place / name).exists()] == [made]
    program("enqueue", *words, "Hello", "--id", "first")
    worked = program("worker", *words, "--until-idle", "--make-store")
    assert "first" in worked.stdout


def test_whoever_names_no_store_is_told_which_lie_there(program: Program, place: Path) -> None:
    assert "but there is" not in program("pending").stderr
    for path in ("mix.db", "files/"):
        program("enqueue", "app.py:agent", "Hello", "--id", "r", "--store", path)
        assert program("resume", "app.py:agent", "r", "--store", path).exit_code == 0
    (place / "notes.db").write_text("no database at all")
    (place / "empty.db").touch()
    (place / "logs").mkdir()
    told = program("pending").stderr
    assert "there is no store at 'runs.db' (but there is files, mix.db); name one" in told
    assert "but there is" not in program("pending", "--store", "away.db").stderr
    for name in ("a.db", "b.db", "c.db"):
        program("enqueue", "app.py:agent", "Hello", "--store", name)
    assert "(but there is a.db, b.db, c.db, ...)" in program("pending").stderr


def test_another_agent_of_the_file_may_miss_its_store(program: Program, place: Path) -> None:
    write("home/", "other", [])
    app = place / "app.py"
    app.write_text(app.read_text() + 'elsewhere = Agentor("Else", model=model, store="away.db")\n')
    assert program("rehearse", "app.py:at_home").exit_code == 0
    assert not (place / "away.db").exists()


def no_database(path: Path) -> None:
    path.write_text("hello, this is not a database at all")


def no_directory(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("spoil", [no_database, no_directory])
@pytest.mark.parametrize("words", sorted(WITH_APP), ids=" ".join)
def test_with_another_store_named_the_agents_own_may_be_one_that_cannot_be_opened(
    program: Program,
    stored: str,
    place: Path,
    words: tuple[str, ...],
    spoil: Callable[[Path], None],
) -> None:
    app = place / "app.py"
    app.write_text(
        app.read_text().replace("home/", "own.db")
        + """
twin = Agentor("Twin", model=model, store="own.db")
"""
    )
    spoil(place / "own.db")
    assert program(*words, "--store", stored).exit_code == 0
    refused, named = program(*words), program("runs", "--store", "own.db")
    assert refused.exit_code == named.exit_code
    assert refused.stderr == named.stderr
    assert "own.db" in refused.stderr


def test_a_store_of_another_agent_of_the_file_that_cannot_be_opened_is_told_before_it_begins(
    program: Program, stored: str, place: Path
) -> None:
    app = place / "app.py"
    app.write_text(app.read_text() + 'helper = Agentor("Help", model=model, store="own.db")\n')
    no_database(place / "own.db")
    result = program("enqueue", "app.py:agent", "Hello", "--id", "new", "--store", stored)
    assert (result.exit_code, "own.db: this is no SQLite database" in result.stderr) == (1, True)
    assert program("show", "new", "--store", stored).exit_code == 1
