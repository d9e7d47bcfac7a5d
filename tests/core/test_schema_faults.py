"""A person's arguments are held against the schema that the model was told: names at every depth, and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from agentor import ConfigError, function_tool
from agentor.amended import check_by_tool
from agentor.engine.schema_faults import faults, unknown_names


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


class Line(BaseModel):
    article: str
    count: int = Field(1, ge=1, le=99)


class Address(TypedDict):
    street: str
    country: str | None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    kind: Literal["open"] = "open"


class Node(BaseModel):
    name: str
    below: list[Node] = []


@function_tool
def order(
    lines: list[Line],
    to: Address,
    speed: Speed = Speed.SLOW,
    on: date | None = None,
    extra: Line | Open | None = None,
    prices: dict[str, float] | None = None,
    note: Annotated[str, Field(max_length=20)] = "",
    tree: Node | None = None,
    paid: Decimal = Decimal(0),
    anything: Any = None,
) -> str:
    """Order."""
    return "ordered"


TEXTS = st.text("abc", max_size=5)
LINES = st.fixed_dictionaries({"article": TEXTS}, optional={"count": st.integers(1, 99)})
TREES: Any = st.deferred(
    lambda: st.fixed_dictionaries({"name": TEXTS}, optional={"below": st.lists(TREES, max_size=2)})
)
ORDERS = st.fixed_dictionaries(
    {
        "lines": st.lists(LINES, max_size=3),
        "to": st.fixed_dictionaries({"street": TEXTS, "country": st.none() | TEXTS}),
    },
    optional={
        "speed": st.sampled_from(["slow", "fast"]),
        "on": st.sampled_from([None, "2026-11-30"]),
        "extra": st.none() | LINES | st.fixed_dictionaries({"kind": st.just("open"), "x": TEXTS}),
        "prices": st.none() | st.dictionaries(TEXTS, st.floats(0, 10), max_size=2),
        "note": TEXTS,
        "tree": st.none() | TREES,
        "paid": st.sampled_from([3, 1.5, "2.25"]),
        "anything": st.none() | TEXTS | st.dictionaries(TEXTS, TEXTS),
    },
)
NAMED = {"article", "count", "street", "country", "name", "below", *order.parameters["properties"]}


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a value that have no room for other names."""
    if isinstance(value, dict):
        yield value
        for key, item in value.items():
            if key not in ("prices", "anything", "extra"):
                yield from objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item)


@given(ORDERS)
def test_what_the_tool_takes_fits_its_schema(args: dict[str, Any]) -> None:
    order.validated(args)
    assert faults(args, order.parameters) == unknown_names(args, order.parameters) == []
    check_by_tool(order, args)


@given(ORDERS, st.data())
def test_a_misspelt_name_is_told_wherever_it_stands(
    args: dict[str, Any], data: st.DataObject
) -> None:
    at = data.draw(st.sampled_from(list(objects(args))))
    name = data.draw(st.sampled_from(sorted(NAMED)))
    at[f"{name}x"] = "a slip"
    (told,) = unknown_names(args, order.parameters)
    assert f"{name}x: there is no such argument" in told
    assert told in faults(args, order.parameters)
    with pytest.raises(ConfigError, match=f"{name}x: there is no such argument"):
        check_by_tool(order, args)


JSON_VALUES = st.sampled_from([None, True, 0, 1.5, "text", "slow", [], [1], {}, {"article": 1}, -1])


@given(ORDERS, st.sampled_from(sorted(order.parameters["properties"])), JSON_VALUES)
def test_what_fits_the_schema_is_taken_by_the_tool_but_for_formats(
    args: dict[str, Any], name: str, value: Any
) -> None:
    args = {**args, name: value}
    has_format = name in ("on", "paid") and isinstance(value, str)
    if not faults(args, order.parameters) and not has_format:
        order.validated(args)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"to": {"street": "", "country": None}}, "lines: is required"),
        ({"lines": [{}]}, "lines[0].article: is required"),
        ({"lines": [{"article": "a", "count": 0}]}, "lines[0].count: must be at least 1"),
        ({"lines": [{"article": "a", "count": 1.5}]}, "must be an integer, not 1.5"),
        ({"lines": [{"article": "a", "count": "7"}]}, 'must be an integer, not "7"'),
        ({"lines": "a"}, 'lines: must be an array, not "a"'),
        ({"note": "x" * 21}, "note: must have at most so many characters: 20"),
        ({"speed": "quick"}, 'speed: must be one of "slow", "fast"'),
        ({"to": {"street": 1, "country": None}}, "to.street: must be a string, not 1"),
        ({"prices": {"a": "b"}}, 'prices.a: must be a number, not "b"'),
        ({"paid": True}, "not true"),
        ({"not": "x"}, "there are lines, to, speed, on,"),
        ({"nte": "x"}, "(did you mean note?)"),
    ],
)
def test_a_fault_is_named_with_its_place(args: dict[str, Any], told: str) -> None:
    assert told in "; ".join(faults(args, order.parameters))


def test_null_stands_for_an_argument_that_may_be_left_out() -> None:
    args = {"lines": [], "to": {"street": "a", "country": None}, "speed": None, "note": None}
    assert faults(args, order.parameters) == []
    check_by_tool(order, args)
    assert "must be an array" in faults({**args, "lines": None}, order.parameters)[0]


def test_the_fields_of_a_lone_object_may_stand_without_it_as_models_send_them() -> None:
    @function_tool
    def pack(line: Line) -> str:
        """Pack."""
        return "packed"

    for args in ({"line": {"article": "a"}}, {"article": "a"}):
        assert faults(args, pack.parameters) == []
        check_by_tool(pack, args)
    assert "artcle" in unknown_names({"artcle": "a"}, pack.parameters)[0]


def test_a_tool_without_arguments_takes_none() -> None:
    @function_tool
    def stop() -> str:
        """Stop."""
        return "stopped"

    assert faults({}, stop.parameters) == []
    (told,) = unknown_names({"now": True}, stop.parameters)
    assert told == "now: there is no such argument, and there are none"


def test_where_there_is_one_argument_it_is_named_once() -> None:
    @function_tool
    def say(what: str) -> str:
        """Say."""
        return what

    (told,) = unknown_names({"wat": "a"}, say.parameters)
    assert told == "wat: there is no such argument, and there is only what"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": True}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {}}},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"allOf": [{"required": ["b"]}], "properties": {"a": {}}},
    ],
)
def test_a_schema_that_does_not_name_all_there_is_refuses_no_name(schema: dict[str, Any]) -> None:
    assert faults({"b": 1}, schema) == []


def test_every_schema_of_pydantic_takes_what_pydantic_itself_has_written() -> None:
    value = {"name": "a", "below": [{"name": "b", "below": []}]}
    written = json.loads(TypeAdapter(Node).dump_json(Node.model_validate(value)))
    assert faults(written, TypeAdapter(Node).json_schema()) == []


def test_a_type_that_json_schema_does_not_know_says_nothing() -> None:
    assert faults({"a": 1}, {"properties": {"a": {"type": "file"}}}) == []
