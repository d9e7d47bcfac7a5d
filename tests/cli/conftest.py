"""A directory with a user's app and a store of runs, and the program to run on them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from stored_runs import APP, BODIES, Program, write

from agentor.cli import main


@pytest.fixture(params=["runs.db", "runs/"])
def store_path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is imported from there is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    importlib.invalidate_caches()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def place(empty_place: Path) -> Path:
    """A current directory with app.py."""
    (empty_place / "app.py").write_text(APP)
    return empty_place


@pytest.fixture
def program(place: Path) -> Program:
    def run(*words: str, env: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(main, words, env=env)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def stored(place: Path, store_path: str) -> str:
    """A store with a finished run and one whose process died after the tool's result; its path."""
    write(store_path, "finished", BODIES)
    write(store_path, "killed", BODIES[:4])
    return store_path
