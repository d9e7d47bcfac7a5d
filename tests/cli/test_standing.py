"""Three kinds of unfinished runs: queued, worked on, and free because nobody works on them any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stored_runs import BODIES, Program, read_json, write

from agentor.engine.store import FileStore, SQLiteStore
from agentor.engine.store.owner import owner_id


@pytest.fixture
def three(place: Path, store_path: str, program: Program) -> Any:
    """A store with a run of each kind, and the lease of the one that is worked on."""
    write(store_path, "free", BODIES[:4])
    write(store_path, "busy", BODIES[:4])
    program("enqueue", "app.py:agent", "How is Oslo?", "--id", "waiting", "--store", store_path)
    with FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path) as store:
        yield store.acquire("busy", owner_id(), 1000.0)


def has_an_end(store_path: str) -> bool:
    """Whether a lease ends by itself; in a directory of files it ends with its process."""
    return not store_path.endswith("/")


def test_runs_tells_them_apart(program: Program, store_path: str, three: Any) -> None:
    heading, *lines = program("runs", "--store", store_path).stdout.splitlines()
    told = {line.split()[0]: line for line in lines}
    assert heading.split()[:3] == ["run", "status", "worker"]
    assert told["free"].split()[1] == "unfinished"
    assert told["waiting"].split()[1] == "queued"
    assert told["busy"].split()[1] == "running"
    assert three.owner.split("/")[0] in told["busy"]
    assert (" until " in told["busy"]) == has_an_end(store_path)


def test_runs_as_json_tells_them_apart(program: Program, store_path: str, three: Any) -> None:
    rows = {
        row["run_id"]: row for row in read_json(program("runs", "--json", "--store", store_path))
    }
    assert {row["status"] for row in rows.values()} == {"unfinished"}
    assert {name: row["queued"] for name, row in rows.items()} == {
        "free": False,
        "busy": False,
        "waiting": True,
    }
    expires_at = three.expires_at if has_an_end(store_path) else None
    assert rows["busy"]["worker"] == {"owner": three.owner, "expires_at": expires_at}
    assert rows["free"]["worker"] is rows["waiting"]["worker"] is None
    assert rows["waiting"]["started_at"] is None


def test_show_says_who_works_on_it_and_that_a_resume_would_be_refused(
    program: Program, store_path: str, three: Any
) -> None:
    worker = three.owner.split("/")[0]
    busy = program("show", "busy", "--store", store_path).stdout
    assert "status    running" in busy
    assert f"worker    {worker}{' until ' if has_an_end(store_path) else ''}" in busy
    assert f"resume    is refused while {worker} works on it" in busy
    assert "status    queued" in program("show", "waiting", "--store", store_path).stdout
    free = program("show", "free", "--store", store_path).stdout
    assert "status    unfinished" in free
    assert "worker" not in free


def test_the_first_start_of_an_enqueued_run_is_a_start_and_the_next_is_a_resume(
    program: Program, store_path: str, three: Any
) -> None:
    program("resume", "app.py:hasty", "waiting", "--store", store_path)
    program("resume", "app.py:agent", "waiting", "--store", store_path)
    for verb in ("show", "tail"):
        lines = program(verb, "waiting", "--store", store_path).stdout.splitlines()
        labels = [line.split()[1] for line in lines if line[:5].strip().isdigit()]
        opened = [label for label in labels if label in ("queued", "started", "resumed")]
        assert opened == ["queued", "started", "resumed"]
    assert "status    completed" in program("show", "waiting", "--store", store_path).stdout


def test_what_follows_all_runs_knows_the_first_start_of_a_queued_one(
    program: Program, place: Path
) -> None:
    program("enqueue", "app.py:agent", "How is Oslo?", "--id", "waiting", "--store", "runs.db")
    program("resume", "app.py:agent", "waiting", "--store", "runs.db")
    told = program("tail", "--after", "0", "--timeout", "0", "--store", "runs.db").stdout
    assert [word for word in ("queued", "started", "resumed") if f"  {word} " in told] == [
        *("queued", "started")
    ]


def test_a_run_that_a_dead_process_held_is_nobodys(
    program: Program, store_path: str, place: Path
) -> None:
    write(store_path, "killed", BODIES[:4])
    gone = "999999999@here/" + owner_id().split("/", 1)[1].rsplit("/", 2)[0] + "/1/x"
    store: Any = FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path)
    with store:
        store.acquire("killed", gone, 1000.0)
        (row,) = read_json(program("runs", "--json", "--store", store_path))
    assert row["worker"] is None


def test_a_run_that_was_let_go_of_has_been_begun_with(program: Program, store_path: str) -> None:
    queued = BODIES[0] | {"queued": True}
    begun = {"type": "run_start", "kept": 1, "started_at": 1_780_000_900.0}
    write(store_path, "let-go", [queued, begun, {"type": "stop"}])
    (row,) = read_json(program("runs", "--json", "--store", store_path))
    shown = read_json(program("show", "let-go", "--json", "--store", store_path))
    for told in (row, shown):
        assert (told["status"], told["queued"]) == ("unfinished", False)
        assert told["started_at"] == 1_780_000_900.0
    assert "unfinished" in program("runs", "--store", store_path).stdout


@pytest.mark.parametrize(
    ("status", "expected"),
    [("running", ["busy"]), ("queued", ["waiting"]), ("unfinished", ["free", "busy", "waiting"])],
)
def test_every_word_that_runs_prints_can_be_asked_for(
    program: Program, store_path: str, three: Any, status: str, expected: list[str]
) -> None:
    words = ("runs", "--store", store_path, "--status", status)
    assert [row["run_id"] for row in read_json(program(*words, "--json"))] == expected
    told = program(*words, "--limit", "1")
    assert [line.split()[0] for line in told.stdout.splitlines()[1:]] == expected[-1:]
    assert ("not shown" in told.stderr) == (len(expected) > 1)
    assert read_json(program(*words, "--agent", "Nobody", "--json")) == []
