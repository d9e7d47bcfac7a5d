"""Strict mode: everything closed, everything required, and what cannot be closed refused by name."""

import asyncio
import datetime
import decimal
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from agentor.engine.strict_schema import close_schema
from agentor.engine.tools import InvalidArgumentsError, function_tool
from agentor.errors import ConfigError
from agentor.testing.schema_rules import check_tools as breaches


class Place(BaseModel):
    city: str = Field(min_length=2, description="Its name.")
    country: str | None = None
    days: int = 3


class Node(BaseModel):
    name: str
    children: list["Node"]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class Holder(BaseModel):
    inner: dict[str, int]


def schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for part in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        yield from schemas_in(part)


def assert_strict(schema: dict[str, Any]) -> None:
    for part in schemas_in(schema):
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
        if "$ref" in part:
            assert list(part) == ["$ref"]
            assert part["$ref"].removeprefix("#/$defs/") in schema["$defs"]
        assert not {"oneOf", "allOf", "default", "title", "uniqueItems", "minLength"} & set(part)


@function_tool(strict=True)
def plan(
    place: Place,
    tree: Node,
    pet: Annotated[Cat | Dog, Field(discriminator="kind")],
    when: datetime.date,
    tags: set[str],
    price: decimal.Decimal,
    unit: Literal["C", "F"] = "C",
    note: str | None = None,
    other: Annotated[Place | None, Field(description="Another.")] = None,
    count: Annotated[int, Field(ge=1)] = 2,
) -> Any:
    """Plan it.

    Args:
        place: Where to.
        unit: The unit.
    """
    return [place, unit, note, count]


def test_a_strict_schema_is_closed_and_asks_for_everything() -> None:
    assert_strict(plan.parameters)
    assert list(breaches({"tools": [plan.to_openai()]})) == []
    assert plan.to_openai()["function"]["strict"] is True
    assert set(plan.parameters["required"]) >= {"place", "unit", "note", "count"}


def test_null_stands_for_a_default_that_is_told_in_words() -> None:
    shown = plan.parameters["properties"]
    assert shown["unit"] == {
        "anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}],
        "description": 'The unit. Null means "C".',
    }
    assert shown["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert shown["count"]["anyOf"][0] == {"type": "integer", "minimum": 1}


def test_a_described_reference_is_replaced_by_what_it_refers_to() -> None:
    place = plan.parameters["properties"]["place"]
    assert place["description"] == "Where to."
    assert place["properties"]["city"] == {"type": "string", "description": "Its name."}


def test_what_a_strict_model_sends_is_read() -> None:
    args = {
        "place": {"city": "Oslo", "country": None, "days": 1},
        "tree": {"name": "a", "children": [{"name": "b", "children": []}]},
        "pet": {"kind": "dog"},
        "when": "2026-01-02",
        "tags": ["a"],
        "price": "1.10",
        "unit": None,
        "note": None,
        "other": None,
        "count": None,
    }
    told = json.loads(asyncio.run(plan.call(args)))
    assert told == [{"city": "Oslo", "country": None, "days": 1}, "C", None, 2]
    with pytest.raises(InvalidArgumentsError, match=r"more: Extra inputs are not permitted"):
        asyncio.run(plan.call({**args, "more": 1}))


def test_a_tool_without_parameters_may_be_strict() -> None:
    @function_tool(strict=True)
    def ping() -> str:
        return "pong"

    assert ping.parameters == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("annotation", "place", "reason"),
    [
        (dict[str, int], "opts", "takes any keys"),
        (dict, "opts", "takes any keys"),
        (Loose, "opts", "takes any keys"),
        (Holder, r"opts\.inner", "takes any keys"),
        (list[Holder], r"opts\[\]\.inner", "takes any keys"),
        (Any, "opts", "takes any value"),
        (list, r"opts\[\]", "takes any value"),
        (tuple[int, str], "opts", "tuple"),
        (dict[str, int] | None, "opts", "takes any keys"),
    ],
)
def test_what_cannot_be_closed_is_refused_by_name(annotation: Any, place: str, reason: str) -> None:
    def f(opts):  # type: ignore[no-untyped-def]
        return ""

    f.__annotations__ = {"opts": annotation}
    function_tool(f)
    with pytest.raises(
        ConfigError, match=rf"tool 'f' cannot be strict: parameter {place}: .*{reason}"
    ):
        function_tool(f, strict=True)


def test_a_schema_of_a_model_that_holds_itself_is_closed_at_its_root() -> None:
    closed = close_schema(Node.model_json_schema())
    assert closed["type"] == "object"
    assert closed["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert_strict(closed)


def test_the_open_schema_is_left_as_it_was() -> None:
    schema = Place.model_json_schema()
    before = json.dumps(schema)
    close_schema(schema)
    assert json.dumps(schema) == before


def test_what_the_grammar_has_no_word_for_is_left_out() -> None:
    class Mail(BaseModel):
        code: Annotated[str, Field(pattern="^[a-z]+$", max_length=9)]
        odd: Annotated[str, Field(pattern="^a$", json_schema_extra={"pattern": "^(?!x)"})]
        data: bytes
        when: datetime.datetime

    shown = close_schema(Mail.model_json_schema())["properties"]
    assert shown["code"] == {"type": "string", "pattern": "^[a-z]+$"}
    assert shown["odd"] == {"type": "string"}
    assert shown["data"] == {"type": "string"}
    assert shown["when"] == {"type": "string", "format": "date-time"}
