"""The example of docs/crashtest.md does what the page says, word for word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentor.cli import main

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "crashtest.md").read_text()
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(info: str) -> list[str]:
    return [match["code"] for match in FENCE.finditer(PAGE) if match["info"] == info]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("\n".join(blocks("python")))
    return tmp_path


@pytest.mark.parametrize(("number", "exit_code"), [(0, 1), (1, 0)], ids=["mistake", "mended"])
def test_the_command_prints_what_the_page_shows(number: int, exit_code: int, shop: Path) -> None:
    command, shown = blocks("console")[number].split("\n", 1)
    words = shlex.split(command.removeprefix("$ agentor "))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == exit_code, done.output
    assert done.stdout == shown


def test_the_tests_on_the_page_pass(shop: Path) -> None:
    names: dict[str, object] = {}
    exec("\n".join(blocks("python no-run")), names)
    names["test_no_payment_is_made_twice"]()  # type: ignore[operator]
