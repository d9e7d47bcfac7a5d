"""The example of docs/crashtest.md does what the page says, word for word."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentor.cli import crashing, main
from agentor.crashtest.processes import Processes
from agentor.testing import crashtest

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "crashtest.md").read_text()
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(info: str) -> list[str]:
    return [match["code"] for match in FENCE.finditer(PAGE) if match["info"] == info]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The processes stand where the page's shop.py is, and so do we."""
    directory = tmp_path_factory.mktemp("shop")
    (directory / "shop.py").write_text("\n".join(blocks("python")))
    with pytest.MonkeyPatch.context() as changed, Processes(2) as processes:
        changed.chdir(directory)
        changed.setattr(crashing, "run_crashtest", partial(crashtest, processes=processes))
        yield processes


@pytest.mark.parametrize(("number", "exit_code"), [(0, 1), (1, 0)], ids=["mistake", "mended"])
@pytest.mark.usefixtures("shop")
def test_the_command_prints_what_the_page_shows(number: int, exit_code: int) -> None:
    command, shown = blocks("console")[number].split("\n", 1)
    words = shlex.split(command.removeprefix("$ agentor "))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == exit_code, done.output
    assert done.stdout == shown


def test_the_tests_on_the_page_pass(shop: Processes) -> None:
    """At the one point that matters here: the command has been at all of them."""
    names: dict[str, Any] = {}
    exec("\n".join(blocks("python no-run")), names)
    names["test_refunds_survive"](partial(crashtest, at="before commit 3", processes=shop))
    names["crashtest"] = partial(crashtest, at="before commit 3", processes=shop)
    names["test_no_payment_is_made_twice"]()


def test_the_functions_on_the_page_prepare_each_run_and_look_at_what_came_of_it(
    shop: Processes, tmp_path: Path
) -> None:
    functions = tmp_path / "shop_functions.py"
    functions.write_text("\n".join(b for b in blocks("python no-run") if "(store, scratch)" in b))
    how: dict[str, Any] = {
        "setup": f"{functions}:prepare",
        "check": f"{functions}:paid",
        "at": "before commit 3",
        "processes": shop,
    }
    assert crashtest("shop.py:mended", "Pay Ada", **how).safe
    (case,) = crashtest("shop.py:agent", "Pay Ada", **how).cases
    assert 'check finds \'["Ada 5", "Ada 5"]\', not \'["Ada 5"]\'' in case.problems
