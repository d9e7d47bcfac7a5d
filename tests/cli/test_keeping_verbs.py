"""`agentor delete` and `prune`: they say what goes, ask, and take nothing else."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from click.testing import CliRunner
from stored_runs import BODIES, Program, read_json, write

from agentor.cli import keeping, main
from agentor.engine.store import SQLiteStore
from agentor.engine.store.protocol import Removed
from agentor.errors import StoreError, UnfinishedDeleteError
from agentor.inputs import open_store


def left(path: str) -> list[str]:
    store: Any = open_store(path)
    try:
        return list(store.list_runs())
    finally:
        store.close()


def test_prune_shows_what_would_go_and_changes_nothing(program: Program, stored: str) -> None:
    result = program("prune", "--keep", "0", "--dry-run", "--store", stored)
    heading, row, total = result.stdout.splitlines()
    assert heading.split() == ["run", "status", "agent", "turns", "started"]
    assert row.split()[:2] == ["finished", "completed"]
    assert total.startswith("1 run would go: 7 events, ")
    assert left(stored) == ["finished", "killed"]


def test_prune_takes_what_it_has_shown(program: Program, stored: str) -> None:
    told = read_json(program("prune", "--keep", "0", "--dry-run", "--json", "--store", stored))
    assert (told["dry_run"], told["run_ids"], told["held"]) == (True, ["finished"], [])
    done = read_json(program("prune", "--keep", "0", "--yes", "--json", "--store", stored))
    assert done == told | {"dry_run": False}
    assert left(stored) == ["killed"]
    again = program("prune", "--keep", "0", "--store", stored)  # nothing to ask about
    assert again.stdout == "0 runs deleted: 0 events, 0 bytes.\n"
    assert again.exit_code == 0


def test_prune_takes_unfinished_runs_only_if_they_are_named(program: Program, stored: str) -> None:
    program("prune", "--status", "unfinished", "--yes", "--store", stored)
    assert left(stored) == ["finished"]


def test_prune_knows_the_age_of_a_run(program: Program, stored: str) -> None:
    for age in ("90s", "15m", "12h", "30d", "1.5w"):
        told = program("prune", "--older-than", age, "--yes", "--store", stored)
        assert told.stdout.startswith("0 runs deleted")
    assert read_json(
        program("prune", "--older-than", "0s", "--dry-run", "--json", "--store", stored)
    )["run_ids"] == ["finished"]


@pytest.mark.parametrize("age", ["30", "soon", "-1d", "30y", "", "99999999999w"])
def test_an_age_that_is_none_is_wrong_usage(program: Program, stored: str, age: str) -> None:
    result = program("prune", "--older-than", age, "--yes", "--store", stored)
    assert result.exit_code == 2
    assert left(stored) == ["finished", "killed"]


def test_prune_of_everything_must_be_said(program: Program, stored: str) -> None:
    result = program("prune", "--yes", "--store", stored)
    assert result.exit_code == 2
    assert "which runs?" in result.stderr


@pytest.mark.parametrize("words", [("prune", "--keep", "0"), ("delete", "finished")])
def test_without_a_terminal_nothing_goes_unless_yes_is_said(
    program: Program, stored: str, words: tuple[str, ...]
) -> None:
    result = program(*words, "--store", stored)
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert left(stored) == ["finished", "killed"]


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    class Sys:
        stdin = Terminal()

    monkeypatch.setattr(keeping, "sys", Sys)


@pytest.fixture
def meanwhile(on_a_terminal: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has something done while a person thinks, who then says yes."""

    def doing(act: Any) -> None:
        monkeypatch.setattr(keeping.click, "confirm", lambda *_, **__: act())

    return doing


@pytest.mark.parametrize("answer", ["y", "n"])
@pytest.mark.parametrize("words", [("prune", "--keep", "0"), ("delete", "finished")])
@pytest.mark.usefixtures("on_a_terminal")
def test_on_a_terminal_it_asks(stored: str, words: tuple[str, ...], answer: str) -> None:
    result = CliRunner().invoke(main, [*words, "--store", stored], input=f"{answer}\n")
    assert "finished" in result.stdout
    assert "Delete 1 run for good?" in result.stderr
    assert result.exit_code == (0 if answer == "y" else 1)
    assert left(stored) == (["killed"] if answer == "y" else ["finished", "killed"])


