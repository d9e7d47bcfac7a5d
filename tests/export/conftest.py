"""Stores to take runs out of, an empty place to put them, and the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentor.cli import main
from agentor.engine.events import Event
from agentor.engine.store import FileStore, SQLiteStore
from tests.cli.stored_runs import BODIES

Program = Callable[..., Result]


@pytest.fixture(params=["sqlite", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty store of each kind that lasts."""
    path = tmp_path / "store"
    opened = SQLiteStore(path) if request.param == "sqlite" else FileStore(path)
    yield opened
    opened.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
def story() -> list[Event]:
    """A finished run with one tool call."""
    return [Event.from_dict({**body, "seq": seq}) for seq, body in enumerate(BODIES, 1)]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        result = CliRunner().invoke(main, words)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Write a JSONL file of bodies, or of lines as they are."""

    def write(name: str, *lines: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write
