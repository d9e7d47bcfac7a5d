"""`verify` on a file that SQLite calls malformed says what there is to say, and what to do next."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from agentor.cli import main
from agentor.engine.events import Event
from agentor.engine.store import FileStore, SQLiteStore

PAGE = 4096
RUNS = [f"run{number}" for number in range(6)]


def invoke(*words: str) -> Result:
    done = CliRunner().invoke(main, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Runs whose events are long, so that each has pages of its own."""
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        for name in RUNS:
            start = Event("run_start", messages=[{"role": "user", "content": name * 3000}])
            store.append_many(name, [start, Event("message", text="a")])
    return path


def roots(path: Path) -> dict[str, int]:
    connection = apsw.Connection(str(path))
    found = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema").fetchall())
    connection.close()
    return found


def overwrite(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + 100] = b"\xff" * 100
    path.write_bytes(content)


def test_the_runs_that_are_whole_are_named_with_the_way_to_save_them(path: Path) -> None:
    overwrite(path, path.read_bytes().index(b"run3run3") // PAGE * PAGE + PAGE)
    overwrite(path, roots(path)["agentor_runs_by_agent"] * PAGE - PAGE)
    done = invoke("verify", "--store", str(path))
    assert done.exit_code == 1
    assert "agentor verify" not in done.output
    assert "SQLite" in done.output or "database main" in done.output
    last = done.output.splitlines()[-1]
    assert "Go back to a backup" in last
    whole = last.partition("Whole: ")[2].split(", ")
    assert "run0" in whole
    assert "run3" not in whole
    out = path.parent / "out"
    named = [word for name in whole for word in ("--run", name)]
    assert invoke("export", "--jsonl", str(out), *named, "--store", str(path)).exit_code == 0
    assert invoke("import", str(out), "--store", str(path.parent / "new.db")).exit_code == 0
    with SQLiteStore(path.parent / "new.db") as store:
        assert sorted(store.list_runs()) == sorted(whole)


def test_an_index_that_lacks_a_run_is_told_with_what_to_do_and_every_run_is_whole(
    path: Path,
) -> None:
    content = bytearray(path.read_bytes())
    count = roots(path)["agentor_runs_by_created"] * PAGE - PAGE + 4  # of the cells on its page
    content[count] -= 1
    path.write_bytes(content)
    *_, checked, last = invoke("verify", "--store", str(path)).output.splitlines()
    assert checked == "6 runs checked: the store has problems."
    assert "Go back to a backup" in last
    assert last.endswith(", ".join(RUNS))


@pytest.mark.parametrize("table", ["agentor_runs", "agentor_events", "agentor_schema"])
def test_a_table_that_cannot_be_read_is_told_as_what_sqlite_finds(path: Path, table: str) -> None:
    overwrite(path, roots(path)[table] * PAGE - PAGE)
    done = invoke("verify", "--store", str(path))
    assert done.exit_code == 1
    assert "malformed" in done.output
    assert "agentor verify" not in done.output
    assert done.output.splitlines()[-1] == (
        "No run can be read as it was recorded: go back to a backup."
    )
    told = json.loads(invoke("verify", "--json", "--store", str(path)).output)
    assert told["ok"] is False
    assert told["problems"]
    assert told["runs"] == (0 if table == "agentor_schema" else len(RUNS))


def test_a_run_on_damaged_pages_is_left_out_of_an_export_of_all_the_others(path: Path) -> None:
    overwrite(path, path.read_bytes().index(b"run3run3") // PAGE * PAGE + PAGE)
    done = invoke("export", "--jsonl", str(path.parent / "out"), "--store", str(path))
    assert done.exit_code == 1
    kept = {name for name in RUNS if (path.parent / "out" / f"{name}.jsonl").exists()}
    assert kept == {*RUNS} - {"run3"}


def test_damage_of_one_run_in_a_directory_gives_no_advice_about_a_database(tmp_path: Path) -> None:
    FileStore(tmp_path).append("run", Event("run_start", messages=[]))
    (tmp_path / "run.jsonl").write_bytes(b"\xff\n" + (tmp_path / "run.jsonl").read_bytes())
    done = invoke("verify", "--store", f"{tmp_path}/")
    assert done.exit_code == 1
    assert "backup" not in done.output
