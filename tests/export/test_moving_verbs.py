"""`agentor export`, `import` and `backup`: what they say, and how they end."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.store import FileStore, SQLiteStore
from agentor.errors import StoreError
from agentor.export import jsonl
from agentor.export.adding import add_events
from tests.cli.stored_runs import BODIES, write
from tests.export.conftest import Program


@pytest.fixture(params=["runs.db", "runs/"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, program: Program) -> str:
    """A store with a finished run and a killed one, in the current directory."""
    write(request.param, "finished", BODIES)
    write(request.param, "killed", BODIES[:3])
    return str(request.param)


def read(result: Any) -> Any:
    return json.loads(result.stdout)


def damage(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "runs" / "torn.jsonl").write_text('{"type":"run_start","seq":2}\n')


def test_export_says_what_was_written(program: Program, stored: str) -> None:
    result = program("export", "out.db", "--store", stored)
    assert result.stdout == "out.db: 2 runs, 3 turns, 5 messages, 2 tool calls.\n"
    assert result.exit_code == 0
    with sqlite3.connect("out.db") as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (5,)
    connection.close()
    one = program("export", "one.db", "--run", "finished", "--store", stored)
    assert one.stdout == "one.db: 1 run, 2 turns, 4 messages, 1 tool call.\n"


def test_export_as_json_counts_the_rows_of_each_table(program: Program, stored: str) -> None:
    summary = read(program("export", "out.db", "--run", "killed", "--store", stored, "--json"))
    assert summary == {
        "out": "out.db",
        "runs": 1,
        "turns": 1,
        "messages": 1,
        "tool_calls": 1,
        "usage": 1,
        "damaged": [],
    }


def test_run_may_be_given_several_times(program: Program, stored: str) -> None:
    words = ("--run", "killed", "--run", "finished", "--store", stored, "--json")
    assert read(program("export", "out.db", *words))["runs"] == 2
    assert read(program("export", "--jsonl", "out", *words))["runs"] == 2


def test_export_refuses_to_overwrite_unless_forced(program: Program, stored: str) -> None:
    assert program("export", "out.db", "--store", stored).exit_code == 0
    result = program("export", "out.db", "--store", stored)
    assert (result.exit_code, "exists already" in result.stderr) == (2, True)
    assert program("export", "out.db", "--store", stored, "--force").exit_code == 0


def test_export_of_a_missing_run_or_store_writes_nothing(program: Program, stored: str) -> None:
    assert program("export", "out.db", "--run", "nobody", "--store", stored).exit_code == 1
    assert program("export", "out.db", "--store", "nowhere.db").exit_code == 2
    assert not Path("out.db").exists()
    assert not Path("nowhere.db").exists()


@pytest.mark.parametrize("form", [(), ("--jsonl",)])
def test_export_ends_with_1_if_a_run_was_damaged(
    program: Program, tmp_path: Path, form: tuple[str, ...]
) -> None:
    write("runs/", "good", BODIES)
    damage(tmp_path)
    result = program("export", *form, "out", "--store", "runs/", "--json")
    assert result.exit_code == 1
    assert [problem["run_id"] for problem in read(result)["damaged"]] == ["torn"]
    assert "run torn: " in result.stderr


def test_runs_go_from_a_store_to_files_to_another_store(program: Program, stored: str) -> None:
    assert program("export", "--jsonl", "files", "--store", stored).stdout == "files: 2 runs.\n"
    result = program("import", "files", "--store", "other.db")
    assert (result.stdout, result.exit_code) == ("2 runs imported.\n", 0)
    again = program("import", "files", "--store", "other.db")
    assert (again.stdout, again.exit_code) == ("0 runs imported, 2 already there.\n", 0)
    with SQLiteStore("other.db") as store:
        assert store.list_runs() == ["finished", "killed"]
        assert store.load("finished") == FileStore("files").load("finished")


def test_import_takes_single_files_too(program: Program, stored: str) -> None:
    program("export", "--jsonl", "files", "--store", stored)
    result = program("import", "files/killed.jsonl", "files/finished.jsonl", "--store", "one/")
    assert result.stdout == "2 runs imported.\n"
    assert FileStore("one").list_runs() == ["killed", "finished"]


@pytest.mark.parametrize(("on_conflict", "code"), [("skip", 0), ("fail", 1)])
def test_import_tells_how_many_ids_are_taken(
    program: Program, stored: str, on_conflict: str, code: int
) -> None:
    program("export", "--jsonl", "files", "--store", stored)
    write("other.db", "killed", [{**BODIES[0], "agent": "Another"}])
    result = program("import", "files", "--on-conflict", on_conflict, "--store", "other.db")
    assert result.exit_code == code
    with SQLiteStore("other.db") as store:
        assert store.load("killed")[0].agent == "Another"
        assert len(store.list_runs()) == (2 if on_conflict == "skip" else 1)
    told = {
        "skip": "1 run imported, 1 left out, since another run has the id (killed).\n",
        "fail": "1 of the ids belongs to another run in this store (killed); nothing was imported",
    }
    assert told[on_conflict] in result.output


def test_import_ends_with_1_if_a_file_was_damaged(program: Program, tmp_path: Path) -> None:
    write("runs/", "good", BODIES)
    damage(tmp_path)
    result = program("import", "runs", "--store", "other.db", "--json")
    assert result.exit_code == 1
    summary = read(result)
    assert (summary["imported"], summary["taken"]) == (1, [])
    assert [problem["run_id"] for problem in summary["damaged"]] == ["torn"]


@pytest.mark.parametrize("store", ["other.db", "other/"])
def test_an_import_that_meets_a_full_disk_says_what_it_has_done_until_then(
    program: Program, stored: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("export", "--jsonl", "out", "--store", stored)
    room = 1

    def add(*args: Any, **kwargs: Any) -> None:
        nonlocal room
        if not room:
            raise StoreError("the disk is full")
        room -= 1
        add_events(*args, **kwargs)

    monkeypatch.setattr(jsonl, "add_events", add)
    ended = program("import", "out", "--store", store)
    assert ended.exit_code == 1
    assert ended.stdout == "1 run imported.\n"
    assert ended.stderr.splitlines() == [
        "The same import, once that works, goes on with the others.",
        "Error: the disk is full",
    ]
    again = program("import", "out", "--store", store, "--json")
    assert again.exit_code == 1
    assert (read(again)["imported"], read(again)["already_there"]) == (0, 1)
    room = 1
    assert program("import", "out", "--store", store).stdout == "1 run imported, 1 already there.\n"


def test_an_import_that_could_do_nothing_says_why_and_nothing_else(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(*args: Any, **kwargs: Any) -> None:
        raise StoreError("the disk is full")

    program("export", "--jsonl", "out", "--store", stored)
    monkeypatch.setattr(jsonl, "add_events", add)
    ended = program("import", "out", "--store", "other.db", "--json")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (1, "", "Error: the disk is full\n")


def test_import_of_nothing_makes_no_store(program: Program) -> None:
    assert program("import", "nothing", "--store", "other.db").exit_code == 2
    assert program("import", "--store", "other.db").exit_code == 2
    assert not Path("other.db").exists()


def test_backup_copies_a_sqlite_store(program: Program) -> None:
    write("runs.db", "finished", BODIES)
    summary = read(program("backup", "copy.db", "--json"))
    assert summary == {"out": "copy.db", "bytes": Path("copy.db").stat().st_size, "damaged": []}
    assert program("verify", "--store", "copy.db").exit_code == 0
    assert program("backup", "copy.db").exit_code == 2  # it is there already


def test_backup_of_a_directory_says_what_to_do_instead(program: Program) -> None:
    write("runs/", "finished", BODIES)
    result = program("backup", "copy", "--store", "runs/")
    assert (result.exit_code, "copy a directory of JSONL files" in result.stderr) == (2, True)


def test_what_a_damaged_file_says_cannot_harm_the_terminal(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "bad\x1b[31m.jsonl").write_text("{}\n")
    result = program("import", "files", "--store", "other.db")
    assert result.exit_code == 1
    assert "\x1b" not in result.output


@pytest.mark.parametrize("words", [("out.db",), ("out", "--jsonl")])
def test_what_is_in_the_way_of_an_export_is_told_with_the_option_that_replaces_it(
    program: Program, stored: str, words: tuple[str, ...]
) -> None:
    assert program("export", *words, "--store", stored).exit_code == 0
    result = program("export", *words, "--store", stored)
    assert "exists already" in result.stderr
    assert "--force replaces what an earlier export has left there." in result.stderr
    assert program("export", *words, "--force", "--store", stored).exit_code == 0


def test_backup_makes_the_directory_that_it_is_to_write_to(
    program: Program, tmp_path: Path
) -> None:
    write("runs.db", "finished", BODIES)
    assert program("backup", "backups/2026/monday.db").exit_code == 0
    with SQLiteStore(tmp_path / "backups/2026/monday.db") as copy:
        assert copy.list_runs() == ["finished"]
    (tmp_path / "file").touch()
    result = program("backup", "file/monday.db")
    assert (result.exit_code, "file/monday.db: " in result.stderr) == (1, True)