@pytest.mark.parametrize(
    "words", [("--keep", "1"), ("--status", "completed", "--keep", "1"), ("--older-than", "0s")]
)
def test_prune_takes_nothing_that_it_has_not_shown(
    stored: str, meanwhile: Any, words: tuple[str, ...]
) -> None:
    for name in ("second", "third"):
        write(stored, name, BODIES)
    store: Any = open_store(stored)
    shown = set(store.prune(keep=0 if "--keep" not in words else 1, dry_run=True).run_ids)
    again = min(shown)

    def others_end() -> None:
        store.delete(again)
        for name in (again, "fourth", "fifth"):
            write(stored, name, BODIES)

    meanwhile(others_end)
    with store:
        result = CliRunner().invoke(main, ["prune", *words, "--store", stored])
    assert result.exit_code == 0, result.output
    everything = {"finished", "second", "third", "fourth", "fifth", "killed"}
    assert set(left(stored)) == everything - (shown - {again})


def test_delete_takes_no_run_that_it_has_not_shown(stored: str, meanwhile: Any) -> None:
    def made_anew() -> None:
        store: Any = open_store(stored)
        with store:
            store.delete("finished")
        write(stored, "finished", [BODIES[0] | {"nonce": "another"}, *BODIES[1:]])

    meanwhile(made_anew)
    result = CliRunner().invoke(main, ["delete", "killed", "finished", "--store", stored])
    assert result.exit_code == 1
    assert "the run finished that was meant was deleted" in result.stderr
    assert sorted(left(stored)) == ["finished", "killed"]


def test_delete_takes_no_other_fork_of_the_same_parent(stored: str, meanwhile: Any) -> None:
    def fork(nonce: str) -> None:
        event = {"type": "fork", "forked_from": "finished", "forked_at": 7, "nonce": nonce}
        write(stored, "copy", [*BODIES, event])

    def made_anew() -> None:
        store: Any = open_store(stored)
        with store:
            store.delete("copy")
        fork("two")

    fork("one")
    meanwhile(made_anew)
    result = CliRunner().invoke(main, ["delete", "copy", "--store", stored])
    assert result.exit_code == 1
    assert "the run copy that was meant was deleted" in result.stderr
    assert "copy" in left(stored)


def test_delete_takes_the_runs_that_are_named(program: Program, stored: str) -> None:
    write(stored, "third", BODIES)
    result = program("delete", "third", "finished", "third", "--yes", "--store", stored)
    assert result.stdout.startswith("2 runs deleted: 14 events, ")
    assert left(stored) == ["killed"]


def test_delete_takes_nothing_if_one_is_not_there(program: Program, stored: str) -> None:
    result = program("delete", "finished", "nobody", "--yes", "--store", stored)
    assert result.exit_code == 1
    assert "no run 'nobody'" in result.stderr
    assert left(stored) == ["finished", "killed"]


def test_a_run_that_somebody_works_on_is_spared_and_told(program: Program, stored: str) -> None:
    store: Any = open_store(stored)
    store.acquire("finished", "somebody", 1000)
    for status in ("--status=completed", "--status=failed"):
        result = program("prune", "--keep", "0", status, "--yes", "--store", stored)
        assert result.exit_code == 0  # of a rule that is no failure, even if it takes nothing
        spared = "1 run spared, since somebody works there: finished" in result.stderr
        assert spared == (status == "--status=completed")
        assert "0 runs deleted" in result.stdout
    result = program("delete", "finished", "killed", "--yes", "--store", stored)
    assert result.exit_code == 1
    assert "spared" in result.stderr
    assert left(stored) == ["finished"]
    store.close()


