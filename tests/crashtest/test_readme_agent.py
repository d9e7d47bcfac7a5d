"""The agent that the README shows first passes the crash test that the README runs on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentor.testing import crashtest

README = (Path(__file__).parents[2] / "README.md").read_text()
MODEL = """ScriptedModel.by_turn(
        [calls(("get_weather", {"city": "London"})), "It is sunny in London."])"""


def test_the_agent_of_the_readme_survives_the_crash_test_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n# app\.py\n(.*?)```", README, re.S)
    said = re.search(r'agentor crashtest app.py:agent --input "(.*)"', README)
    assert block is not None
    assert said is not None
    app = block[1].replace('"gpt-4o-mini"', MODEL)
    Path("app.py").write_text(f"from agentor.testing import ScriptedModel, calls\n{app}")
    report = crashtest("app.py:agent", said[1])
    report.assert_safe()
    assert report.notes == ()  # loading it asks no model
    assert [tool.name for tool in report.tools] == ["get_weather"]
