"""What a tool's statements cannot do: touch the engine's tables, other files, the transaction, or the connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import agentor
from agentor import SQLiteStore, StatementError
from agentor.engine.events import Event
from agentor.engine.store.sqlite_transact import SQLiteTransaction
from tests.transactional.bank import look


def _in_the_schema(condition: str) -> list[str]:
    """The engine's tables, without their prefix."""
    names = f"SELECT substr(name, 9) FROM sqlite_schema WHERE type = 'table' AND {condition}"
    with apsw.Connection(":memory:") as schema:
        schema.execute((Path(agentor.__file__).parent / "schema.sql").read_text())
        return [name for (name,) in schema.execute(f"{names} AND name LIKE 'agentor%' ORDER BY 1")]


TABLES = _in_the_schema("TRUE")
NUMBERED = _in_the_schema("sql LIKE '%AUTOINCREMENT%'")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path) as store:
        store.append("secret", Event("message", text="canary"))
        look(path, "CREATE TABLE mine (id INTEGER PRIMARY KEY AUTOINCREMENT, text)")
        look(path, "CREATE VIEW peek AS SELECT body FROM agentor_events")
        yield store


def refused(store: SQLiteStore, sql: str) -> StatementError:
    """The error of a statement, which left nothing behind and everything usable."""
    ours = "SELECT name, sql FROM sqlite_schema WHERE name LIKE 'agentor%' ORDER BY 1"
    before = look(Path(store.path), ours), store.load("secret")
    transaction = store.transact("run")
    with pytest.raises(StatementError) as caught:
        _execute_and_commit(transaction, sql)
    transaction.abort()
    assert (look(Path(store.path), ours), store.load("secret")) == before
    assert store.load("run") == []
    assert store.integrity_check() == []
    return caught.value


def _execute_and_commit(transaction: SQLiteTransaction, sql: str) -> None:
    transaction.execute(sql, ())
    transaction.commit([Event("message", text="done")]).result()


