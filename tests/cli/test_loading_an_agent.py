"""`app.py:agent` and `package.module:agent`: found, or a clear word on why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentor.cli.loading import AppFailedError, load_agent
from agentor.errors import ConfigError

APP = """
from agentor import Agentor
from agentor.testing import ScriptedModel

agent = Agentor("Found", model=ScriptedModel(["hello"]))
number = 7
"""


pytestmark = pytest.mark.usefixtures("empty_place")


def write(name: str, code: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(code)


def test_an_agent_is_found_in_a_file() -> None:
    write("app.py", APP)
    assert load_agent("app.py:agent").name == "Found"


def test_an_agent_is_found_in_a_file_of_another_directory() -> None:
    write("deep/app.py", APP)
    assert load_agent("deep/app.py:agent").name == "Found"


def test_an_agent_is_found_in_a_module_of_the_current_directory() -> None:
    write("shop/__init__.py", "")
    write("shop/agents.py", APP)
    assert load_agent("shop.agents:agent").name == "Found"


def test_an_agent_is_found_inside_an_object() -> None:
    write("app.py", f"{APP}\nclass Shop:\n    support = agent\n")
    assert load_agent("app.py:Shop.support").name == "Found"


def test_a_file_finds_its_neighbours() -> None:
    write("deep/app.py", "from neighbour_of_app import agent")
    write("deep/neighbour_of_app.py", APP)
    assert load_agent("deep/app.py:agent").name == "Found"


@pytest.mark.parametrize("name", ["stall", "json"])  # the second is the name of a loaded module
@pytest.mark.parametrize("way", ["{}/__init__.py:agent", "./deep/{}/__init__.py:agent"])
def test_the_file_of_a_package_is_the_package(name: str, way: str) -> None:
    directory = way.format(name).removesuffix("/__init__.py:agent")
    write(f"{directory}/__init__.py", "from .agents import agent")
    write(f"{directory}/agents.py", f"{APP}\nfrom . import agents")
    assert load_agent(way.format(name)).name == "Found"


def test_a_file_named_like_a_loaded_module_replaces_nothing() -> None:
    write("json.py", APP)
    assert load_agent("json.py:agent").name == "Found"
    assert hasattr(sys.modules["json"], "dumps")


def test_what_is_meant_for_running_the_file_does_not_run() -> None:
    write("app.py", f"{APP}\nif __name__ == '__main__':\n    raise SystemExit('ran')\n")
    load_agent("app.py:agent")


@pytest.mark.parametrize("target", ["app.py", "agent", ":agent", "app.py:", ""])
def test_a_target_without_both_parts_is_told_the_form(target: str) -> None:
    with pytest.raises(ConfigError, match=r"write app\.py:agent or package\.module:agent"):
        load_agent(target)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nowhere.py:agent", r"there is no file 'nowhere\.py'"),
        (".:agent", r"'\.' is neither a file that ends in \.py nor the name of a module"),
        ("nowhere:agent", r"there is no module 'nowhere'; for a file write nowhere\.py:agent"),
        ("shop.nowhere:agent", r"there is no module 'shop\.nowhere'"),
        ("app.py:agents", r"app\.py has no 'agents'\. Its agents: agent\."),
        ("app.py:number", r"app\.py:number is of type int, not an Agentor\. Its agents: agent\."),
        ("bare.py:agent", r"bare\.py has no 'agent'\. It defines no agent at top level\."),
    ],
)
def test_what_is_not_there_is_named(target: str, told: str) -> None:
    write("app.py", APP)
    write("bare.py", "")
    write("shop/__init__.py", "")
    with pytest.raises(ConfigError, match=told):
        load_agent(target)


@pytest.mark.parametrize("target", ["app.py:agent", "app:agent"])
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("import no_such_thing", "raised ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("def broken(:", "raised SyntaxError"),
    ],
)
def test_a_module_that_raises_says_what(target: str, code: str, told: str) -> None:
    write("app.py", code)
    with pytest.raises(AppFailedError, match=told):
        load_agent(target)
    assert "app" not in sys.modules
