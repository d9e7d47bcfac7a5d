"""What an import cannot bring over as it was is told, and what it can is not; and two imports at once agree."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentor.engine.events import Event
from agentor.engine.store import FileStore, MemoryStore, SQLiteStore
from agentor.export.fidelity import changes_of
from agentor.export.jsonl import export_runs, import_runs, log_files
from tests.core.logs import JSON, logs

START = '{"type":"run_start","messages":[{"role":"user","content":"Hi"}],"seq":1}\n'

LINES = [
    ('{"type":"x","seq":2,"y":NaN}', 'seq 2: y: NaN becomes "NaN"'),
    ('{"type":"x","seq":2,"y":[{"z":-Infinity}]}', 'seq 2: y[0].z: -Infinity becomes "-Infinity"'),
    ('{"type":"x","seq":2,"y":1e400}', 'seq 2: y: "1e400" becomes Infinity'),
    ('{"type":"x","seq":2,"y":11e999}', 'seq 2: y: "11e999" becomes Infinity'),
    (
        '{"type":"message","seq":2,"text":"a\\ud800b"}',
        'seq 2: text: "a\\ud800b" becomes "a\\ufffdb"',
    ),
    (
        '{"type":"generation","seq":2,"usage":{"input_tokens":99999999999999999999}}',
        "seq 2: usage.input_tokens: 99999999999999999999 becomes 9007199254740992",
    ),
    (
        '{"type":"generation","seq":2,"usage":{"input_tokens":1,"watts":7}}',
        "seq 2: usage.watts is left out",
    ),
]


@pytest.mark.parametrize(("line", "told"), LINES)
@pytest.mark.parametrize("kind", [MemoryStore, FileStore, SQLiteStore])
def test_a_value_that_no_event_can_keep_is_told_once_and_the_run_arrives(
    tmp_path: Path, line: str, told: str, kind: Any
) -> None:
    (tmp_path / "run.jsonl").write_text(START + line + "\n")
    store = MemoryStore() if kind is MemoryStore else kind(tmp_path / "store")
    files = log_files([tmp_path / "run.jsonl"])
    first, second = import_runs(store, files), import_runs(store, files)
    assert [(each.run_id, each.problem) for each in first.changed] == [("run", told)]
    assert (first.imported, first.damaged) == (["run"], [])
    assert (second.already_there, second.changed) == (["run"], [])
    store.close()


def test_of_many_such_values_the_first_is_told_and_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(START + '{"type":"x","seq":2,"y":[NaN,NaN,NaN]}\n')
    (found,) = import_runs(MemoryStore(), log_files([tmp_path])).changed
    assert found.problem == 'seq 2: y[0]: NaN becomes "NaN" (and 2 more)'


@given(log=logs(), extra=st.dictionaries(st.sampled_from(["x_trace", "größe"]), JSON))
@example(log=[], extra={"x": None})
def test_what_an_event_says_is_what_its_line_said(log: list[Event], extra: dict[str, Any]) -> None:
    lines = [json.dumps({**event.to_dict(), **extra}) for event in log]
    assert changes_of("\n".join(["", *lines, '{"torn']).encode()) == []


def test_a_number_beyond_all_floats_goes_out_and_comes_in_and_is_told_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.path("run").write_text(START + '{"type":"x","seq":2,"y":-1e400}\n')
    assert export_runs(store, tmp_path / "out").runs == ["run"]
    assert '"y":-1e999' in (tmp_path / "out" / "run.jsonl").read_text()
    there = SQLiteStore(tmp_path / "runs.db")
    first, second = (
        import_runs(there, log_files([place])) for place in (store.directory, tmp_path / "out")
    )
    assert (first.imported, second.already_there) == (["run"], ["run"])
    assert (first.damaged, second.damaged, second.changed) == ([], [], [])
    assert changes_of((tmp_path / "out" / "run.jsonl").read_bytes()) == []
    for each in (store, there):
        each.fork("run", "fork")
        assert each.load("fork") == store.load("run")
        each.close()


def test_a_skipped_line_of_an_old_log_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old.jsonl").write_text(
        '{"type":"run_start","messages":[]}\n{"type":"gen\n'
        '{"type":"generation","messages":[{"role":"user","content":"u"}],"text":"hello"}\n'
    )
    with caplog.at_level(logging.WARNING):
        outcome = import_runs(MemoryStore(), log_files([tmp_path]))
    assert [each.run_id for each in outcome.damaged] == ["old"]
    assert caplog.records == []


class Raced(MemoryStore):
    """Just before it writes, somebody else has written."""

    def __init__(self, meanwhile: Callable[[MemoryStore], object]) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[MemoryStore], object]] = [meanwhile]

    def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
        while self.meanwhile:
            self.meanwhile.pop()(self)
        super().append_many(run_id, events, lease)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "run.jsonl").write_text(START + '{"type":"message","seq":2,"text":"Hello"}\n')
    return log_files([tmp_path])


def test_of_two_imports_at_once_the_slower_finds_the_runs_there(files: list[Path]) -> None:
    store = Raced(lambda store: import_runs(store, files))
    outcome = import_runs(store, files)
    assert (outcome.already_there, outcome.imported, outcome.taken) == (["run"], [], [])
    assert [event.seq for event in store.load("run")] == [1, 2]


def test_what_the_other_has_only_begun_is_completed(files: list[Path]) -> None:
    beginning = Event.from_json(START)
    store = Raced(lambda store: store.append("run", beginning))
    assert import_runs(store, files).completed == ["run"]
    assert [event.seq for event in store.load("run")] == [1, 2]


def test_another_run_that_came_meanwhile_keeps_its_id(files: list[Path]) -> None:
    store = Raced(lambda store: store.append("run", Event("run_start", agent="another")))
    assert import_runs(store, files).taken == ["run"]
    assert [event.agent for event in store.load("run")] == ["another"]


def test_a_store_that_refuses_for_reasons_of_its_own_is_not_asked_for_ever(
    files: list[Path],
) -> None:
    class Refusing(MemoryStore):
        def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
            super().append_many(run_id, [events[0].with_(seq=7)], lease)

    assert import_runs(Refusing(), files).taken == ["run"]


def test_a_file_that_is_taken_away_while_a_directory_is_listed_is_no_event(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glob = Path.glob

    def late(path: Path, pattern: str) -> list[Path]:
        return [*glob(path, pattern), path / "moved-away.jsonl"]

    monkeypatch.setattr(Path, "glob", late)
    assert log_files([tmp_path]) == files