READS = [
    "SELECT * FROM {}",
    "SELECT count(*) FROM {}",
    "SELECT 1 FROM {} LIMIT 0",
    "SELECT * FROM main.{}",
    "INSERT INTO mine (text) SELECT 1 FROM {}",
    "CREATE TABLE stolen AS SELECT * FROM {}",
    "WITH stolen AS (SELECT * FROM {}) SELECT * FROM stolen",
    "UPDATE mine SET text = (SELECT count(*) FROM {})",
    "SELECT 1 WHERE EXISTS (SELECT * FROM {})",
]
WRITES = [
    "INSERT INTO {} DEFAULT VALUES",
    "INSERT INTO {0} SELECT * FROM {0}",
    "REPLACE INTO {0} SELECT * FROM {0}",
    "DELETE FROM {}",
    "DELETE FROM {0} WHERE EXISTS (SELECT * FROM {0}) RETURNING *",
    "WITH seen AS (SELECT * FROM {0}) DELETE FROM {0}",
    "DROP TABLE {}",
    "ALTER TABLE {} ADD COLUMN mine",
    "ALTER TABLE {} RENAME TO mine_now",
    "CREATE INDEX mine_index ON {} (rowid)",
    "CREATE TRIGGER mine_trigger AFTER INSERT ON {} BEGIN SELECT 1; END",
    "CREATE TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM {}; END;"
    "INSERT INTO mine (text) VALUES ('x')",
    "CREATE VIEW v AS SELECT * FROM {0};"
    "CREATE TRIGGER t INSTEAD OF DELETE ON v BEGIN DELETE FROM {0}; END;"
    "DELETE FROM v",
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("sql", [*READS, *WRITES])
def test_the_engines_tables_are_out_of_reach(store: SQLiteStore, table: str, sql: str) -> None:
    error = refused(store, sql.format(f"agentor_{table}"))
    assert error.kind in ("forbidden", "invalid")
    assert "canary" not in str(error)
    assert refused(store, sql.format(f"AGENTOR_{table.upper()}")).kind == error.kind


@pytest.fixture
def readable(path: Path, store: SQLiteStore) -> Iterator[SQLiteStore]:
    """The same file, its runs open to the eyes of tools."""
    with SQLiteStore(path, tools_read_runs=True) as readable:
        yield readable


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("sql", READS)
def test_reading_the_engines_tables_can_be_allowed(
    readable: SQLiteStore, table: str, sql: str
) -> None:
    before = readable.load("secret")
    transaction = readable.transact("run")
    _execute_and_commit(transaction, sql.format(f"agentor_{table}"))
    assert readable.load("secret") == before
    assert readable.integrity_check() == []


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("sql", WRITES)
def test_whoever_may_read_the_engines_tables_may_still_not_write_them(
    readable: SQLiteStore, table: str, sql: str
) -> None:
    assert refused(readable, sql.format(f"agentor_{table}")).kind in ("forbidden", "invalid")


def test_reading_is_for_the_store_that_allows_it_and_for_no_other(
    store: SQLiteStore, readable: SQLiteStore
) -> None:
    transaction = readable.transact("run")
    assert "canary" in str(transaction.execute("SELECT * FROM peek", ()))
    transaction.abort()
    assert refused(store, "SELECT * FROM peek").kind == "forbidden"


def test_a_row_of_the_programs_own_may_refer_to_a_run_that_tools_may_read(
    store: SQLiteStore, readable: SQLiteStore
) -> None:
    order = "CREATE TABLE bill (run TEXT REFERENCES agentor_runs (run_id))"
    transaction = readable.transact("other")
    transaction.execute(order, ())
    with pytest.raises(StatementError, match="FOREIGN KEY"):
        transaction.execute("INSERT INTO bill VALUES ('nobody')", ())
    transaction.execute("INSERT INTO bill VALUES ('secret')", ())
    transaction.commit([Event("message", text="done")]).result()
    assert refused(store, "INSERT INTO bill VALUES ('secret')").kind == "forbidden"
    assert readable.delete("secret").run_ids == ["secret"]  # the engine is not held up by it


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE agentor_events SET body = '{}'",
        "SELECT * FROM peek",  # a view does not lend its eyes
        "CREATE TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM agentor_leases; END;"
        "INSERT INTO mine (text) VALUES ('x')",
        "CREATE TABLE agentor_mine (x)",
        "CREATE TABLE Agentor_mine (x)",
        "CREATE VIEW agentor_mine AS SELECT 1",
        "CREATE INDEX agentor_mine ON mine (text)",
        "ALTER TABLE mine RENAME TO agentor_mine",
        "DROP TRIGGER agentor_events_no_gap",
        "DROP INDEX agentor_runs_by_status",
        "DELETE FROM sqlite_sequence WHERE name = 'agentor_events'",
        "UPDATE sqlite_sequence SET seq = 9 WHERE name LIKE 'agentor%'",
        "CREATE VIRTUAL TABLE f USING fts5 (body, content='agentor_events');"
        "INSERT INTO f (f) VALUES ('rebuild')",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "BEGIN",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT mine",
        "RELEASE request",
        "ROLLBACK TO request",
        "ROLLBACK TO one",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "ANALYZE",
        "REINDEX",
        "CREATE TEMP TABLE hidden (x)",
        "CREATE TABLE temp.agentor_events (x)",
        "CREATE TEMP VIEW agentor_events AS SELECT 1",
        "CREATE TEMP TRIGGER t AFTER INSERT ON mine BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE d USING dbstat",
        "SELECT load_extension('x')",
        "UPDATE sqlite_schema SET sql = ''",
        *(
            f"PRAGMA {each}"
            for each in (
                *(
                    "journal_mode = DELETE",
                    "journal_mode",
                    "synchronous = OFF",
                    "foreign_keys = OFF",
                ),
                *(
                    "writable_schema = ON",
                    "query_only = ON",
                    "wal_checkpoint",
                    "schema_version = 7",
                ),
                *("locking_mode = EXCLUSIVE", "auto_vacuum = NONE", "incremental_vacuum"),
                *("busy_timeout = 0", "recursive_triggers = ON", "temp_store_directory = '/'"),
                *("cache_size = 1", "optimize", "mmap_size = 0", "encoding"),
            )
        ),
        "SELECT * FROM pragma_journal_mode",
    ],
)
def test_what_is_not_for_a_tool_is_refused(store: SQLiteStore, sql: str) -> None:
    assert refused(store, sql).kind in ("forbidden", "invalid")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE other (x PRIMARY KEY, y AS (x + 1)) STRICT, WITHOUT ROWID"
        .replace("x PRIMARY KEY", "x INTEGER PRIMARY KEY").replace("y AS", "y INTEGER AS"),
        "CREATE INDEX mine_text ON mine (text); DROP INDEX mine_text",
        "CREATE TRIGGER t AFTER INSERT ON mine BEGIN UPDATE mine SET text = 'x'; END;"
        "INSERT INTO mine (text) VALUES (1); DROP TRIGGER t",
        "ALTER TABLE mine ADD COLUMN more; ALTER TABLE mine RENAME TO yours; DROP TABLE yours",
        "CREATE VIEW both AS SELECT * FROM mine; SELECT * FROM both; DROP VIEW both",
        "CREATE VIRTUAL TABLE words USING fts5 (text); INSERT INTO words VALUES ('a b');"
        "SELECT * FROM words ('a')",
        "INSERT INTO mine (text) VALUES ('x') ON CONFLICT DO UPDATE SET text = 'y' RETURNING id",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9) SELECT sum(i) FROM n",
        "SELECT json_extract('[1]', '$[0]'), value FROM json_each('[1, 2]')",
        "SELECT name FROM sqlite_schema",
        "PRAGMA table_info(mine)",
        "SELECT * FROM pragma_table_info('mine')",
        "PRAGMA user_version = 5; PRAGMA user_version",
        "PRAGMA foreign_key_check(mine)",
        "DELETE FROM mine",
        "REPLACE INTO mine VALUES (1, 'x')",
        "EXPLAIN QUERY PLAN SELECT * FROM mine",
    ],
)  # fmt: skip
def test_what_an_application_needs_is_allowed(store: SQLiteStore, sql: str) -> None:
    transaction = store.transact("run")
    transaction.execute(sql, ())
    transaction.commit([Event("message", text="done")]).result()
    assert len(store.load("run")) == 1
    assert store.integrity_check() == []


