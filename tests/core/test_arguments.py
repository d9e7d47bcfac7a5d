"""Arguments are an object or a reason why not, whatever the model wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine.arguments import MAX_NESTING, parse_arguments
from tests.core.logs import JSON


@pytest.mark.parametrize("text", ["", None, "  ", "{}", {}])
def test_absent_arguments_are_an_empty_object(text: Any) -> None:
    assert parse_arguments(text) == ({}, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1, 2]", "must be a JSON object, not an array"),
        ("3", "must be a JSON object, not a number"),
        ('"London"', "must be a JSON object, not a string"),
        ("null", "must be a JSON object, not null"),
        ("true", "must be a JSON object, not a boolean"),
        ('{"city": "London"', "not valid JSON"),
        ("London", "not valid JSON"),
        ('{"a": 1, "a": 2}', "name 'a' twice"),
        ('{"b": {"a": 1, "a": 2}}', "name 'a' twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "nested more than"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_the_fault_of_bad_arguments_is_named(text: str, fault: str) -> None:
    args, problem = parse_arguments(text)
    assert args == {}
    assert problem is not None
    assert fault in problem
    assert len(problem) < 300


def test_lone_surrogates_are_replaced() -> None:
    assert parse_arguments('{"a\\ud800": ["\\udc00", {"b": "\\ud83d\\ude00"}]}') == (
        {"a�": ["�", {"b": "😀"}]},
        None,
    )


def test_ten_megabytes_are_read() -> None:
    args, problem = parse_arguments(json.dumps({"text": "x" * 10_000_000}))
    assert problem is None
    assert len(args["text"]) == 10_000_000


def test_nesting_up_to_the_limit_is_read() -> None:
    deep = '{"a": ' + "[" * (MAX_NESTING - 1) + "]" * (MAX_NESTING - 1) + "}"
    assert parse_arguments(deep)[1] is None
    assert parse_arguments(deep.replace("[]", "[[]]"))[1] is not None


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_every_object_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert parse_arguments(json.dumps(value)) == (value, None)
    assert parse_arguments(value) == (value, None)


@given(st.text())
def test_no_text_does_harm(text: str) -> None:
    args, problem = parse_arguments(text)
    assert isinstance(args, dict)
    assert problem is None or not args