@pytest.mark.parametrize(
    "words", [("prune", "--status", "completed"), ("delete", "third", "finished")]
)
def test_a_delete_that_fails_on_the_way_tells_what_is_gone_and_exits_with_1(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    write(stored, "third", BODIES)
    store: Any = open_store(stored)
    store.close()

    def fail(self: Any, *_: Any, **__: Any) -> Removed:
        raise UnfinishedDeleteError(Removed(["third"], [], 5, 50), "The disk is full.")

    for verb in ("delete", "prune"):
        monkeypatch.setattr(type(store), verb, _dry_or(getattr(type(store), verb), fail))
    result = program(*words, "--yes", "--json", "--store", stored)
    assert result.exit_code == 1
    told = {"dry_run": False, "run_ids": ["third"], "held": [], "events": 5, "bytes": 50}
    assert json.loads(result.stdout) == told
    assert "run 'third' is deleted" in result.stderr
    assert "The disk is full" in result.stderr
    told_to_people = program(*words, "--yes", "--store", stored)
    assert told_to_people.stdout == "1 run deleted: 5 events, 50 bytes.\n"


def _dry_or(right: Any, fail: Any) -> Any:
    return lambda *given, **named: (right if named.get("dry_run") else fail)(*given, **named)


def test_a_delete_of_several_runs_that_fails_at_one_tells_of_those_before(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_store(stored)
    store.close()
    delete = type(store).delete

    def full(self: Any, run_id: str) -> Removed:
        if run_id == "killed":
            raise StoreError("the disk is full")
        done: Removed = delete(self, run_id)
        return done

    monkeypatch.setattr(type(store), "delete", full)
    result = program("delete", "finished", "killed", "--yes", "--store", stored)
    assert result.exit_code == 1
    assert result.stdout.startswith("1 run deleted: 7 events, ")
    assert "the disk is full" in result.stderr
    assert left(stored) == ["killed"]
    result = program("delete", "killed", "--yes", "--json", "--store", stored)
    assert (result.exit_code, result.stdout) == (1, "")


def test_runs_as_a_tree_puts_forks_under_their_parents(program: Program, stored: str) -> None:
    store: Any = open_store(stored)
    from agentor.engine.store import fork_run

    for parent, fork in (("finished", "a"), ("a", "b"), ("finished", "c"), ("killed", "d")):
        fork_run(store, parent, fork)
    store.close()
    lines = program("runs", "--tree", "--store", stored).stdout.splitlines()[1:]
    runs = [line[: line.index("  ", 6)].rstrip() for line in lines]
    assert runs == ["finished", "├─ a", "│  └─ b", "└─ c", "killed", "└─ d"]
    flat = program("runs", "--tree", "--limit", "3", "--store", stored).stdout.splitlines()[1:]
    assert [line.split()[0] for line in flat] == ["b", "c", "d"]
    assert "lineage   finished → a → b" in program("show", "b", "--store", stored).stdout


def test_a_fork_of_which_only_the_store_knows_is_under_its_parent_too(program: Program) -> None:
    write("runs.db", "run", BODIES)
    with SQLiteStore("runs.db") as store:
        store.fork("run", "whole")
        store.fork("whole", "early", at=2)
    lines = program("runs", "--tree").stdout.splitlines()[1:]
    assert [line[: line.index("  ", 6)].rstrip() for line in lines] == [
        "run",
        "└─ whole",
        "   └─ early",
    ]
    told = {row["run_id"]: row for row in json.loads(program("runs", "--json").stdout)}
    assert (told["early"]["forked_from"], told["early"]["forked_at"]) == ("whole", 2)


def test_delete_says_that_the_events_of_a_run_with_forks_stay(
    program: Program, stored: str
) -> None:
    program("fork", "app.py:agent", "finished", "--id", "copy", "--store", stored)
    first = program("delete", "finished", "--yes", "--store", stored)
    shares = not stored.endswith("/")
    assert ("The other events stay, since forks have them too." in first.stderr) == shares
    assert program("delete", "copy", "--yes", "--store", stored).stderr == ""


def test_prune_says_so_too(program: Program, stored: str) -> None:
    write(stored, "branched", BODIES)
    if stored.endswith("/"):  # where the clock of the file system may not have moved on by the fork
        os.utime(f"{stored}branched.jsonl", (1, 1))
    program("fork", "app.py:agent", "branched", "--id", "copy", "--store", stored)
    pruned = program("prune", "--keep", "1", "--yes", "--store", stored)
    assert sorted(left(stored)) == ["copy", "killed"]
    shares = not stored.endswith("/")
    assert ("The other events stay, since forks have them too." in pruned.stderr) == shares
