"""The commands that messages name: typed as they stand, each is about the same run in the same store."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import BODIES, Program, write
from test_outbox import send

from agentor import Agentor, SQLiteStore
from agentor.cli import _VERBS, main
from agentor.cli.wording import WHERE, advised
from agentor.commands import command, with_options
from agentor.testing import ScriptedModel, calls, says

APP = """
from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, says


@function_tool(effect="once", on_doubt="park")
def pay(amount: int) -> str:
    return "paid"


def down(messages):
    raise ConnectionError("down")


paying = Agentor("A", model=ScriptedModel.by_turn([says("ok")]), tools=[pay])
unlucky = Agentor("A", model=ScriptedModel(down))
bare = Agentor("A", model=ScriptedModel.by_turn([says("ok")]))
"""
CALL_ID = "-call 'one'"
CALL = {"id": CALL_ID, "type": "function", "function": {"name": "pay", "arguments": '{"amount":4}'}}
START = {**BODIES[0], "agent": "A"}
STARTED = {"type": "tool_call", "name": "pay", "args": {"amount": 4}, "call_id": CALL_ID, "turn": 1}
# What became of its call nobody knows, and nobody has been asked.
IN_DOUBT = [START, {**BODIES[1], "calls": [CALL]}, {**STARTED, "effect": "once"}]
QUOTED = re.compile(r"`(agentor [^`]+ [^`]+)`")
BARE = re.compile(r"(?:: |, or )(agentor .+?)(?=, or agentor|$)", re.MULTILINE)


@pytest.fixture(params=["run", "-y", "--yes", "--"])
def run_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["my runs.db", "-o'dd/"])
def elsewhere(request: pytest.FixtureRequest, place: Path) -> str:
    """A store that other commands would not look at."""
    (place / "app.py").write_text(APP)
    return str(request.param)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if not isinstance(value, str):
            yield from texts(each) if isinstance(each, str | list | dict) else ()


def told(result: Result, as_json: bool = False) -> list[str]:
    """The commands that a program has named."""
    output = "\n".join(texts(json.loads(result.stdout))) if as_json else result.stdout
    said = f"{output}\n{result.stderr}"
    return [*QUOTED.findall(said), *BARE.findall(QUOTED.sub("", said))]


def meant(text: str) -> tuple[str, dict[str, Any]]:
    """The verb that a shell would call, and the values of its words and options."""
    program, verb, *words = shlex.split(text)
    assert program == "agentor"
    found = main.get_command(click.Context(main), verb)
    assert found is not None, text
    return verb, found.make_context(
        verb,
        [
            "1" if each == "N" and words[at - 1] == "--question" else each
            for at, each in enumerate(words)
        ],
    ).params


def check(commands: list[str], store: str, verbs: str, run_id: str | None = None) -> None:
    found = [meant(text) for text in commands]
    assert [verb for verb, _ in found] == verbs.split(), commands
    for _, params in found:
        assert params["store_path"] == store
        assert params.get("run_id", "RUN") in ("RUN", run_id)
        assert params.get("call_id", "CALL") in ("CALL", CALL_ID)


def test_a_pause_names_the_commands_that_decide_and_go_on(
    program: Program, elsewhere: str, run_id: str
) -> None:
    write(elsewhere, run_id, IN_DOUBT)
    early = program("settle", "--result", "x", "--store", elsewhere, "--", run_id, CALL_ID)
    check(told(early), elsewhere, "resume", run_id)
    paused = program("resume", "--store", elsewhere, "--", "app.py:paying", run_id)
    check(told(paused), elsewhere, "approve reject settle resume", run_id)
    waiting = program("pending", "--store", elsewhere)
    check(told(waiting), elsewhere, "approve reject settle")
    approve, *_, resume = told(paused)
    decided = program(*shlex.split(approve)[1:])
    assert decided.exit_code == 0
    check(told(decided), elsewhere, "resume", run_id)
    assert program(*shlex.split(resume)[1:]).exit_code != 2


def test_a_failure_names_the_command_that_goes_on(
    program: Program, elsewhere: str, run_id: str
) -> None:
    write(elsewhere, "parent", [START])
    forked = program(
        "fork", "app.py:unlucky", "parent", "x", f"--id={run_id}", "--store", elsewhere
    )
    check(told(forked), elsewhere, "resume resume", run_id)
    again = program(*shlex.split(told(forked)[0])[1:])
    check(told(again), elsewhere, "resume", run_id)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "words",
    [
        "resume --plan ... app.py:bare {}",
        "rehearse ... app.py:bare",
        "worker --until-idle ... app.py:bare",
    ],
)
def test_a_refusal_names_the_command_that_gives_the_call_up(
    program: Program, elsewhere: str, run_id: str, words: str, form: tuple[str, ...]
) -> None:
    write(elsewhere, run_id, IN_DOUBT)
    verb, _, rest = words.partition(" ... ")
    options = [*verb.split(), *form, "--store", elsewhere, "--"]
    refused = program(*options, *rest.format(run_id).split())
    check(told(refused, bool(form)), elsewhere, "reject", run_id)


def test_letters_that_stay_are_told_with_the_command_that_lists_them(
    program: Program, place: Path
) -> None:
    script = [calls(("send", {"to": ["ada"]})), says("sent")]
    with SQLiteStore("my runs.db") as store:
        agent = Agentor("Post", model=ScriptedModel.by_turn(script), tools=[send], store=store)
        for run_id in ("a", "b", "c"):
            agent.run("go", run_id=run_id)
    for words in ("show a", "export --jsonl out", "delete a --yes", "prune --keep 1 --yes"):
        check(told(program(*words.split(), "--store", "my runs.db")), "my runs.db", "outbox")


@pytest.mark.parametrize(
    ("words", "verbs"),
    [
        ("show nobody", "runs"),
        ("show torn", "verify"),
        ("pending", "verify"),
        ("runs --json", "verify"),
        ("backup copy.db", "export"),
        ("import app.py", "export import"),
    ],
)
def test_what_a_directory_cannot_do_is_told_with_the_command_that_can(
    program: Program, place: Path, words: str, verbs: str
) -> None:
    lines = ({"type": "run_start", "seq": 2}, {"type": "run_end", "status": "paused", "seq": 3})
    (place / "-my runs").mkdir()
    (place / "-my runs" / "torn.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines)
    )
    told_of = told(program(*words.split(), "--store", "-my runs/"), "--json" in words)
    taken_out = [text for text in told_of if "--store app.py" in text]
    assert len(taken_out) == ("import" in verbs)
    rest = [text for text in told_of if text not in taken_out]
    check(rest, "-my runs/", verbs.split()[-1])


def test_a_file_that_cannot_be_opened_is_told_with_the_command_that_looks_into_it(
    program: Program, place: Path
) -> None:
    write("my runs.db", "run", BODIES)
    content = bytearray(Path("my runs.db").read_bytes())
    content[4096:12288] = b"\xff" * 8192
    Path("my runs.db").write_bytes(content)
    for words in ("runs", "show run", "delete run --yes"):
        check(told(program(*words.split(), "--store", "my runs.db")), "my runs.db", "verify")


# By what is written in the source: no message can be left out -------------------------------------------------------

SPOKEN_OF = {
    "agentor enqueue",
    "agentor export",
}  # verbs in messages that are not to be typed as they stand


def messages() -> Iterator[tuple[str, str]]:
    """Every text of the package that is no docstring and no help, with its place; what is filled in stands as X."""
    for file in sorted(Path(main.callback.__code__.co_filename).parents[1].rglob("*.py")):  # type: ignore[union-attr]
        tree = ast.parse(file.read_text())
        passed = {id(part) for node in ast.walk(tree) for part in _not_said(node)}
        for node in ast.walk(tree):
            if id(node) in passed or file.parent.name == "demo":  # which tells of code
                continue
            if isinstance(node, ast.JoinedStr):
                passed |= {id(part) for part in node.values}
                parts = [p.value if isinstance(p, ast.Constant) else "X" for p in node.values]
                yield f"{file.name}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.name}:{node.lineno}", node.value


def _not_said(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Expr):  # a docstring
        yield node.value
    if isinstance(node, ast.keyword) and node.arg in ("help", "epilog", "short_help"):
        yield from ast.walk(node.value)


def test_no_message_writes_a_command_out_by_hand_but_between_backticks() -> None:
    by_hand = re.compile(rf"(?<!`)\bagentor ({'|'.join(_VERBS)})\b")
    found = [
        (at, text)
        for at, text in messages()
        if by_hand.search(text) and "--store PATH" not in text and text != "agentor crashtest"
    ]
    assert found == []


def test_every_command_between_backticks_gets_the_store_of_the_command_that_tells_it() -> None:
    verb = main.get_command(click.Context(main), "runs")
    assert verb is not None
    context = click.Context(verb)
    context.meta[WHERE] = "my runs.db"
    seen = set()
    with context.scope(cleanup=False):
        for at, text in messages():
            for found in re.findall(r"`(agentor [^`]+)`", text):
                seen.add(found)
                (told,) = re.findall(r"`([^`]+)`", advised(f"`{found}`"))
                if found not in SPOKEN_OF:
                    assert "--store" in told, at
                    meant(told)
    assert seen >= SPOKEN_OF | {"agentor verify", "agentor runs"}


# The door itself ----------------------------------------------------------------------------------------------------

IDS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,9}", fullmatch=True)


@given(IDS, st.text(min_size=1), st.text(min_size=1))
def test_a_command_is_read_as_it_was_meant_whatever_its_words_are(
    run_id: str, call_id: str, store: str
) -> None:
    text = command("reject", run_id, call_id, options=["--reason", "TEXT"])
    verb, params = meant(with_options(text, ["--store", store]))
    assert verb == "reject"
    assert (params["run_id"], params["call_id"]) == (run_id, call_id)
    assert (params["store_path"], params["reason"]) == (store, "TEXT")
    assert with_options(text, []) == text
