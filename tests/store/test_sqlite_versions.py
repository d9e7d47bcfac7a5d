"""Files of older and newer versions: opened, lifted together or not at all, never written wrongly.

`schemas/version_N.sql` is a file as version N left it. It is written once (`python tests/store/schemas/dump.py`) and
never changed: who changes schema.sql adds the statements to UPGRADES, which raises SCHEMA_VERSION, and dumps a new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from store_children import Child, together

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore, fork_run
from agentor.engine.store import sqlite_file as opening
from agentor.engine.store.sqlite_upgrades import Upgrade
from agentor.errors import LogCorruptError, StoreError

VERSION = opening.SCHEMA_VERSION
SCHEMAS = sorted((Path(__file__).parent / "schemas").glob("version_*.sql"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def restore(schema: Path, path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(schema.read_text())
    connection.close()


def ask(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def structure(path: Path) -> list[tuple[object, ...]]:
    return ask(path, "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")


def test_there_is_a_file_of_every_version() -> None:
    numbers = [int(schema.stem.removeprefix("version_")) for schema in SCHEMAS]
    assert numbers == list(range(1, opening.SCHEMA_VERSION + 1))
    assert len(opening.UPGRADES) == opening.SCHEMA_VERSION - 1


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.stem)
def test_a_file_of_an_older_version_opens_and_is_as_good_as_a_new_one(
    schema: Path, path: Path
) -> None:
    restore(schema, path)
    with SQLiteStore(path, check=True) as store:
        assert store.list_runs() == ["done", "open", "fork", "orphan"]
        assert [event.text for event in store.load("fork")][1:3] == ["two", "three"]
        assert [len(store.load(run_id)) for run_id in store.list_runs()] == [5, 1, 4, 3]
        assert store.asked("open") == ["cancel"]
        assert store.undelivered() == 1
        assert store.integrity_check() == []
        store.append("open", Event("run_end", status="completed", seq=2))
        assert len(store.load(fork_run(store, "fork", at=2))) == 3
        store.delete("orphan")
        assert store.integrity_check() == []
    fresh = path.with_name("fresh.db")
    SQLiteStore(fresh).close()
    assert structure(path) == structure(fresh)
    (version,) = ask(path, "SELECT max(version) FROM agentor_schema")
    assert version == (opening.SCHEMA_VERSION,)


def test_no_place_in_the_order_over_all_runs_is_given_twice_after_an_upgrade(path: Path) -> None:
    restore(SCHEMAS[0], path)
    before = ask(path, "SELECT seq FROM sqlite_sequence WHERE name = 'agentor_events'")
    with SQLiteStore(path) as store:
        for run_id in store.list_runs():
            store.delete(run_id)
        store.append("new", Event("run_start"))
    ((position,),) = ask(path, "SELECT position FROM agentor_events")
    assert [(position - 1,)] == before


def damage(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    trigger: Any = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE name = 'agentor_events_no_update'"
    ).get
    connection.execute("DROP TRIGGER agentor_events_no_update")
    connection.pragma("ignore_check_constraints", True)
    for statement in statements:
        connection.execute(statement)
    connection.execute(trigger)
    connection.close()


def test_a_damaged_file_can_be_upgraded_read_and_looked_through(path: Path) -> None:
    restore(SCHEMAS[0], path)
    damage(
        path,
        "DELETE FROM agentor_runs WHERE run_id = 'open'",
        "UPDATE agentor_events SET body = '{' WHERE run_id = 'done' AND seq = 3",
    )
    with SQLiteStore(path) as store:
        assert [event.type for event in store.load("open")] == ["run_start"]  # it has a row again
        with pytest.raises(LogCorruptError) as caught:
            store.load("done")
        assert caught.value.seq == 3
        assert any("'done'" in problem for problem in store.integrity_check())
    assert ask(path, "SELECT count(*) FROM agentor_events") == [(10,)]


def test_what_a_program_has_of_its_own_outlives_an_upgrade(path: Path) -> None:
    restore(SCHEMAS[0], path)
    connection = apsw.Connection(str(path))
    connection.execute(
        """
        CREATE TABLE mine (x);
        CREATE VIEW bodies AS SELECT seq, body FROM agentor_events;
        CREATE TRIGGER counts AFTER INSERT ON mine BEGIN SELECT count(*) FROM agentor_events; END;
        CREATE TRIGGER follows AFTER INSERT ON agentor_events BEGIN INSERT INTO mine VALUES (NEW.seq); END;
        CREATE INDEX by_type ON agentor_events (type);
        """
    )
    connection.close()
    with SQLiteStore(path) as store:
        store.append("new", Event("run_start"))
        assert store.integrity_check() == []
    assert ask(path, "SELECT count(*) FROM bodies") == [(11,)]
    assert ask(path, "SELECT x FROM mine") == [(1,)]
    ask(path, "INSERT INTO mine VALUES (2)")
    ask(path, "ALTER TABLE mine RENAME TO ours")
    assert ask(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'by_type'") == [(1,)]


def step(sql: str) -> Upgrade:
    return lambda connection: connection.execute(sql) and None


STEPS = (
    step("CREATE TABLE agentor_two (x TEXT) STRICT"),
    step("CREATE TABLE agentor_three (x TEXT) STRICT"),
)


def filled(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append_many("run", [Event("run_start"), Event("message"), Event("run_end")])


def test_an_older_schema_is_lifted_step_by_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    monkeypatch.setattr(opening, "SCHEMA_VERSION", VERSION + 2)
    monkeypatch.setattr(opening, "UPGRADES", opening.UPGRADES + STEPS)
    for _ in range(2):
        SQLiteStore(path).close()
    assert ask(path, "SELECT version FROM agentor_schema") == [
        (VERSION,),
        (VERSION + 1,),
        (VERSION + 2,),
    ]
    tables = ask(path, "SELECT name FROM sqlite_schema WHERE name LIKE 'agentor_t%'")
    assert tables == [("agentor_two",), ("agentor_three",)]


def test_a_step_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    before = structure(path)
    steps = (STEPS[0], step("CREATE TABLE agentor_three (x) STRICT"))
    monkeypatch.setattr(opening, "SCHEMA_VERSION", VERSION + 2)
    monkeypatch.setattr(opening, "UPGRADES", opening.UPGRADES + steps)
    with pytest.raises(StoreError):
        SQLiteStore(path)
    assert structure(path) == before
    assert ask(path, "SELECT version FROM agentor_schema") == [(VERSION,)]


@pytest.mark.slow
def test_processes_that_lift_one_file_together_lift_it_once(path: Path) -> None:
    filled(path)
    code = """
        from agentor.engine.store import sqlite_file as opening
        opening.SCHEMA_VERSION += 1
        opening.UPGRADES += (lambda db: db.execute("CREATE TABLE agentor_two (x TEXT) STRICT"),)
        ready()
        with SQLiteStore(sys.argv[1]) as store:
            store.append("run", Event("message"))
        say("done")
    """
    assert together([Child(code, path) for _ in range(6)]) == ["done\n"] * 6
    assert ask(path, "SELECT version FROM agentor_schema") == [(VERSION,), (VERSION + 1,)]
    assert ask(path, "SELECT count(*) FROM agentor_events") == [(9,)]


def set_version(path: Path, version: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO agentor_schema VALUES (?, 1.0)", (version,))
    connection.close()


def test_a_newer_schema_can_be_read_and_is_never_written(path: Path) -> None:
    filled(path)
    set_version(path, 99)
    before = path.read_bytes()
    with SQLiteStore(path) as store:
        assert len(store.load("run")) == 3
        assert store.list_runs() == ["run"]
        for write in (
            lambda: store.append("run", Event("x")),
            lambda: fork_run(store, "run"),
            lambda: store.acquire("run", "me", 30),
            lambda: store.delete("run"),
            lambda: store.ask("run", "cancel"),
        ):
            with pytest.raises(StoreError, match=r"version 99.*upgrade agentor"):
                write()
    assert path.read_bytes() == before


def test_a_store_stops_writing_when_a_newer_agentor_has_lifted_its_file(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append("run", Event("run_start", seq=1))
        set_version(path, VERSION + 1)
        with pytest.raises(StoreError, match=rf"version {VERSION + 1}.*upgrade agentor"):
            store.append("run", Event("message", seq=2))
        assert len(store.load("run")) == 1


def test_damage_is_found_at_open_on_request(path: Path) -> None:
    with SQLiteStore(path) as store:
        for seq in range(1, 200):
            store.append("run", Event("message", text="x" * 200, seq=seq))
    SQLiteStore(path, check=True).close()
    content = bytearray(path.read_bytes())
    content[4096 * 12 : 4096 * 13] = b"\xff" * 4096
    path.write_bytes(content)
    SQLiteStore(path).close()
    with pytest.raises(StoreError, match="damaged") as caught:
        SQLiteStore(path, check=True)
    assert str(path) in str(caught.value)
