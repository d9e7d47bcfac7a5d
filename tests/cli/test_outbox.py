"""`agentor outbox`: what is not delivered yet, and what a person may decide about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_runs import BODIES, Program, read_json, write

from agentor import Agentor, RunContext, SQLiteStore, StoreError, function_tool
from agentor.testing import ScriptedModel, calls, says


@function_tool(effect="transactional")
def send(ctx: RunContext, to: list[str]) -> str:
    """Send mails."""
    return " ".join(ctx.outbox.put("mail", {"to": each}) for each in to)


def fails_for_ada(kind: str, payload: dict[str, str], key: str) -> None:
    if payload["to"] == "ada":
        raise ConnectionError("no such \x1b[31mmailbox")


@pytest.fixture
def post(empty_place: Path) -> Iterator[Agentor]:
    """An agent that has put two letters into the outbox of runs.db, and delivered one."""
    script = [calls(("send", {"to": ["ada", "bob"]})), says("sent")]
    with SQLiteStore("runs.db") as store:
        agent = Agentor("Post", model=ScriptedModel.by_turn(script), tools=[send], store=store)
        agent.run("go", run_id="run")
        assert agent.deliver(fails_for_ada) == 1
        yield agent


def test_it_lists_who_waits_how_often_it_was_tried_and_why_it_failed(
    program: Program, post: Agentor
) -> None:
    [letter] = read_json(program("outbox", "--json"))
    assert (letter["run_id"], letter["kind"], letter["payload"]) == ("run", "mail", {"to": "ada"})
    assert (letter["attempts"], letter["is_claimed"]) == (1, False)
    assert letter["due_at"] > letter["put_at"]
    assert "no such" in letter["error"]
    heading, line = program("outbox").stdout.splitlines()
    assert heading.split() == ["run", "key", "kind", "attempts", "due", "error"]
    assert line.split()[:4] == ["run", letter["key"], "mail", "1"]
    assert "\x1b" not in line


def test_show_counts_the_letters_of_its_run(program: Program, post: Agentor) -> None:
    assert "1 letter not delivered yet: agentor outbox" in program("show", "run").stdout
    assert read_json(program("show", "run", "--json"))["letters"] == 1
    write("runs.db", "other", BODIES)
    assert "outbox" not in program("show", "other").stdout
    assert read_json(program("show", "other", "--json"))["letters"] == 0


def test_a_letter_that_is_retried_is_due_at_once(program: Program, post: Agentor) -> None:
    [letter] = post.store.letters()
    assert post.deliver(lambda *_: None) == 0
    result = program("outbox", "--retry", letter.key)
    assert (result.exit_code, " now " in result.stdout) == (0, True)
    assert post.deliver(lambda *_: None) == 1
    assert program("outbox").stdout == "Every letter is delivered.\n"


def test_a_letter_that_is_dropped_is_never_delivered(program: Program, post: Agentor) -> None:
    [letter] = post.store.letters()
    assert read_json(program("outbox", "--drop", letter.key, "--json")) == []
    assert "deliver" not in program("show", "run").stdout.splitlines()[-1]
    assert post.store.undelivered() == 0


def test_a_letter_that_is_not_there_is_told_and_the_others_are_seen_to(
    program: Program, post: Agentor
) -> None:
    [letter] = post.store.letters()
    post.run("go", run_id="other")
    result = program("outbox", "--drop", "nobody", "--drop", letter.key)
    assert (result.exit_code, result.stdout) == (1, "")  # nothing that hides what went wrong
    assert result.stderr == "There is no letter 'nobody'.\n"
    assert [each.run_id for each in post.store.letters()] == ["other", "other"]
    assert len(read_json(program("outbox", "--drop", "nobody", "--json"))) == 2


def test_letters_outlive_their_run(program: Program, post: Agentor) -> None:
    assert program("delete", "run", "--yes").exit_code == 0
    assert [each["run_id"] for each in read_json(program("outbox", "--json"))] == ["run"]
    [letter] = post.store.letters()
    assert post.store.retry_letter(letter.key)
    assert post.deliver(lambda *_: None) == 1


def test_a_letter_that_is_being_delivered_cannot_be_retried_and_can_be_dropped(
    program: Program, post: Agentor
) -> None:
    [letter] = post.store.letters()
    post.store.retry_letter(letter.key)
    assert post.store.claim_letter(60.0) is not None
    assert program("outbox", "--retry", letter.key).exit_code == 1
    assert "being delivered" in program("outbox").stdout
    assert program("outbox", "--drop", letter.key).exit_code == 0


def test_other_stores_have_no_outbox(program: Program, place: Path) -> None:
    write("runs/", "run", BODIES)
    result = program("outbox", "--store", "runs/")
    assert result.exit_code == 2
    assert "only a SQLite store has an outbox" in result.stderr


# Where the runs go and their letters do not -------------------------------------------------------------------------


def test_export_to_files_says_how_many_letters_it_leaves_behind(
    program: Program, post: Agentor
) -> None:
    write("runs.db", "other", BODIES)
    result = program("export", "--jsonl", "out", "--json")
    assert read_json(result)["letters"] == 1
    assert "1 letter of these runs is not delivered yet and stays in this store" in result.stderr
    assert "agentor outbox" in result.stderr
    only = program("export", "--jsonl", "other", "--run", "other", "--json")
    assert (read_json(only)["letters"], only.stderr) == (0, "")
    program("import", "out", "--store", "new.db")
    assert read_json(program("outbox", "--store", "new.db", "--json")) == []
    assert len(read_json(program("outbox", "--json"))) == 1


@pytest.mark.parametrize("deleted", [("run",), ("run", "other")])
def test_an_export_of_all_runs_counts_every_letter_that_the_file_would_take_along_when_it_goes(
    program: Program, post: Agentor, deleted: tuple[str, ...]
) -> None:
    for run_id in ("other", "third"):
        post.run("go", run_id=run_id)
    program("delete", *deleted, "--yes")
    result = program("export", "--jsonl", "out", "--json")
    there = read_json(program("outbox", "--json"))
    assert read_json(result)["letters"] == len(there) == 5
    gone = sum(letter["run_id"] in deleted for letter in there)
    assert f"5 letters ({gone} of runs that are deleted or damaged) are not" in result.stderr
    only = program("export", "--jsonl", "only", "--run", "third", "--json")
    assert read_json(only)["letters"] == 2
    assert "2 letters of this run are not" in only.stderr
    program("delete", "other", "third", "--yes")
    assert read_json(program("export", "--jsonl", "none", "--json"))["letters"] == 5


@pytest.mark.parametrize(
    "verb", [("delete", "run", "other"), ("prune", "--keep", "0")], ids=["delete", "prune"]
)
def test_whoever_takes_runs_away_is_told_that_their_letters_stay(
    program: Program, post: Agentor, verb: tuple[str, ...]
) -> None:
    write("runs.db", "other", BODIES)
    assert "1 letter of these runs is not delivered yet and stays" in program(*verb, "--yes").stderr
    assert len(read_json(program("outbox", "--json"))) == 1


def test_letters_that_cannot_be_read_keep_no_run_from_being_exported(
    program: Program, post: Agentor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> object:
        raise StoreError("a page of it is torn")

    monkeypatch.setattr(SQLiteStore, "letters", damaged)
    result = program("export", "--jsonl", "out", "--json")
    assert read_json(result)["letters"] is None
    assert "cannot be read: a page of it is torn" in result.stderr
    assert result.exit_code == 0