def test_the_walk_through_the_schema_finds_what_it_is_to_find() -> None:
    assert {"events", "runs", "outbox", "leases"} < set(TABLES)
    assert {"events", "runs", "outbox"} <= set(NUMBERED) < set(TABLES)


NUMBERINGS = [
    "INSERT INTO sqlite_sequence VALUES ('{0}', 9223372036854775807)",
    "INSERT INTO main.SQLITE_SEQUENCE SELECT '{0}', 9223372036854775807",
    "REPLACE INTO sqlite_sequence (rowid, name, seq) SELECT rowid, name, 7 FROM sqlite_sequence",
    "UPDATE sqlite_sequence SET seq = 9223372036854775807",
    "UPDATE sqlite_sequence SET name = '{0}', seq = 9223372036854775807 WHERE name = 'mine'",
    "CREATE TRIGGER t AFTER INSERT ON mine BEGIN"
    " INSERT INTO sqlite_sequence VALUES ('{0}', 9223372036854775807); END;"
    "INSERT INTO mine (text) VALUES ('x')",
    # These only after what a table of the tool's own may ask for: its numbers, its dropping, its renaming.
    "INSERT INTO mine (id) VALUES (9223372036854775807);"
    "UPDATE sqlite_sequence SET name = '{0}' WHERE name = 'mine'",
    "INSERT INTO mine (id) VALUES (9223372036854775807);"
    "DELETE FROM sqlite_sequence WHERE name = '{0}';"
    "UPDATE sqlite_sequence SET name = '{0}' WHERE name = 'mine'",
]
ONCE_NUMBERED = [
    "INSERT INTO mine (id) VALUES (0); UPDATE sqlite_sequence SET name = '{0}' WHERE name = 'mine'",
    "DELETE FROM sqlite_sequence",
    "DELETE FROM sqlite_sequence WHERE name = '{0}'",
    "UPDATE sqlite_sequence SET name = 'lost' WHERE name = '{0}'",
    "INSERT INTO mine (id) VALUES (0);"
    "UPDATE sqlite_sequence SET name = iif(name = 'mine', '{0}', 'mine') WHERE name IN ('mine', '{0}')",
]


