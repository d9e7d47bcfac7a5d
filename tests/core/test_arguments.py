"""Arguments are an object or a reason why not, whatever the model wrote."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from agentor.engine import arguments
from agentor.engine.argument_faults import InvalidArgumentsError, check_object, explain
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


@given(
    st.lists(
        st.sampled_from(
            [
                *'{}[]:,"\\ 01-.eE\n\x00',
                '"a"',
                '"é"',
                "\ud800",
                "true",
                "null",
                "NaN",
                "\\u0061",
                "{}",
            ]
        )
    )
)
def test_what_is_read_quickly_is_read_as_it_would_be_with_care(pieces: list[str]) -> None:
    for text in ("".join(pieces), '{"a":' + "".join(pieces) + "}"):
        plain = arguments._plain(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arguments, "_plain", lambda text: None)
            careful = parse_arguments(text)
        assert plain is None or (plain, None) == careful


@pytest.mark.parametrize("text", ['{"city": "London", "days": 3}', '{"a":null,"b":true}', "{}"])
def test_plain_arguments_are_read_quickly(text: str) -> None:
    assert arguments._plain(text) == json.loads(text)


@given(st.text())
def test_no_text_does_harm(text: str) -> None:
    args, problem = parse_arguments(text)
    assert isinstance(args, dict)
    assert problem is None or not args


class Order(BaseModel):
    city: str
    days: Annotated[int, Field(gt=0)]


def fault_of(args: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(args, strict=True)
    return explain(caught.value)


def test_each_field_that_does_not_fit_is_told_with_what_it_was_given() -> None:
    assert fault_of({"days": "two"}) == (
        "city: Field required; days: Input should be a valid integer (got 'two')"
    )
    assert fault_of({"city": ["a"], "days": 0}) == (
        "city: Input should be a valid string; days: Input should be greater than 0 (got 0)"
    )
    long = fault_of({"city": "x", "days": "y" * 10_000})
    assert len(long) < 200
    assert fault_of({"city": 10**5000, "days": 1}).endswith("(got a very long integer)")
    assert "..." in long


def test_a_model_that_errs_everywhere_is_told_of_the_first_twenty_faults() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[int]).validate_python(["x"] * 30)
    told = explain(caught.value).split("; ")
    assert len(told) == 21
    assert told[-1] == "and 10 more"


def test_a_fault_of_the_whole_names_no_field() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("x")
    assert explain(caught.value).startswith("Input should be a valid integer")


def test_only_an_object_is_arguments() -> None:
    assert check_object({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidArgumentsError, match="must be a JSON object, not list"):
        check_object([1])
