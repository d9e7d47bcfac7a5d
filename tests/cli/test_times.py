"""When a run began and ended: the same by every door, in every store, and after a move to another store."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from stored_runs import BODIES, Program, read_json, write

from agentor.cli.overview import overview
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import FileStore, SQLiteStore
from agentor.engine.store.forking import fork_run
from tests.core.logs import logs

Times = dict[str, tuple[float | None, float | None]]
QUEUED = BODIES[0] | {"queued": True, "started_at": 1_780_000_000.0}
BEGUN = {"type": "run_start", "kept": 1, "started_at": 1_780_000_900.0}


@pytest.fixture
def forks(place: Path, store_path: str) -> str:
    """A store with runs that were enqueued, and forks: a copy, one from before the end, and one with an end of its own."""
    write(store_path, "parent", BODIES)
    write(store_path, "waits", [QUEUED])
    write(store_path, "waited", [QUEUED, BEGUN, *BODIES[1:]])
    with FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path) as store:
        fork_run(store, "parent", "copy")
        fork_run(store, "parent", "early", at=4)
        fork_run(store, "early", "grandchild")
        fork_run(store, "parent", "went-on")
        later = clock.now() + 60
        store.append("went-on", Event("run_start", kept=1, started_at=later))
        store.append("went-on", Event("run_end", status="completed", ended_at=later + 5))
    return store_path


def by_runs(program: Program, store: str) -> Times:
    rows = read_json(program("runs", "--json", "--store", store))
    return {row["run_id"]: (row["started_at"], row["ended_at"]) for row in rows}


def by_show(program: Program, store: str, run_id: str) -> tuple[float | None, float | None]:
    row = read_json(program("show", run_id, "--json", "--store", store))
    return row["started_at"], row["ended_at"]


def test_every_door_tells_the_same_times(program: Program, forks: str) -> None:
    told = by_runs(program, forks)
    assert told == {run_id: by_show(program, forks, run_id) for run_id in told}
    program("export", "tables.db", "--store", forks)
    rows = apsw.Connection("tables.db").execute("SELECT run_id, started_at, ended_at FROM runs")
    exported = {run_id: (seconds(start), seconds(end)) for run_id, start, end in rows}
    assert exported == {run_id: (whole(start), whole(end)) for run_id, (start, end) in told.items()}
    if not forks.endswith("/"):
        with SQLiteStore(forks) as store:
            assert told == {row.run_id: (row.started_at, row.ended_at) for row in store.runs()}


def seconds(moment: str | None) -> float | None:
    return None if moment is None else whole(datetime.fromisoformat(moment).timestamp())


def whole(time: float | None) -> float | None:
    return None if time is None else int(time)


@pytest.mark.parametrize("other", ["other.db", "other/"])
def test_times_are_those_of_the_log_also_in_another_store(
    program: Program, forks: str, other: str
) -> None:
    before = by_runs(program, forks)
    program("export", "--jsonl", "moved/", "--store", forks)
    program("import", "moved/", "--store", other)
    assert by_runs(program, other) == before


def test_a_fork_begins_where_it_was_branched_off_and_ends_no_earlier(
    program: Program, forks: str
) -> None:
    told = by_runs(program, forks)
    assert told["parent"] == (1_780_000_000.0, 1_780_000_002.5)
    assert told["waits"] == (None, None)
    assert told["waited"] == (1_780_000_900.0, 1_780_000_002.5)
    for run_id in ("copy", "early", "grandchild", "went-on"):
        start, end = told[run_id]
        assert start is not None
        assert start > 1_780_000_900
        assert end is None or end >= start
    assert told["copy"][0] == told["copy"][1]
    assert told["early"][1] is None


def test_a_summary_of_before_is_not_called_damaged(program: Program, forks: str) -> None:
    assert program("verify", "--store", forks).exit_code == 0


@settings(max_examples=40, deadline=None)
@given(log=logs())
def test_a_row_says_of_any_log_what_its_events_say(log: list[Event]) -> None:
    with tempfile.TemporaryDirectory() as place, SQLiteStore(Path(place) / "runs.db") as store:
        store.append_many("run", log)
        rows: list[Any] = [(row.started_at, row.ended_at) for row in store.runs()]
    right = overview("run", log)
    assert rows == [(right.started_at, right.ended_at)] * bool(log)
