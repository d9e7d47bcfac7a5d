"""A snapshot opens in Datasette as it is: links between the tables, and a search box."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentor.engine.events import Event
from agentor.engine.store import MemoryStore
from agentor.export.snapshot import write_snapshot


@pytest.fixture(scope="module")
def datasette(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasette in an environment of its own; skipped where the package registry cannot be reached."""
    place = tmp_path_factory.mktemp("datasette")
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=100)
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--retries", "1"]
    done = subprocess.run([*pip, "datasette==0.65.*"], capture_output=True, text=True, timeout=400)
    if done.returncode:
        pytest.skip(f"datasette could not be installed: {done.stderr.strip()[-200:]}")
    return place / "bin" / "datasette"


@pytest.fixture
def address(datasette: Path, story: list[Event], tmp_path: Path) -> Iterator[str]:
    store = MemoryStore()
    store.append_many("weather", story)
    write_snapshot(store, tmp_path / "out.db")
    server = subprocess.Popen(
        [datasette, "serve", tmp_path / "out.db", "--host", "127.0.0.1", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield said_address(server)
    finally:
        server.terminate()
        server.communicate(timeout=30)


def said_address(server: subprocess.Popen[str]) -> str:
    assert server.stderr is not None
    said = []
    for line in server.stderr:
        said.append(line)
        if found := re.search(r"running on (http://\S+)", line):
            return found[1]
    raise AssertionError("".join(said))


def page(address: str, path: str) -> str:
    with urllib.request.urlopen(f"{address}{path}", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_datasette_shows_the_tables_with_links_and_search(address: str) -> None:
    front = page(address, "/out")
    for table in ("runs", "turns", "messages", "tool_calls", "usage"):
        assert f'href="/out/{table}"' in front
    messages = page(address, "/out/messages")
    assert 'name="_search"' in messages
    assert 'href="/out/runs/weather"' in messages
    found = page(address, "/out/messages.json?_search=sunny&_shape=array&_col=content")
    assert "sunny in Rome" in found
    assert "How is Rome?" not in found
    assert "sunny in Rome" in page(address, "/out/tool_calls?_search=sunny")
