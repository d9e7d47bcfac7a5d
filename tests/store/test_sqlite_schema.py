"""The tables: what they refuse by themselves, what they can be rebuilt from, and how versions meet."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentor.engine import clock
from agentor.engine.events import Event, Usage
from agentor.engine.store import SQLiteStore, fork_run
from agentor.engine.store.sqlite_file import schema_sql
from agentor.engine.store.sqlite_makeshift import holds_runs
from agentor.errors import RunNotFoundError, StoreError

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def run(
    store: SQLiteStore, run_id: str, *, agent: str = "a", end: str | None = "completed"
) -> None:
    events = [
        Event("run_start", agent=agent, model="m"),
        Event("generation", usage=Usage(10, 5, 15, 4, 1)),
        Event("generation", usage=Usage(1, 1, 2)),
    ]
    store.append_many(run_id, events)
    if end is not None:
        store.append(run_id, Event("run_end", status=end, ended_at=99.5))


def test_the_schema_at_the_top_is_the_one_in_the_package() -> None:
    assert os.path.samefile(REPOSITORY / "schema.sql", REPOSITORY / "agentor" / "schema.sql")


def test_every_table_is_strict_and_every_name_has_the_prefix(path: Path) -> None:
    SQLiteStore(path).close()
    connection = apsw.Connection(str(path))
    tables = connection.execute(
        "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    assert dict(tables) == dict.fromkeys(
        [
            "agentor_events",
            "agentor_leases",
            "agentor_outbox",
            "agentor_runs",
            "agentor_schema",
            "agentor_signals",
        ],
        1,
    )
    names = connection.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    assert all(name.startswith("agentor_") for (name,) in names)
    connection.close()


def test_the_file_is_in_wal_mode_and_can_give_space_back(path: Path) -> None:
    SQLiteStore(path).close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("auto_vacuum") == 2  # incremental
    connection.close()


INSERT = "INSERT INTO agentor_events (run, seq, type, recorded_at, body) VALUES "
RUN, FORK, NOBODY = "1", "2", "3"  # their numbers


@pytest.mark.parametrize(
    "statement",
    [
        INSERT + f"({RUN}, 6, 'x', 1, '{{}}')",  # a gap
        INSERT + f"({RUN}, 4, 'x', 1, '{{}}')",  # taken
        INSERT + f"({RUN}, 0, 'x', 1, '{{}}')",
        INSERT + f"({RUN}, 5, 'x', 1, 'not json')",
        INSERT + f"({RUN}, 5, 'x', 'not a time', '{{}}')",
        INSERT + f"({RUN}, 5, NULL, 1, '{{}}')",
        INSERT + f"({NOBODY}, 1, 'x', 1, '{{}}')",  # no run of that id
        INSERT + f"({FORK}, 4, 'x', 1, '{{}}')",  # a seq that it shares with its parent
        INSERT + f"({FORK}, 7, 'x', 1, '{{}}')",
        "UPDATE agentor_events SET body = '{}' WHERE run = 1 AND seq = 1",
        "UPDATE agentor_events SET seq = 9 WHERE run = 1 AND seq = 4",
        "INSERT INTO agentor_runs (run_id, last_seq, status, created_at, updated_at) VALUES ('run', 0, 'x', 1, 1)",
        "INSERT INTO agentor_leases VALUES ('run', 'me', 0, 1)",
    ],
)
def test_the_tables_themselves_refuse(path: Path, statement: str) -> None:
    with SQLiteStore(path) as store:
        run(store, "run")
        fork_run(store, "run", "fork")
    connection = apsw.Connection(str(path))
    with pytest.raises(apsw.ConstraintError):
        connection.execute(statement)
    connection.execute(INSERT + f"({RUN}, 5, 'x', 1, '{{}}'), ({FORK}, 6, 'x', 1, '{{}}')")
    connection.close()


def test_a_row_tells_status_usage_and_times(path: Path) -> None:
    with SQLiteStore(path) as store:
        before = clock.now()
        run(store, "done")
        run(store, "open", end=None)
        done, unfinished = store.runs()
    assert (done.run_id, done.status, done.agent, done.model) == ("done", "completed", "a", "m")
    assert done.usage == Usage(11, 6, 17, 4, 1)
    assert (done.last_seq, done.parent, done.parent_seq, done.ended_at) == (4, None, 0, 99.5)
    assert before <= done.created_at <= done.updated_at <= clock.now()
    assert (unfinished.status, unfinished.ended_at) == ("unfinished", None)


def test_a_new_segment_makes_a_finished_run_unfinished_again(path: Path) -> None:
    with SQLiteStore(path) as store:
        run(store, "run", end="max_turns")
        store.append("run", Event("run_start", agent="b"))
        (row,) = store.runs()
    assert (row.status, row.ended_at, row.agent, row.model) == ("unfinished", None, "b", "m")


def test_a_fork_inherits_the_tokens_of_the_events_it_shares(path: Path) -> None:
    with SQLiteStore(path) as store:
        run(store, "run")
        fork_run(store, "run", "whole")
        fork_run(store, "run", "early", at=2)
        fork_run(store, "early", "earlier", at=1)
        rows = {row.run_id: row for row in store.runs()}
        assert (rows["whole"].usage, rows["whole"].status) == (Usage(11, 6, 17, 4, 1), "completed")
        assert (rows["early"].usage, rows["early"].status) == (Usage(10, 5, 15, 4, 1), "unfinished")
        assert (rows["earlier"].usage, rows["earlier"].agent) == (Usage(), "a")
        assert (rows["earlier"].parent, rows["earlier"].parent_seq) == ("early", 1)
        assert store.integrity_check() == []


def test_a_fork_writes_the_same_few_rows_whatever_the_length(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append_many("long", [Event("message", text="x" * 100) for _ in range(2000)])
        before = store.counts()
        fork_run(store, "long", "fork")
        assert store.counts() == {"runs": before["runs"] + 1, "events": before["events"] + 1}
        assert len(store.load("fork")) == 2001


def test_summaries_can_be_worked_out_again_from_the_events(path: Path) -> None:
    with SQLiteStore(path) as store:
        run(store, "run")
        run(store, "open", end=None)
        fork_run(store, "run", "fork", at=3)
        rows = store.runs()
    connection = apsw.Connection(str(path))
    connection.execute(
        "UPDATE agentor_runs SET status = 'wrong', agent = 'wrong', total_tokens = 1, ended_at = 1, last_seq = 2"
    )
    connection.close()
    with SQLiteStore(path) as store:
        assert len(store.integrity_check()) >= 3
        store.rebuild_runs()
        assert store.runs() == rows
        assert store.integrity_check() == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM agentor_events WHERE run = 2 AND seq = 1",
        "DELETE FROM agentor_events WHERE run = 2 AND seq = 2",
        "DROP TRIGGER agentor_events_no_update; UPDATE agentor_events SET body = '[]' WHERE run = 2 AND seq = 2",
    ],
)
def test_a_damaged_run_keeps_its_summary_and_no_other_from_being_worked_out_again(
    path: Path, damage: str
) -> None:
    with SQLiteStore(path) as store:
        for run_id in ("first", "damaged", "last"):
            run(store, run_id)
        fork_run(store, "damaged", "fork", at=3)
        right = {row.run_id: row for row in store.runs()}
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE agentor_runs SET status = 'wrong', turns = 7; {damage}")
    connection.close()
    with SQLiteStore(path) as store:
        wrong = {row.run_id: row for row in store.runs()}
        told = store.rebuild_runs()
        assert [text.split()[1] for text in told] == ["'damaged'", "'fork'"]
        expected = right | {run_id: wrong[run_id] for run_id in ("damaged", "fork")}
        assert {row.run_id: row for row in store.runs()} == expected
        assert not [text for text in store.integrity_check() if "out of date" in text]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM sqlite_sequence", "agentor_runs: sqlite_sequence is at 0 and the table at 2"),
        ("DELETE FROM sqlite_sequence", "agentor_events: sqlite_sequence is at 0"),
        ("DELETE FROM sqlite_sequence", "agentor_outbox: sqlite_sequence is at 0"),
        ("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'agentor_runs'", "is at 1 and the table"),
        ("UPDATE sqlite_sequence SET seq = -5", "numbers may be given twice"),
        (
            "INSERT INTO agentor_leases VALUES ('../x', 'me', 1, 1)",
            "agentor_leases: bad run id '../x'",
        ),
        (
            "INSERT INTO agentor_signals VALUES ('.x', 'cancel', 1, 'me')",
            "agentor_signals: bad run id",
        ),
        ("INSERT INTO agentor_signals VALUES ('run', 'a b', 1, 'me')", "bad kind of signal 'a b'"),
        (
            "INSERT INTO agentor_leases VALUES ('run', 'me', 1, 9e999)",
            "lease of run 'run' ends at no",
        ),
        ("INSERT INTO agentor_leases VALUES ('run', 'me', 1, -9e999)", "ends at no moment"),
        (
            "UPDATE agentor_runs SET updated_at = -5 WHERE run_id = 'run'",
            "run 'run': its row was made",
        ),
        (
            "UPDATE agentor_runs SET created_at = 9e99",
            "run 'fork': its row was made or changed at no",
        ),
        ("UPDATE agentor_runs SET created_at = 9e999", "at no moment that can be"),
    ],
)
def test_what_no_store_would_have_written_is_told(path: Path, damage: str, told: str) -> None:
    with SQLiteStore(path) as store:
        run(store, "run")
        fork_run(store, "run", "fork", at=2)
        store.release(store.acquire("fork", "me", 30))
        store.ask("unknown", "cancel")
        assert store.integrity_check() == []
    connection = apsw.Connection(str(path))
    connection.execute(
        "INSERT INTO agentor_outbox (run_id, key, kind, payload, put_at, due_at) VALUES ('run', 'k', 'k', '1', 1, 1)"
    )
    connection.close()
    with SQLiteStore(path) as store:
        assert store.integrity_check() == []
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    with SQLiteStore(path) as store:
        assert any(told in text for text in store.integrity_check())


@pytest.mark.parametrize("per_look", [1, 2, 3, 500])
@given(damage=st.lists(st.booleans(), max_size=12))
@example(damage=[False, True, True, True, False])
def test_a_tail_of_all_runs_that_has_caught_up_has_told_every_event_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, per_look: int, damage: list[bool]
) -> None:
    path = tmp_path_factory.mktemp("tail") / "runs.db"
    with SQLiteStore(path) as store:
        for number in range(len(damage)):
            store.append(f"r{number % 2}", Event("message", text=str(number)))
    connection = apsw.Connection(str(path))
    connection.execute("DROP TRIGGER agentor_events_no_update")
    rows = [(number,) for number, is_damaged in enumerate(damage, 1) if is_damaged]
    connection.executemany("UPDATE agentor_events SET body = '[]' WHERE position = ?", rows)
    connection.close()
    with pytest.MonkeyPatch.context() as patch, SQLiteStore(path) as store:
        patch.setattr("agentor.engine.store.sqlite._EVENTS_PER_LOOK", per_look)
        told = [position for position, _, _ in store.tail(timeout=0)]
    assert told == [number for number, is_damaged in enumerate(damage, 1) if not is_damaged]


def test_runs_are_found_by_status_agent_and_time_page_by_page(path: Path) -> None:
    with SQLiteStore(path) as store:
        for n in range(10):
            run(store, f"r{n}", agent="ab"[n % 2], end="completed" if n < 6 else None)
        assert store.list_runs(limit=3) == ["r0", "r1", "r2"]
        assert store.list_runs(limit=3, after="r2") == ["r3", "r4", "r5"]
        assert store.list_runs(after="r9") == []
        assert store.list_runs(status="completed", agent="b") == ["r1", "r3", "r5"]
        assert store.list_runs(status="unfinished", after="r7") == ["r8", "r9"]
        assert store.list_runs(since=store.runs()[7].created_at) == ["r7", "r8", "r9"]
        assert store.list_runs(since=clock.now() + 1) == []
        assert store.list_runs(limit=3, newest=True) == ["r7", "r8", "r9"]
        assert store.list_runs(limit=3, newest=True, before="r7") == ["r4", "r5", "r6"]
        assert store.list_runs(limit=2, newest=True, agent="a", before="r7") == ["r4", "r6"]
        assert store.list_runs(after="r2", before="r5") == ["r3", "r4"]
        with pytest.raises(RunNotFoundError):
            store.list_runs(after="nobody")


FILTERS: list[dict[str, object]] = [
    *({}, {"limit": 3}, {"status": "completed"}, {"agent": "a"}, {"since": 5.0}),
    *({"agent": "a", "status": "completed", "limit": 3}, {"status": "completed", "since": 5.0}),
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("page", [{}, {"after": "r"}, {"newest": True}, {"before": "r"}])
def test_pages_are_read_by_an_index_and_nothing_is_sorted(
    path: Path, filters: dict[str, object], page: dict[str, object]
) -> None:
    with SQLiteStore(path) as store:
        run(store, "r")
        plan = plan_of(store, lambda: store.runs(**page, **filters))  # type: ignore[arg-type]
    assert "TEMP B-TREE" not in plan
    if page.keys() & {"after", "before"} or filters.keys() - {"limit"}:
        assert "SCAN" not in plan


def plan_of(store: SQLiteStore, act: Callable[[], object]) -> str:
    """How SQLite does the last statement of `act`, which reads from the store."""
    statements: list[tuple[str, Any]] = []
    with store._readers.connection() as connection:
        connection.exec_trace = lambda _, sql, bindings: statements.append((sql, bindings)) or True
    act()
    with store._readers.connection() as connection:
        connection.exec_trace = None
        sql, bindings = next(each for each in reversed(statements) if "agentor_" in each[0])
        return " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings))


def test_looking_for_news_and_questions_reads_no_more_than_there_is(path: Path) -> None:
    with SQLiteStore(path) as store:
        run(store, "r")
        for look in (
            lambda: list(store.tail(after=2, timeout=0)),
            lambda: list(store.tail("r", after=2, timeout=0)),
            lambda: store.asked("r"),
            lambda: store.last_position(),
        ):
            plan = plan_of(store, look)
            assert "SEARCH" in plan
            assert "SCAN" not in plan


@pytest.mark.slow
def test_a_hundred_thousand_runs_are_listed_page_by_page(path: Path) -> None:
    with SQLiteStore(path) as store:
        store._write(
            lambda connection: connection.execute(
                """
                WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100000)
                INSERT INTO agentor_runs (run_id, last_seq, status, agent, created_at, updated_at)
                SELECT 'r' || n, 0, iif(n % 4, 'completed', 'failed'), 'a' || (n % 10), n, n FROM n
                """
            )
        )
        seen = 0
        last = None
        while page := store.list_runs(limit=1000, after=last):
            assert page[0] == f"r{seen + 1}"
            seen, last = seen + len(page), page[-1]
        assert seen == 100_000
        assert store.list_runs(limit=2, newest=True, status="failed") == ["r99996", "r100000"]
        assert store.list_runs(limit=2, since=99_000, agent="a3") == ["r99003", "r99013"]


def test_a_database_of_the_program_gets_our_tables_beside_its_own(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE customers (name TEXT); PRAGMA user_version = 7")
    connection.close()
    with SQLiteStore(path) as store:
        run(store, "run")
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == 7
    assert connection.table_exists("main", "customers")
    connection.close()


@pytest.mark.parametrize("count", [2**63, 2**200, -(2**70), -5])
def test_a_count_of_tokens_that_no_column_can_hold_does_not_lose_the_event(
    path: Path, count: int
) -> None:
    with SQLiteStore(path) as store:
        events = [Event("generation", usage=Usage(count, 5, 2**53 - 2)) for _ in range(3)]
        store.append_many("run", events)
        most = 2**53 if count > 0 else 0
        assert [event.usage for event in store.load("run")] == [Usage(most, 5, 2**53 - 2)] * 3
        fork_run(store, "run", "early", at=2)
        store.append("early", events[0])
        row, early = store.runs()
        assert row.usage == Usage(most, 15, 2**53)
        assert (early.usage, early.turns) == (row.usage, 3)
        assert store.integrity_check() == []
        store.rebuild_runs()
        assert store.runs()[0] == row


def test_a_row_tells_turns_error_and_where_a_fork_came_from(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append_many(
            "run",
            [
                Event("run_start", started_at=5.0),
                Event("generation"),
                Event("run_end", status="failed", error="no luck", ended_at=6.0),
                Event("run_start", started_at=7.0),
                Event("generation"),
                Event("run_end", error="again"),
            ],
        )
        fork_run(store, "run", "early", at=3)
        fork_run(store, "run", "middle", at=4)
        run, early, middle = store.runs()
        assert (run.turns, run.status, run.error) == (2, "failed", "again")
        assert (run.started_at, run.ended_at, run.forked_from) == (5.0, None, None)
        assert (early.turns, early.error) == (1, "no luck")
        assert 6.0 < (early.started_at or 0) <= early.created_at
        assert early.ended_at == early.started_at
        assert (early.forked_from, early.forked_at) == ("run", 3)
        assert (middle.status, middle.error, middle.ended_at) == ("unfinished", None, None)
        assert store.integrity_check() == []
        store.rebuild_runs()
        assert store.runs() == [run, early, middle]


OURS = re.findall(r"^CREATE (TABLE|INDEX|TRIGGER) (\w+)", schema_sql(), re.MULTILINE)
FOREIGN = {
    "table": "CREATE TABLE {} (version TEXT)",
    "view": "CREATE VIEW {} AS SELECT 'x' AS version",
    "index": "CREATE TABLE mine (a); CREATE INDEX {} ON mine (a)",
    "trigger": "CREATE TABLE mine (a); CREATE TRIGGER {} AFTER INSERT ON mine BEGIN DELETE FROM mine; END",
}


@pytest.mark.parametrize("name", [*(name for _, name in OURS), "Agentor_Runs", "AGENTOR_SCHEMA"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_name_of_ours_that_somebody_else_has_is_told_and_nothing_is_changed(
    tmp_path: Path, kind: str, name: str
) -> None:
    path = tmp_path / "app.db"
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute(FOREIGN[kind].format(name))
        before = connection.execute("SELECT * FROM sqlite_schema").fetchall()
    for look in (SQLiteStore, holds_runs):
        with pytest.raises(StoreError, match=f"its {kind} {name} was not made by agentor"):
            look(str(path))
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("SELECT * FROM sqlite_schema").fetchall() == before


@pytest.mark.parametrize(
    "table",
    ["(version TEXT)", "(other)", "(version) AS SELECT 'first'", "(version) AS SELECT NULL"],
)
def test_a_table_of_versions_that_is_somebody_elses_is_told(tmp_path: Path, table: str) -> None:
    path = str(tmp_path / "app.db")
    columns, _, content = table.partition(" AS ")
    with contextlib.closing(apsw.Connection(path)) as connection:
        connection.execute(f"CREATE TABLE agentor_schema {columns}")
        if content:
            connection.execute(f"INSERT INTO agentor_schema {content}")
    for look in (SQLiteStore, holds_runs):
        with pytest.raises(StoreError, match="its table agentor_schema was not made by agentor"):
            look(path)


def test_other_names_that_begin_as_ours_are_in_nobodys_way(tmp_path: Path) -> None:
    path = str(tmp_path / "app.db")
    with contextlib.closing(apsw.Connection(path)) as connection:
        connection.execute("CREATE TABLE agentor_mine (a); CREATE TABLE agentor (a)")
    assert not holds_runs(path)
    with SQLiteStore(path) as store:
        store.append("run", Event("message"))
        assert store.list_runs() == ["run"]