def _put(store: SQLiteStore, run_id: str, first: str = "", then: str = "") -> None:
    """Commit two letters and an event, and what a tool does before and after."""
    transaction = store.transact(run_id)
    try:
        transaction.execute(first or "SELECT 1", ())
        for number in range(2):
            transaction.put("mail", "{}", f"{run_id} {number}")
        transaction.execute(then or "SELECT 1", ())
        transaction.commit([Event("message", text="done")]).result()
    finally:
        transaction.abort()


PUT, NOTHING = (1, 2, 1), (0, 0, 0)  # by how much the numbering of events, outbox and runs moves


def _standing(path: Path) -> dict[str, int]:
    return dict(look(path, "SELECT name, seq FROM sqlite_sequence WHERE name LIKE 'agentor%'"))


def _moved(path: Path, before: dict[str, int]) -> tuple[int, ...]:
    now = _standing(path)
    return tuple(now[f"agentor_{table}"] - before[f"agentor_{table}"] for table in NUMBERED)


@pytest.mark.parametrize("table", NUMBERED)
@pytest.mark.parametrize("sql", [*NUMBERINGS, *ONCE_NUMBERED])
def test_a_tool_cannot_say_where_the_engines_numbering_stands(
    store: SQLiteStore, path: Path, table: str, sql: str
) -> None:
    _put(store, "numbered")
    before = _standing(path)
    assert refused(store, sql.format(f"agentor_{table}")).kind == "forbidden"
    with pytest.raises(StatementError):  # nor after it has put letters, which move the numbering
        _put(store, "run", then=sql.format(f"agentor_{table}"))
    assert _standing(path) == before
    with contextlib.suppress(StatementError):  # what is lost before a letter is found again by it
        _put(store, "run", first=sql.format(f"agentor_{table}"))
    assert _moved(path, before) in (NOTHING, PUT)
    before = _standing(path)
    _put(store, "after")
    assert _moved(path, before) == PUT


@pytest.mark.parametrize("sql", NUMBERINGS)
def test_nor_of_a_table_that_has_no_row_yet(store: SQLiteStore, path: Path, sql: str) -> None:
    assert "agentor_outbox" not in _standing(path)
    assert refused(store, sql.format("agentor_outbox")).kind == "forbidden"
    assert "agentor_outbox" not in _standing(path)
    _put(store, "after", first="INSERT INTO mine (text) VALUES ('x')")
    assert _standing(path)["agentor_outbox"] == 2


def test_the_numbering_of_the_programs_own_tables_is_its_own(
    store: SQLiteStore, path: Path
) -> None:
    steps = [
        "CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT, text)",
        "INSERT INTO other (text) VALUES ('x'), ('y')",
        "REPLACE INTO other VALUES (9, 'z')",
        "INSERT INTO mine SELECT id, text FROM other",
        "ALTER TABLE other RENAME TO others",
        "INSERT INTO others (text) SELECT text FROM mine",
        "ALTER TABLE others ADD COLUMN more; ALTER TABLE others DROP COLUMN more",
        "DELETE FROM mine; DELETE FROM sqlite_sequence WHERE name = 'mine'",
    ]
    for number, sql in enumerate(steps):
        _put(store, f"run{number}", sql)
    own = "SELECT * FROM sqlite_sequence WHERE name NOT LIKE 'agentor%'"
    assert look(path, own) == [("others", 12)]
    _put(store, "last", "DROP TABLE others")
    assert look(path, own) == []


def test_a_statement_that_the_engine_has_prepared_is_not_lent(store: SQLiteStore) -> None:
    """Prepared statements are kept by their text, and this one passes no authorizer any more."""
    sql = "SELECT last_seq FROM agentor_runs WHERE run_id = ? AND deleted_at IS NULL"
    transaction = store.transact("run")
    with pytest.raises(StatementError) as caught:
        transaction.execute(sql, ("secret",))
    transaction.abort()
    assert caught.value.kind == "forbidden"


def test_the_connection_is_as_it_was_afterwards(store: SQLiteStore) -> None:
    connection = store._writer._connection
    before = connection.pragma("foreign_keys")
    for end in ("commit", "abort"):
        transaction = store.transact("run")
        transaction.execute("INSERT INTO mine (text) VALUES ('x')", ())
        transaction.commit([]).result() if end == "commit" else transaction.abort()
        store.append("other", Event("message", text="free"))
        assert connection.authorizer is None
        assert connection.pragma("foreign_keys") == before
        assert not connection.in_transaction
