"""The snapshot: tidy tables that say what the fold says, in a file of its own that is whole or absent."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentor.cli.overview import overview_of_row
from agentor.engine.batch import IN_DOUBT
from agentor.engine.events import GENERATION, TOOL_CALL, TOOL_RESULT, Event, Usage
from agentor.engine.replay import replay
from agentor.engine.store import FileStore, MemoryStore, SQLiteStore
from agentor.errors import ConfigError, RunNotFoundError, StoreError
from agentor.export.rows import Numbers, rows_of
from agentor.export.snapshot import write_snapshot
from agentor.export.tables import TABLES
from tests.core.logs import logs, old_log, raw_call

Rows = list[dict[str, Any]]


def query(path: Path, sql: str, *values: Any) -> Rows:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(sql, values)]
    finally:
        connection.close()


def add(store: Any, run_id: str, log: Sequence[Event]) -> None:
    for event in log:
        store.append(run_id, event)


def test_a_run_becomes_a_row_in_each_table(store: Any, story: list[Event], tmp_path: Path) -> None:
    add(store, "one", story)
    out = tmp_path / "out.db"
    snapshot = write_snapshot(store, out)
    assert snapshot.damaged == []
    assert snapshot.rows == {"runs": 1, "turns": 2, "messages": 4, "tool_calls": 1, "usage": 2}
    (run,) = query(out, "SELECT * FROM runs")
    assert {name: run[name] for name in ("run_id", "agent", "status", "input", "output")} == {
        "run_id": "one",
        "agent": "Weather Agent",
        "status": "completed",
        "input": "How is Rome?",
        "output": "Sunny.",
    }
    assert (run["turns"], run["tool_calls"], run["total_tokens"]) == (2, 1, 30)
    assert (run["started_at"], run["seconds"]) == ("2026-05-28T20:26:40.000Z", 2.5)
    (call,) = query(out, "SELECT * FROM tool_calls")
    assert (call["name"], call["args"], call["outcome"]) == ("get_weather", '{"city":"Rome"}', "ok")
    assert (call["result"], call["call_seq"], call["result_seq"]) == ("sunny in Rome", 3, 4)


def test_messages_are_the_conversation_each_with_the_event_and_the_turn_it_came_from(
    store: Any, story: list[Event], tmp_path: Path
) -> None:
    add(store, "one", story)
    write_snapshot(store, tmp_path / "out.db")
    rows = query(tmp_path / "out.db", "SELECT position, role, content, seq, turn_id FROM messages")
    assert [tuple(row.values()) for row in rows] == [
        (1, "user", "How is Rome?", 1, None),
        (2, "assistant", "", 2, 1),
        (3, "tool", "sunny in Rome", 4, 1),
        (4, "assistant", "Sunny.", 5, 2),
    ]


@settings(max_examples=100)
@given(log=logs())
def test_rows_say_what_the_fold_says(log: list[Event]) -> None:
    state = replay(log)
    rows = rows_of("run", log, Numbers())
    said = [(row["role"], row["content"] or "") for row in rows["messages"]]
    assert said == [(m["role"], m.get("content") or "") for m in state.messages]
    spent = sum((usage_of(row) for row in rows["usage"]), Usage())
    assert spent == state.usage
    assert spent.total_tokens == rows["runs"][0]["total_tokens"]
    assert len(rows["turns"]) == sum(event.type == GENERATION for event in log)


@settings(max_examples=100)
@given(log=logs())
def test_each_event_of_a_tool_is_in_exactly_one_row(log: list[Event]) -> None:
    rows = rows_of("run", log, Numbers())["tool_calls"]
    for event_type, column in ((TOOL_CALL, "call_seq"), (TOOL_RESULT, "result_seq")):
        told = sorted(row[column] for row in rows if row[column])
        assert told == [event.seq for event in log if event.type == event_type]
    for row in rows:
        answer = log[row["result_seq"] - 1] if row["result_seq"] else None
        assert (row["outcome"] in ("ok", "failed")) == (
            answer is not None and answer.error != IN_DOUBT
        )
        assert row["result"] == (answer.result if answer else None)
        assert row["call_id"] == (answer.call_id if answer else row["call_id"])


def usage_of(row: dict[str, Any]) -> Usage:
    return Usage.from_dict(row)


@settings(max_examples=50)
@given(log=logs())
def test_every_row_has_the_columns_of_its_table(log: list[Event]) -> None:
    for name, rows in rows_of("run", log, Numbers()).items():
        for row in rows:
            assert list(row) == list(TABLES[name])


def test_what_was_given_up_is_a_fact_but_no_part_of_the_conversation(
    database: SQLiteStore, tmp_path: Path
) -> None:
    calls = [raw_call("a", "pay", "{}"), raw_call("b", "look", "{}"), raw_call("c", "look", "{}")]
    log = [
        Event("run_start", messages=[{"role": "user", "content": "Pay."}]),
        Event("generation", calls=calls, usage=Usage(1, 2, 3)),
        Event("tool_call", name="pay", call_id="a"),
        Event("tool_call", name="look", call_id="b"),
        Event("tool_result", name="look", call_id="b", result="no", error="OSError: no"),
        Event("run_start", kept=1, messages=[], rewound=["a", "b", "c"]),
    ]
    add(database, "run", log)
    out = tmp_path / "out.db"
    write_snapshot(database, out)
    rows = query(out, "SELECT call_id, outcome FROM tool_calls ORDER BY position")
    assert [tuple(row.values()) for row in rows] == [
        ("a", "in doubt"),
        ("b", "failed"),
        ("c", "not started"),
    ]
    assert [row["content"] for row in query(out, "SELECT content FROM messages")] == ["Pay."]
    assert query(out, "SELECT sum(total_tokens) AS spent FROM usage") == [{"spent": 3}]


def test_a_call_whose_outcome_nobody_knows_is_in_doubt_and_has_not_failed() -> None:
    log = [
        Event("run_start", messages=[{"role": "user", "content": "Pay."}]),
        Event("generation", calls=[raw_call("a", "pay", "{}")]),
        Event("tool_call", name="pay", call_id="a", effect="once"),
        Event("tool_result", name="pay", call_id="a", result="Error: not known", error=IN_DOUBT),
    ]
    [row] = rows_of("run", log, Numbers())["tool_calls"]
    assert (row["outcome"], row["error"]) == ("in doubt", IN_DOUBT)


def test_inherited_rows_of_a_fork_are_marked_so_that_sums_count_once_what_was_spent_once(
    store: Any, story: list[Event], tmp_path: Path
) -> None:
    add(store, "parent", story)
    store.fork("parent", "child", event=Event("fork", forked_from="parent"))
    store.append(
        "child", Event("run_start", kept=4, messages=[{"role": "user", "content": "And Paris?"}])
    )
    store.append("child", Event("generation", text="Rain.", usage=Usage(1, 1, 2)))
    out = tmp_path / "out.db"
    write_snapshot(store, out)
    (total,) = query(out, "SELECT sum(total_tokens) AS t FROM usage WHERE NOT inherited")
    assert total["t"] == 32
    (child,) = query(out, "SELECT * FROM runs WHERE run_id = 'child'")
    assert (child["forked_from"], child["forked_at"], child["parent"]) == ("parent", 7, "parent")
    assert child["total_tokens"] == 32
    own = query(out, "SELECT content FROM messages WHERE run_id = 'child' AND NOT inherited")
    assert [row["content"] for row in own] == ["And Paris?", "Rain."]


FORKS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.integers(0, 2)), max_size=8
)


@settings(max_examples=40)
@given(forks=FORKS)
def test_what_was_spent_once_counts_once_however_the_runs_were_forked(
    forks: list[tuple[int, int, bool, int]],
) -> None:
    answer = Event("generation", text="Yes.", usage=Usage(0, 1, 1))
    spent = 2
    parents: dict[str, tuple[str | None, int]] = {}
    with tempfile.TemporaryDirectory() as place, SQLiteStore(Path(place, "runs.db")) as store:
        store.append_many("run-0", [Event("run_start", messages=[], kept=0), answer, answer])
        for number, (which, seq, tells, answers) in enumerate(forks, 1):
            parent, fork = f"run-{which % number}", f"run-{number}"
            at = 1 + seq % len(store.load(parent))
            event = Event("fork", forked_from=parent) if tells else None
            store.fork(parent, fork, at=at, event=event)
            store.append_many(fork, [answer] * answers)
            spent += answers
            parents[fork] = (parent, at)
        assert store.parents() == parents
        write_snapshot(store, Path(place, "out.db"))
        (total,) = query(
            Path(place, "out.db"), "SELECT sum(total_tokens) AS t FROM usage WHERE NOT inherited"
        )
        assert total["t"] == spent
        rows = query(
            Path(place, "out.db"), "SELECT run_id, forked_from, forked_at, parent FROM runs"
        )
        told = {row["run_id"]: (row["parent"], row["forked_at"]) for row in rows if row["parent"]}
        assert told == parents
        assert all(row["parent"] == row["forked_from"] for row in rows)
        listed = [overview_of_row(row) for row in store.runs()]
        assert {row.run_id: (row.forked_from, row.forked_at) for row in listed[1:]} == parents


def test_a_fork_without_an_event_of_its_own_names_its_parent_until_that_is_deleted(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    add(database, "parent", story)
    database.fork("parent", "child")
    write_snapshot(database, tmp_path / "both.db")
    database.delete("parent")
    write_snapshot(database, tmp_path / "one.db")
    sql = "SELECT forked_from, forked_at, parent, total_tokens FROM runs WHERE run_id = 'child'"
    fork = {"forked_from": "parent", "forked_at": 7, "parent": "parent", "total_tokens": 30}
    assert query(tmp_path / "both.db", sql) == [fork]
    assert query(tmp_path / "one.db", sql) == [{**fork, "parent": None}]
    for name in ("turns", "messages", "tool_calls", "usage"):
        marked = query(tmp_path / "one.db", f"SELECT DISTINCT inherited FROM {name}")
        assert marked == [{"inherited": 1}]


def test_a_parent_that_is_not_exported_is_named_but_not_pointed_to(
    store: Any, story: list[Event], tmp_path: Path
) -> None:
    add(store, "parent", story)
    store.fork("parent", "child", event=Event("fork", forked_from="parent"))
    out = tmp_path / "out.db"
    write_snapshot(store, out, ["child"])
    (run,) = query(out, "SELECT run_id, forked_from, parent FROM runs")
    assert run == {"run_id": "child", "forked_from": "parent", "parent": None}
    assert query(out, "PRAGMA foreign_key_check") == []


def test_a_log_of_agentor_0_1_becomes_the_same_tables(tmp_path: Path) -> None:
    store = MemoryStore()
    add(store, "old", old_log())
    out = tmp_path / "out.db"
    write_snapshot(store, out)
    rows = query(out, "SELECT role, content, seq FROM messages")
    assert [(row["role"], row["seq"]) for row in rows] == [
        ("system", 1),
        ("user", 1),
        ("assistant", 2),
        ("tool", 5),
        ("tool", 6),
        ("assistant", 7),
    ]
    calls = query(out, "SELECT name, outcome FROM tool_calls")
    assert [tuple(call.values()) for call in calls] == [("get_weather", "ok"), ("pay", "failed")]


def test_every_foreign_key_leads_somewhere_and_the_file_is_whole(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    for number in range(30):
        add(database, f"run-{number}", story[: number % 8])
    database.fork("run-7", "child", event=Event("fork", forked_from="run-7"))
    out = tmp_path / "out.db"
    write_snapshot(database, out)
    assert query(out, "PRAGMA foreign_key_check") == []
    assert query(out, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    keys = {
        (name, key["from"], key["table"], key["to"])
        for name in TABLES
        for key in query(out, f"PRAGMA foreign_key_list({name})")
    }
    assert keys == {
        ("runs", "parent", "runs", "run_id"),
        *((name, "run_id", "runs", "run_id") for name in TABLES if name != "runs"),
        *((name, "turn_id", "turns", "id") for name in ("messages", "tool_calls", "usage")),
    }


@pytest.mark.parametrize(
    ("table", "word", "found"),
    [
        ("messages", "sunny", ["sunny in Rome", "Sunny."]),
        ("tool_calls", "sunny", ["sunny in Rome"]),
        ("tool_calls", "get_weather", ["sunny in Rome"]),
        ("messages", "snow", []),
    ],
)
def test_messages_and_tool_results_are_found_by_their_words(
    database: SQLiteStore,
    story: list[Event],
    tmp_path: Path,
    table: str,
    word: str,
    found: list[str],
) -> None:
    add(database, "run", story)
    out = tmp_path / "out.db"
    write_snapshot(database, out)
    column = "content" if table == "messages" else "result"
    rows = query(
        out,
        f"SELECT {column} AS text FROM {table} WHERE id IN "
        f"(SELECT rowid FROM {table}_fts WHERE {table}_fts MATCH ?) ORDER BY id",
        word,
    )
    assert [row["text"] for row in rows] == found


def test_many_runs_are_written_in_parts_and_none_is_missing(
    story: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentor.export.snapshot._ROWS_AT_ONCE", 7)
    store = MemoryStore()
    names = [f"run-{number}" for number in range(20)]
    for name in names:
        add(store, name, story)
    out = tmp_path / "out.db"
    snapshot = write_snapshot(store, out)
    assert [row["run_id"] for row in query(out, "SELECT run_id FROM runs ORDER BY rowid")] == names
    for table, rows in snapshot.rows.items():
        assert query(out, f"SELECT count(*) AS n FROM {table}") == [{"n": rows}]


def test_only_one_run_is_in_memory_at_a_time(story: list[Event], tmp_path: Path) -> None:
    alive: list[str] = []

    class Watched(MemoryStore):
        def load(self, run_id: str) -> list[Event]:
            alive.append(run_id)
            return super().load(run_id)

    def progress(run_ids: Sequence[str], what: str) -> Any:
        for count, run_id in enumerate(run_ids):
            assert len(alive) == count  # each is loaded when its turn comes
            yield run_id

    store = Watched()
    for name in ("a", "b", "c"):
        add(store, name, story)
    write_snapshot(store, tmp_path / "out.db", progress=progress)
    assert alive == ["a", "b", "c"]


def test_a_damaged_run_is_a_row_that_says_so_and_the_others_are_there(
    tmp_path: Path, story: list[Event], write_lines: Callable[..., Path]
) -> None:
    bodies = [event.to_dict() for event in story]
    write_lines("runs/hole.jsonl", bodies[0], bodies[2])
    write_lines("runs/fold.jsonl", {**bodies[0], "kept": 9})
    write_lines("runs/good.jsonl", *bodies)
    out = tmp_path / "out.db"
    snapshot = write_snapshot(FileStore(tmp_path / "runs"), out)
    assert {problem.run_id for problem in snapshot.damaged} == {"hole", "fold"}
    rows = query(out, "SELECT run_id, status, error FROM runs ORDER BY run_id")
    assert [row["status"] for row in rows] == ["damaged", "completed", "damaged"]
    assert "seq 2" in rows[2]["error"]
    assert query(out, "SELECT DISTINCT run_id FROM messages") == [{"run_id": "good"}]


def test_values_that_no_column_holds_do_no_harm(tmp_path: Path) -> None:
    store = MemoryStore()
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    log = [
        Event("run_start", messages=[{"role": "user", "content": parts}], started_at=1e300),
        Event("generation", text="a\x00b", usage=Usage(10**30, 1, 10**30), started_at=-1e18),
    ]
    add(store, "odd", log)
    write_snapshot(store, tmp_path / "out.db")
    rows = query(tmp_path / "out.db", "SELECT content, parts FROM messages ORDER BY id")
    assert rows[0]["content"] == "look"
    assert "image_url" in rows[0]["parts"]
    (run,) = query(tmp_path / "out.db", "SELECT started_at, total_tokens FROM runs")
    assert run == {"started_at": None, "total_tokens": 2**53}


def test_a_run_that_is_not_there_is_refused_before_anything_is_written(
    store: Any, story: list[Event], tmp_path: Path
) -> None:
    add(store, "one", story)
    with pytest.raises(RunNotFoundError, match="two"):
        write_snapshot(store, tmp_path / "out.db", ["one", "two"])
    assert not (tmp_path / "out.db").exists()


def test_an_export_of_an_empty_store_has_the_tables(store: Any, tmp_path: Path) -> None:
    write_snapshot(store, tmp_path / "out.db")
    for name in TABLES:
        assert query(tmp_path / "out.db", f"SELECT * FROM {name}") == []


def test_a_file_is_replaced_only_when_that_is_said_and_only_if_it_is_no_other_database(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    out = tmp_path / "out.db"
    write_snapshot(database, out)
    add(database, "run", story)
    with pytest.raises(ConfigError, match="exists already"):
        write_snapshot(database, out)
    assert query(out, "SELECT * FROM runs") == []
    write_snapshot(database, out, replace=True)
    assert len(query(out, "SELECT * FROM runs")) == 1
    other = tmp_path / "other.db"
    SQLiteStore(other).close()
    for path in (other, Path(database.path)):  # a store at rest, and the live one itself
        with pytest.raises(ConfigError, match="was not made by `agentor export`"):
            write_snapshot(database, path, replace=True)
    assert database.load("run") == story


def content_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("companion", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("way", ["plain", "through a linked directory", "through a link"])
@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_what_sqlite_keeps_of_a_live_store_is_never_replaced(
    story: list[Event], tmp_path: Path, companion: str, way: str, whose: str
) -> None:
    place = tmp_path / "stores"
    place.mkdir()
    own, other = SQLiteStore(place / "own.db"), SQLiteStore(place / "other.db")
    add(own, "run", story)
    add(other, "run", story)
    name = f"{'own' if whose == 'its own' else 'other'}.db{companion}"
    out = place / name
    if way == "through a linked directory":
        (tmp_path / "link").symlink_to(place)
        out = tmp_path / "link" / name
    elif way == "through a link":
        out = tmp_path / "link"
        out.symlink_to(place / name)
    if not (place / name).exists():
        (place / name).touch()  # what a crash of another program may leave
    before = content_of(place)
    with pytest.raises(ConfigError, match=r"SQLite itself uses this name|was not made by"):
        write_snapshot(own, out, replace=True)
    assert content_of(place) == before
    for store in (own, other):
        assert store.load("run") == story
        store.close()


@pytest.mark.parametrize("content", [b"", b"some text\n", b"x" * 5000])
def test_a_file_that_is_no_snapshot_is_not_replaced_unless_it_is_empty(
    database: SQLiteStore, tmp_path: Path, content: bytes
) -> None:
    out = tmp_path / "notes"
    out.write_bytes(content)
    if not content:
        write_snapshot(database, out, replace=True)
        assert query(out, "SELECT * FROM runs") == []
        return
    with pytest.raises(ConfigError, match="was not made by `agentor export`"):
        write_snapshot(database, out, replace=True)
    assert out.read_bytes() == content


@pytest.mark.parametrize("companion", ["-wal", "-journal"])
def test_nothing_is_written_where_sqlite_would_take_a_left_over_file_for_a_part_of_it(
    database: SQLiteStore, tmp_path: Path, companion: str
) -> None:
    place = tmp_path / "there"
    place.mkdir()
    out, left = place / "out.db", place / f"out.db{companion}"
    left.write_bytes(b"of another time")
    for write in (database.backup, lambda path: write_snapshot(database, path)):
        with pytest.raises(ConfigError, match="would take for a part of the new file"):
            write(out)
    assert content_of(place) == {left.name: b"of another time"}


def test_a_snapshot_that_fails_leaves_nothing_and_not_even_the_earlier_one_is_harmed(
    story: list[Event], tmp_path: Path
) -> None:
    class Failing(MemoryStore):
        def load(self, run_id: str) -> list[Event]:
            if run_id == "second":
                raise StoreError("the disk failed")
            return super().load(run_id)

    store = Failing()
    add(store, "first", story)
    out = tmp_path / "out.db"
    write_snapshot(store, out)
    before = out.read_bytes()
    MemoryStore.append(store, "second", story[0])
    with pytest.raises(StoreError, match="the disk failed"):
        write_snapshot(store, out, replace=True)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.db"]


def test_a_full_disk_is_told_by_the_name_of_the_snapshot(
    story: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    add(store, "run", [story[0].with_(messages=[{"role": "user", "content": "x" * 100_000}])])
    real = sqlite3.connect

    def small(path: Any, **options: Any) -> sqlite3.Connection:
        connection = real(path, **options)
        connection.execute("PRAGMA max_page_count = 20")  # SQLite then says that the disk is full
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StoreError, match=r"out\.db: the snapshot could not be written.*full"):
        write_snapshot(store, tmp_path / "out.db")
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_may_be_open_in_the_same_process_as_the_live_store(
    database: SQLiteStore, story: list[Event], tmp_path: Path
) -> None:
    add(database, "run", story[:3])
    write_snapshot(database, tmp_path / "out.db")
    assert len(query(tmp_path / "out.db", "SELECT * FROM runs")) == 1
    add(database, "run", story[3:])
    assert database.load("run") == story
    assert database.integrity_check() == []


@pytest.mark.parametrize("began", [10**400, -(10**400), 1.7e308, 0.5], ids=lambda n: str(n)[:8])
@pytest.mark.parametrize("ended", [10**400, -(10**400), -1.7e308, 2.5], ids=lambda n: str(n)[:8])
def test_what_a_foreign_log_calls_a_time_and_is_none_leaves_its_column_empty(
    store: Any, story: list[Event], tmp_path: Path, began: float, ended: float
) -> None:
    add(store, "odd", [event.with_(started_at=began, ended_at=ended) for event in story])
    snapshot = write_snapshot(store, tmp_path / "out.db")
    assert snapshot.damaged == []
    (row,) = query(tmp_path / "out.db", "SELECT started_at, ended_at, seconds FROM tool_calls")
    assert (row["started_at"] is None, row["ended_at"] is None) == (began != 0.5, ended != 2.5)
    assert (row["seconds"] is None) == (10**400 in (abs(began), abs(ended)))
