"""Runs between stores and JSONL files: everything survives, twice is once, and damage stays where it is."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.replay import replay
from agentor.engine.store import FileStore, MemoryStore, SQLiteStore
from agentor.errors import ConfigError, RunNotFoundError, StoreError
from agentor.export import jsonl
from agentor.export.jsonl import export_runs, import_runs, log_files
from tests.core.logs import JSON, logs, old_log

UNKNOWN_FIELDS = st.dictionaries(
    st.sampled_from(["x_trace", "größe", "from_the_future"]), JSON.filter(lambda v: v is not None)
)


def add(store: Any, run_id: str, log: Sequence[Event]) -> None:
    for event in log:
        store.append(run_id, event)


def bodies(log: Sequence[Event]) -> list[dict[str, Any]]:
    return [event.to_dict() for event in log]


@st.composite
def stored_logs(draw: st.DrawFn) -> list[Event]:
    """Logs with unknown fields, and events of a type that this version does not know."""
    log = [event.with_(extra=draw(UNKNOWN_FIELDS)) for event in draw(logs())]
    for _ in range(draw(st.integers(0, 2))):
        log.append(Event("approval", extra=draw(UNKNOWN_FIELDS), seq=len(log) + 1))
    return log


@settings(max_examples=25)
@given(runs=st.dictionaries(st.sampled_from(["a", "B-2", "c.3"]), stored_logs(), max_size=3))
def test_from_sqlite_to_files_to_sqlite_gives_equal_events(runs: dict[str, list[Event]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "source.db", Path(place) / "target.db"
        with SQLiteStore(source) as first:
            for run_id, log in runs.items():
                first.append_many(run_id, log)
            exported = export_runs(first, Path(place) / "files")
        assert exported.damaged == []
        files = log_files([Path(place) / "files"]) if runs else []
        with SQLiteStore(target) as second:
            imported = import_runs(second, files)
            assert imported.damaged == []
            assert imported.imported == second.list_runs() == list(runs)
            for run_id, log in runs.items():
                assert second.load(run_id) == log
            assert second.integrity_check() == []


def test_a_directory_of_exported_runs_is_a_file_store_in_the_same_order(
    database: SQLiteStore, story: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = jsonl._write

    def write_on_a_coarse_file_system(path: Path, log: Sequence[Event], replace: bool) -> None:
        write(path, log, replace)
        os.utime(path, (1_780_000_000, 1_780_000_000))

    monkeypatch.setattr(jsonl, "_write", write_on_a_coarse_file_system)
    names = ["zebra", "ant", "mouse", "bee"]
    for name in names:
        add(database, name, story)
    export_runs(database, tmp_path / "files")
    files = FileStore(tmp_path / "files")
    assert files.list_runs() == names
    assert all(files.load(name) == story for name in names)


def test_importing_keeps_the_order_of_a_file_store(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    files = FileStore(tmp_path / "files")
    for name in ("zebra", "ant", "mouse"):
        add(files, name, story)
    import_runs(database, log_files([tmp_path / "files"]))
    assert database.list_runs() == files.list_runs() == ["zebra", "ant", "mouse"]


def test_a_log_of_agentor_0_1_arrives_with_its_whole_messages_and_gets_seqs(
    database: SQLiteStore, tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    old = old_log()
    path = write_lines("old.jsonl", *bodies(old))
    assert "seq" not in path.read_text()
    assert import_runs(database, [path]).imported == ["old"]
    loaded = database.load("old")
    assert loaded == [event.with_(seq=seq) for seq, event in enumerate(old, 1)]
    assert loaded[6].to_dict()["messages"] == old[6].messages
    assert replay(loaded).messages == replay(old).messages
    export_runs(database, tmp_path / "files")
    assert FileStore(tmp_path / "files").load("old") == loaded


def test_a_fork_keeps_the_event_that_names_its_parent(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    add(database, "parent", story)
    database.fork("parent", "child", at=4, event=Event("fork", forked_from="parent"))
    export_runs(database, tmp_path / "files", ["child"])
    store = MemoryStore()
    import_runs(store, log_files([tmp_path / "files"]))
    assert store.load("child") == database.load("child")
    assert (store.load("child")[-1].forked_from, store.load("child")[-1].forked_at) == ("parent", 4)


def test_importing_twice_changes_nothing(
    store: Any, story: list[Event], tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    files = [
        write_lines("new.jsonl", *bodies(story)),
        write_lines("old.jsonl", *bodies(old_log())),
    ]
    assert import_runs(store, files).imported == ["new", "old"]
    before = {run_id: store.load(run_id) for run_id in store.list_runs()}
    again = import_runs(store, files)
    assert (again.imported, again.already_there) == ([], ["new", "old"])
    assert {run_id: store.load(run_id) for run_id in store.list_runs()} == before


def test_an_older_file_of_a_run_that_has_gone_on_changes_nothing(
    store: Any, story: list[Event], write_lines: Callable[..., Path]
) -> None:
    add(store, "run", story)
    outcome = import_runs(store, [write_lines("run.jsonl", *bodies(story[:4]))])
    assert outcome.already_there == ["run"]
    assert store.load("run") == story


def test_a_run_of_which_the_beginning_is_there_is_completed(
    store: Any, story: list[Event], write_lines: Callable[..., Path]
) -> None:
    add(store, "run", story[:3])
    outcome = import_runs(store, [write_lines("run.jsonl", *bodies(story))], "fail")
    assert outcome.completed == ["run"]
    assert store.load("run") == story


def test_a_run_that_somebody_works_on_is_left_alone(
    database: SQLiteStore, story: list[Event], write_lines: Callable[..., Path]
) -> None:
    add(database, "run", story[:3])
    database.acquire("run", "somebody", 30)
    outcome = import_runs(database, [write_lines("run.jsonl", *bodies(story))])
    assert (outcome.held, outcome.taken) == (["run"], [])
    assert database.load("run") == story[:3]


@pytest.mark.parametrize("on_conflict", ["skip", "fail"])
def test_an_id_that_another_run_has_is_left_as_it_is(
    store: Any, story: list[Event], write_lines: Callable[..., Path], on_conflict: Any
) -> None:
    other = [Event("run_start", messages=[{"role": "user", "content": "Else."}], seq=1)]
    add(store, "run", other)
    files = [write_lines(f"{name}.jsonl", *bodies(story)) for name in ("first", "run", "last")]
    if on_conflict == "skip":
        outcome = import_runs(store, files, on_conflict)
        assert (outcome.imported, outcome.taken) == (["first", "last"], ["run"])
    else:
        with pytest.raises(StoreError, match=r"1 of the ids.*\(run\); nothing was imported"):
            import_runs(store, files, on_conflict)
        assert store.list_runs() == ["run"]
    assert store.load("run") == other


DAMAGED = {
    "hole": ([{"type": "run_start", "seq": 1}, {"type": "message", "seq": 3}], "seq 2"),
    "torn": ([{"type": "run_start", "seq": 1}, '{"type": "mes', {"type": "message", "seq": 2}], "seq 2"),
    "garbage": (["no json at all"], "line 1 cannot be read"),
    "letters": (['{"type": 5}'], "'type' cannot be int"),
    "no_start": ([{"type": "message", "text": "hello"}], "there is no run_start"),
    "no_event": (["", " "], "there is no event"),
    "kept": ([{"type": "run_start", "kept": 3, "seq": 1}], "keeps 3 messages"),
    ".hidden": ([{"type": "run_start", "seq": 1}], "bad run id"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_the_others_are_imported(
    store: Any, story: list[Event], write_lines: Callable[..., Path], name: str
) -> None:
    lines, told = DAMAGED[name]
    files = [
        write_lines("first.jsonl", *bodies(story)),
        write_lines(f"{name}.jsonl", *lines),
        write_lines("last.jsonl", *bodies(story)),
    ]
    outcome = import_runs(store, files)
    assert outcome.imported == store.list_runs() == ["first", "last"]
    (problem,) = outcome.damaged
    assert problem.run_id == name
    assert told in problem.problem


def test_a_file_that_cannot_be_opened_is_named_and_the_others_are_imported(
    store: Any, story: list[Event], tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    files = [tmp_path / "gone.jsonl", write_lines("there.jsonl", *bodies(story))]
    outcome = import_runs(store, files)
    assert outcome.imported == ["there"]
    assert "No such file" in outcome.damaged[0].problem


def test_an_unreadable_line_of_an_old_log_is_reported_and_the_rest_imported(
    store: Any, write_lines: Callable[..., Path]
) -> None:
    lines = bodies(old_log())
    outcome = import_runs(store, [write_lines("old.jsonl", *lines[:3], '{"ty', *lines[3:])])
    assert outcome.imported == ["old"]
    assert len(store.load("old")) == len(lines)
    assert "line 4 cannot be read" in outcome.damaged[0].problem


def test_a_torn_last_line_is_no_event(
    store: Any, story: list[Event], write_lines: Callable[..., Path]
) -> None:
    path = write_lines("run.jsonl", *bodies(story[:4]))
    path.write_text(path.read_text() + '{"type": "gener')
    outcome = import_runs(store, [path])
    assert outcome.damaged == []
    assert store.load("run") == story[:4]


def test_a_value_that_the_store_cannot_hold_concerns_that_run_only(
    database: SQLiteStore, story: list[Event], write_lines: Callable[..., Path]
) -> None:
    class Picky(MemoryStore):
        def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
            if run_id == "big":
                raise OverflowError("too large")
            super().append_many(run_id, events, lease)

    store = Picky()
    files = [write_lines(f"{name}.jsonl", *bodies(story)) for name in ("big", "small")]
    outcome = import_runs(store, files)
    assert outcome.imported == ["small"]
    assert outcome.damaged[0].problem == "OverflowError: too large"


def test_a_store_of_three_methods_is_enough(
    story: list[Event], tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    class Own:
        def __init__(self) -> None:
            self.runs: dict[str, list[Event]] = {}

        def append(self, run_id: str, event: Event) -> None:
            self.runs.setdefault(run_id, []).append(event)

        def load(self, run_id: str) -> list[Event]:
            return self.runs.get(run_id, [])

        def list_runs(self) -> list[str]:
            return list(self.runs)

    store = Own()
    import_runs(store, [write_lines("run.jsonl", *bodies(story))])
    export_runs(store, tmp_path / "files")
    assert FileStore(tmp_path / "files").load("run") == store.runs["run"] == story


def test_what_a_store_holds_twice_leaves_it_once(
    story: list[Event], tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    class Forgetful(MemoryStore):
        """Each save was done twice, since the first was not heard of."""

        def load(self, run_id: str) -> list[Event]:
            log = super().load(run_id)
            return [*log[:2], *log[:2], *log[2:], *log[2:]]

    store = Forgetful()
    add(store, "run", story)
    export_runs(store, tmp_path / "files")
    assert bodies(FileStore(tmp_path / "files").load("run")) == bodies(story)
    files = log_files([tmp_path / "files"])
    assert import_runs(store, files).already_there == ["run"]
    longer = write_lines("run.jsonl", *bodies(story), {"type": "message", "seq": len(story) + 1})
    assert import_runs(store, [longer]).completed == ["run"]
    assert len(MemoryStore.load(store, "run")) == len(story) + 1


def test_a_damaged_run_is_left_out_of_an_export_and_named(
    story: list[Event], tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    write_lines("runs/good.jsonl", *bodies(story))
    write_lines("runs/hole.jsonl", *bodies(story[:2]), *bodies(story[3:]))
    exported = export_runs(FileStore(tmp_path / "runs"), tmp_path / "files")
    assert exported.runs == ["good"]
    assert [problem.run_id for problem in exported.damaged] == ["hole"]
    assert [path.name for path in (tmp_path / "files").glob("*.jsonl")] == ["good.jsonl"]


def test_files_that_are_there_are_replaced_only_when_that_is_said(
    store: Any, story: list[Event], tmp_path: Path
) -> None:
    add(store, "a", story)
    add(store, "b", story[:3])
    target = tmp_path / "files"
    export_runs(store, target, ["b"])
    with pytest.raises(ConfigError, match=r"b\.jsonl exists already"):
        export_runs(store, target)
    assert [path.name for path in target.glob("*.jsonl")] == ["b.jsonl"]
    add(store, "b", story[3:])
    export_runs(store, target, replace=True)
    assert FileStore(target).load("b") == FileStore(target).load("a") == story


def test_the_directory_of_the_store_itself_is_refused(story: list[Event], tmp_path: Path) -> None:
    store = FileStore(tmp_path / "runs")
    add(store, "run", story)
    with pytest.raises(ConfigError, match="where this store keeps its runs"):
        export_runs(store, tmp_path / "runs" / ".." / "runs", replace=True)


def test_a_run_that_is_not_there_is_refused_before_anything_is_written(
    store: Any, story: list[Event], tmp_path: Path
) -> None:
    add(store, "run", story)
    with pytest.raises(RunNotFoundError):
        export_runs(store, tmp_path / "files", ["run", "missing"])
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    ("path", "told"),
    [("missing", "no file or directory"), ("runs.db", "is no .jsonl file"), ("empty", "no .jsonl file")],
)  # fmt: skip
def test_a_path_without_runs_is_wrong_usage(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "runs.db").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "left-over.jsonl").touch()
    with pytest.raises(ConfigError, match=told):
        log_files([tmp_path / path])


def test_exported_lines_are_plain_json_with_seqs(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    add(database, "run", story)
    export_runs(database, tmp_path / "files")
    lines = (tmp_path / "files" / "run.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == bodies(story)


def test_an_imported_run_is_as_old_as_its_import_for_a_prune_and_as_its_log_for_whoever_looks(
    story: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(name: str) -> list[Any]:
        return [SQLiteStore(tmp_path / f"{name}.db"), MemoryStore()]

    with monkeypatch.context() as long_ago:
        long_ago.setattr(clock, "now", lambda: 1000.0)
        stores = make("source")
        for source in stores:
            log = [story[0].with_(started_at=990.0), *story[1:-1], story[-1].with_(ended_at=995.0)]
            source.append_many("run", log)
    now = clock.now()
    for source, target in zip(stores, make("target"), strict=True):
        export_runs(source, tmp_path / "files", replace=True)
        import_runs(target, log_files([tmp_path / "files"]))
        assert source.prune(older_than=3600, dry_run=True).run_ids == ["run"]
        assert target.prune(older_than=3600, dry_run=True).run_ids == []
        if isinstance(target, SQLiteStore):
            assert target.list_runs(since=now) == ["run"]
            (row,) = target.runs()
            assert (row.started_at, row.ended_at) == (990.0, 995.0)
            old = [row.run_id for row in target.runs() if row.ended_at and row.ended_at < now]
            assert target.prune(only=old).run_ids == ["run"]
        source.close()
        target.close()
