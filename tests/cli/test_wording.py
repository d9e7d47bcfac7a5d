"""What the command line says when something is wrong: in its own words, with what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from stored_runs import BODIES, Program, write

from agentor.cli.overview import STATUSES
from agentor.engine.store import FileStore, SQLiteStore
from agentor.engine.store.owner import owner_id

PYTHON = re.compile(r"\b\w+=|\b[a-z_.]+\(|\b(True|False|None)\b|\bstore\.|older_than|run_id")

WRONG = {
    "show nobody": 1,
    "verify nobody": 1,
    "tail nobody": 1,
    "resume app.py:agent nobody": 1,
    "resume app.py:agent nobody --plan": 1,
    "fork app.py:agent nobody hi": 1,
    "approve nobody c1": 1,
    "approve finished c1": 1,
    "reject nobody c1 --reason no": 1,
    "reject finished c1 --reason no": 1,
    "settle nobody c1 --result 1": 1,
    "cancel nobody": 1,
    "cancel finished": 1,
    "delete nobody": 1,
    "delete killed": 2,
    "prune": 2,
    "prune --status done": 2,
    "prune --older-than yesterday": 2,
    "prune --keep -1": 2,
    "export out.db --run nobody": 1,
    "export out --jsonl --run nobody": 1,
    "import nowhere": 2,
    "fork app.py:agent finished --at 99": 1,
    "fork app.py:agent finished --id killed": 1,
    "fork app.py:agent finished --id ..": 2,
    "resume app.py:unlucky killed": 1,
    "fork app.py:unlucky killed": 1,
    "enqueue app.py:agent hi --id killed": 1,
    "enqueue app.py:agent hi --id a/b": 2,
    "resume app.py:agent busy": 1,
    "fork app.py:agent busy --id busy": 1,
    "cancel busy": 0,
    "approve busy c1": 1,
    "delete busy --yes": 1,
}


@pytest.mark.parametrize("words", WRONG)
def test_no_error_speaks_python(program: Program, stored: str, words: str) -> None:
    write(stored, "busy", BODIES[:4])
    with FileStore(stored) if stored.endswith("/") else SQLiteStore(stored) as store:
        store.acquire("busy", owner_id(), 1000.0)
        result = program(*words.split(), "--store", stored)
    assert result.exit_code == WRONG[words]
    assert result.stderr or result.exit_code == 0
    told = re.sub(r"(?m)^(Usage|Try) .*$", "", result.stderr).replace(stored, "")
    assert not PYTHON.search(told), told
    assert not re.search(r"\.\.|\. ?:|: ?\.", told.replace("'..'", "")), told


def test_a_run_that_failed_is_told_with_the_command_that_goes_on_with_it(
    program: Program, stored: str
) -> None:
    result = program("resume", "app.py:unlucky", "killed", "--store", stored)
    told = f"`agentor resume app.py:unlucky killed --store {stored}` goes on."
    assert result.stderr.rstrip().endswith(told)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("show nobody", "runs"),
        ("resume app.py:agent nobody", "runs"),
        ("settle killed c9 --result x", None),
        ("settle open c1 --result x", "resume APP open"),
        ("resume app.py:unlucky killed", "resume app.py:unlucky killed"),
        ("resume app.py:typed open", "reject open c1 --reason TEXT --give-up"),
        ("rehearse app.py:bare", ("verify", "reject open c1 --reason TEXT --give-up")),
        ("pending", "verify"),
        ("runs --status damaged", None),
        ("resume app.py:bare open --plan", "reject open c1 --reason TEXT --give-up"),
        ("show torn", "verify"),
    ],
)
def test_a_command_that_a_message_names_looks_into_the_same_store(
    program: Program, place: Path, words: str, named: str | tuple[str, ...] | None
) -> None:
    app = place / "app.py"
    app.write_text(app.read_text() + BARE)
    write("away/", "killed", BODIES[:4])
    write("away/", "open", OPEN)
    torn = '{"type":"run_start","seq":2}\n{"type":"run_end","status":"paused","seq":3}\n'
    (place / "away" / "torn.jsonl").write_text(torn)
    told = program(*words.split(), "--store", "away/")
    names = [named] if isinstance(named, str) else list(named or ())
    found = re.findall(r"`agentor ([^`]+)`", told.stderr + told.stdout)
    assert found == [f"{each} --store away/" for each in names]
    again = program(*words.split(), env={"AGENTOR_STORE": "away/"})
    assert re.findall(r"`agentor ([^`]+)`", again.stderr + again.stdout) == names


def test_the_store_of_the_agent_is_named_where_other_verbs_would_not_look(
    program: Program, place: Path
) -> None:
    app = place / "app.py"
    app.write_text(app.read_text() + BARE.replace("model=model", 'model=model, store="away/"'))
    write("away/", "open", OPEN)
    told = program("rehearse", "app.py:bare").output
    assert "`agentor reject open c1 --reason TEXT --give-up --store away/`" in told


BARE = """
bare = Agentor("Weather Agent", model=model)
"""
# A call of a tool that asks for its effect to be kept, so that a resume needs it.
OPEN = [*BODIES[:2], {**BODIES[2], "effect": "once"}]


def test_a_run_that_is_held_can_be_waited_for_and_resume_says_how(
    program: Program, stored: str
) -> None:
    write(stored, "busy", BODIES[:4])
    with FileStore(stored) if stored.endswith("/") else SQLiteStore(stored) as store:
        store.acquire("busy", owner_id(), 1000.0)
        result = program("resume", "app.py:agent", "busy", "--store", stored)
        other = program("delete", "busy", "--yes", "--store", stored)
    assert result.stderr.rstrip().endswith("or wait for it with --wait SECONDS")
    assert "--wait" not in other.stderr


def test_a_status_that_there_is_not_is_refused_with_those_that_there_are(
    program: Program, stored: str
) -> None:
    result = program("prune", "--status", "done", "--dry-run", "--store", stored)
    assert result.exit_code == 2
    assert all(repr(status) in result.stderr for status in STATUSES)


def test_every_status_that_a_run_can_have_can_be_named(program: Program, store_path: str) -> None:
    for status in STATUSES[:-1]:
        write(store_path, status, [*BODIES[:-1], {"type": "run_end", "status": status}])
    for status in STATUSES[:-1]:
        words = ("prune", "--status", status, "--yes", "--json", "--store", store_path)
        assert f'"{status}"' in program(*words).stdout


def test_the_statuses_are_those_that_the_documentation_tells() -> None:
    page = Path(__file__).parents[2] / "docs" / "reading-a-run.md"
    table = page.read_text().partition("## How a run ends")[2].partition("\n\nOnly")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = [status for row in rows for status in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(set(STATUSES) - {"status", "unfinished"} | {"status"})


def test_prune_without_a_criterion_names_the_options(program: Program, stored: str) -> None:
    result = program("prune", "--store", stored)
    assert result.exit_code == 2
    assert all(option in result.stderr for option in ("--older-than", "--status", "--keep"))
