"""Settings say what is sent, and refuse what cannot be by name."""

from __future__ import annotations

from typing import Any

import pytest

from agentor.engine.models import ModelSettings
from agentor.errors import ConfigError


def test_only_what_is_set_is_sent() -> None:
    assert ModelSettings().to_params() == {}
    assert ModelSettings(temperature=0, stop="x").to_params() == {"temperature": 0, "stop": "x"}


def test_every_body_setting_reaches_the_body_under_its_name() -> None:
    body = {
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 9,
        "seed": -1,
        "stop": ["a", "b"],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "high",
        "verbosity": "low",
    }
    assert ModelSettings(**body).to_params() == body


def test_unknown_keywords_and_the_extra_body_are_passed_on_and_the_extra_body_wins() -> None:
    settings = ModelSettings(temperature=1, top_k=3, extra_body={"temperature": 0, "min_p": 0.1})
    assert settings.to_params() == {"temperature": 0, "top_k": 3, "min_p": 0.1}


def test_what_is_about_tools_is_not_sent_without_tools() -> None:
    settings = ModelSettings(tool_choice="auto", parallel_tool_calls=True, seed=1)
    assert settings.to_params(tools=False) == {"seed": 1}


def test_the_name_of_a_tool_is_a_choice() -> None:
    choice = {"type": "function", "function": {"name": "search"}}
    assert ModelSettings(tool_choice="search").to_params() == {"tool_choice": choice}
    assert ModelSettings(tool_choice=choice).to_params() == {"tool_choice": choice}


def test_how_to_send_is_not_part_of_what_is_sent() -> None:
    settings = ModelSettings(
        timeout=1,
        connect_timeout=1,
        read_timeout=1,
        max_retries=0,
        extra_headers={"x-team": "a"},
        echo_reasoning="never",
        instructions_role="developer",
    )
    assert settings.to_params() == {}


BAD: list[tuple[str, list[Any]]] = [
    ("temperature", ["hot", -1, float("nan"), float("inf"), True]),
    ("top_p", [1.1, -0.1, "1"]),
    ("max_tokens", [0, -5, 1.5, "many", True]),
    ("seed", [1.5, "x", True]),
    ("stop", [3, [1], ("a",)]),
    ("tool_choice", ["", 3, ["auto"]]),
    ("parallel_tool_calls", ["yes", 1]),
    ("reasoning_effort", ["", 3]),
    ("verbosity", [3]),
    ("timeout", [0, -1, "5", float("inf")]),
    ("connect_timeout", [0]),
    ("read_timeout", [0]),
    ("max_retries", [-1, 1.0, True]),
    ("extra_headers", [["a"], {"a": 1}, {"a b": "c"}, {"a": "b\r\nc: d"}, {1: "a"}]),
    ("extra_body", [["a"], {1: "a"}]),
    ("echo_reasoning", ["sometimes", True]),
    ("instructions_role", ["user"]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD for value in values], ids=repr
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ModelSettings(**{name: value})


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream", "response_format", "n"])
def test_what_the_agent_fills_in_is_no_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ModelSettings(**{name: "x"})


def test_what_is_not_json_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        ModelSettings(logit_bias=object())
    with pytest.raises(ConfigError, match="user"):
        ModelSettings(extra_body={"user": {1, 2}})


def test_a_bad_header_value_is_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelSettings(extra_headers={"authorization": "Bearer very-secret\n"})
    assert "very-secret" not in str(caught.value)


def test_settings_are_equal_by_content_and_copies_differ_where_asked() -> None:
    settings = ModelSettings(temperature=0.1, top_k=3, extra_headers={"a": "b"}, timeout=4)
    assert settings.with_() == settings
    changed = settings.with_(temperature=0.2, max_retries=0)
    assert (changed.temperature, changed.max_retries) == (0.2, 0)
    assert changed.with_(temperature=0.1, max_retries=None) == settings
    assert settings != ModelSettings()


def test_the_repr_shows_what_is_set_but_no_header_values() -> None:
    shown = repr(ModelSettings(seed=4, extra_headers={"x-key": "very-secret"}))
    assert "seed=4" in shown
    assert "x-key" in shown
    assert "very-secret" not in shown
