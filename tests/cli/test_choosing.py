"""Which runs a verb is about: where only logs tell, the end of a log is enough to leave most of them out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import BODIES, write

from agentor.cli.choosing import runs_of
from agentor.cli.overview import STATUSES, overviews_of
from agentor.engine.events import Event
from agentor.engine.store import FileStore
from agentor.engine.store.jsonl import JsonlLog
from tests.core.logs import logs, old_log


@given(log=logs(), torn=st.integers(0, 30))
def test_the_end_of_a_log_tells_the_status_that_the_whole_log_has_or_nothing(
    log: list[Event], torn: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = FileStore(place)
        lines = "".join(f"{event.to_json()}\n" for event in log)
        store.path("run").write_text(lines[: max(len(lines) - torn, 0)])
        (row,) = overviews_of(store, ["run"]) if store.load("run") else (None,)
        told = store.status_at_end("run")
    assert told is None or (row is not None and told == row.status)


@pytest.mark.parametrize(
    "last",
    [
        {"type": "message", "text": '{"type":"run_end","status":"paused"}'},
        {"type": "run_ended_otherwise", "status": "completed"},
        {"type": "message", "text": "x" * 20_000},
    ],
)
def test_what_only_talks_of_an_end_leaves_it_to_the_whole_log(
    tmp_path: Path, last: dict[str, str]
) -> None:
    store = FileStore(tmp_path)
    for body in (*BODIES[:4], {"type": "run_end", "status": "failed"}, last):
        store.append("run", Event.from_dict(body))
    assert store.status_at_end("run") is None
    assert [row.run_id for row in runs_of(store, ["failed"])] == ["run"]


def test_a_log_of_agentor_0_1_tells_its_status_too(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.path("old").write_text("".join(f"{event.to_json()}\n" for event in old_log()))
    (row,) = overviews_of(store, ["old"])
    assert store.status_at_end("old") == row.status
    assert store.status_at_end("nobody") is None


def test_runs_of_another_status_are_not_read(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status in STATUSES[:-1]:
        write("runs/", status, [*BODIES[:4], {"type": "run_end", "status": status}])
    write("runs/", "unfinished", BODIES[:4])
    store, read = FileStore("runs"), FileStore.read
    looked_at: list[str] = []

    def watched(self: FileStore, run_id: str) -> JsonlLog:
        looked_at.append(run_id)
        return read(self, run_id)

    monkeypatch.setattr(FileStore, "read", watched)
    for status in STATUSES:
        assert [row.run_id for row in runs_of(store, [status])] == [status]
        assert looked_at == [status]
        looked_at.clear()
