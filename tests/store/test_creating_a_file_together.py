"""Two that open a file which is not there yet: one sets it up, the other finds it set up."""

from __future__ import annotations

from pathlib import Path

from agentor.engine.store.sqlite_file import (
    SCHEMA_VERSION,
    Settings,
    create_private,
    open_connection,
    set_up_schema,
)


def test_a_connection_opened_before_another_made_the_tables_finds_them(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    settings = Settings.checked(path, 10.0, "FULL", None)
    create_private(path)
    early = open_connection(settings)
    early.execute(
        "SELECT count(*) FROM sqlite_schema"
    ).fetchall()  # now it has cached that there are none
    late = open_connection(settings)
    assert set_up_schema(late, path) == SCHEMA_VERSION
    assert set_up_schema(early, path) == SCHEMA_VERSION
    early.close()
    late.close()
