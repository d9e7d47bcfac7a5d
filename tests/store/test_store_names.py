"""A store in a traceback or a log says where it is."""

from __future__ import annotations

from pathlib import Path

from agentor import FileStore, SQLiteStore


def test_a_store_names_its_place(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert repr(store) == f"SQLiteStore({str(tmp_path / 'runs.db')!r})"
    assert repr(FileStore(tmp_path / "runs")) == f"FileStore({str(tmp_path / 'runs')!r})"
