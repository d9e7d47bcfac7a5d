"""The grid of signatures: what the model is told of each type, and what the function gets for what it sends."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import json
import sys
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, Union

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Doc
from typing_extensions import TypedDict as ExtendedTypedDict

from agentor.engine.tools import InvalidArgumentsError, Tool, function_tool
from agentor.testing.schema_rules import check_tools as breaches


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(BaseModel):
    city: str
    country: str | None = None


class Trip(BaseModel):
    stops: list[Place]


class Node(BaseModel):
    name: str
    children: list["Node"] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class OldDict(typing.TypedDict):
    name: str
    age: NotRequired[int]


class NewDict(ExtendedTypedDict, total=False):
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date
    ids: tuple[int, ...]


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
NULL = {"type": "null"}

# annotation, a part of its schema, what the model sends, what the function gets
GRID: list[tuple[Any, dict[str, Any], Any, Any]] = [
    (str, STRING, "Oslo", "Oslo"),
    (int, INTEGER, "7", 7),
    (int, INTEGER, 7.0, 7),
    (float, NUMBER, "1.5", 1.5),
    (float, NUMBER, 2, 2.0),
    (bool, {"type": "boolean"}, "true", True),
    (Literal["C", "F"], {"enum": ["C", "F"], "type": "string"}, "F", "F"),
    (Literal["C"], {"const": "C"}, "C", "C"),
    (Unit, {"$ref": "#/$defs/Unit"}, "F", Unit.FAHRENHEIT),
    (Optional[int], {"anyOf": [INTEGER, NULL]}, None, None),  # noqa: UP045
    (str | None, {"anyOf": [STRING, NULL]}, "x", "x"),
    (Union[int, str], {"anyOf": [INTEGER, STRING]}, "7", "7"),  # noqa: UP007
    (int | list[int], {"anyOf": [INTEGER, {"type": "array", "items": INTEGER}]}, [1], [1]),
    (Place, {"$ref": "#/$defs/Place"}, {"city": "Oslo"}, Place(city="Oslo")),
    (Trip, {"$ref": "#/$defs/Trip"}, {"stops": [{"city": "A"}]}, Trip(stops=[Place(city="A")])),
    (Node, {"$ref": "#/$defs/Node"}, {"name": "a"}, Node(name="a")),
    (Point, {"$ref": "#/$defs/Point"}, {"x": "1"}, Point(1)),
    (OldDict, {"$ref": "#/$defs/OldDict"}, {"name": "a"}, {"name": "a"}),
    (list[OldDict] | None, {}, [{"name": "a", "age": "3"}], [{"name": "a", "age": 3}]),
    (
        Annotated[OldDict, Field(description="d")],
        {"description": "d"},
        {"name": "a"},
        {"name": "a"},
    ),
    (NewDict, {"$ref": "#/$defs/NewDict"}, {}, {}),
    (Pair, {"$ref": "#/$defs/Pair"}, [1, "a"], Pair(1, "a")),
    (list[int], {"type": "array", "items": INTEGER}, ["1", 2], [1, 2]),
    (list, {"type": "array"}, ["1", 2], ["1", 2]),
    (dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": "1"}, {"a": 1}),
    (dict, {"type": "object"}, {"a": [1]}, {"a": [1]}),
    (set[str], {"type": "array", "uniqueItems": True, "items": STRING}, ["a", "a"], {"a"}),
    (frozenset[int], {"type": "array", "uniqueItems": True}, [1], frozenset({1})),
    (tuple[int, ...], {"type": "array", "items": INTEGER}, [1, 2], (1, 2)),
    (tuple[int, str], {"type": "array", "prefixItems": [INTEGER, STRING]}, [1, "a"], (1, "a")),
    (datetime.date, {"type": "string", "format": "date"}, "2026-01-02", datetime.date(2026, 1, 2)),
    (
        datetime.datetime,
        {"type": "string", "format": "date-time"},
        "2026-01-02T03:04:05Z",
        datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    ),
    (datetime.timedelta, {"format": "duration"}, "PT1M", datetime.timedelta(minutes=1)),
    (uuid.UUID, {"type": "string", "format": "uuid"}, "0" * 32, uuid.UUID(int=0)),
    (decimal.Decimal, {}, "1.10", decimal.Decimal("1.10")),
    (bytes, {"type": "string"}, "é", "é".encode()),
    (Annotated[int, Field(ge=1, le=9)], {"minimum": 1, "maximum": 9}, "3", 3),
    (Annotated[str, Field(pattern="^a")], {"pattern": "^a"}, "ab", "ab"),
    (Annotated[str, "The city."], {"description": "The city."}, "x", "x"),
    (Annotated[str, Doc("The city.")], {"description": "The city."}, "x", "x"),
    (Any, {}, {"free": [None]}, {"free": [None]}),
    (None, NULL, None, None),
    (Exact, {}, {"day": "2026-01-02", "ids": [1]}, Exact(day=datetime.date(2026, 1, 2), ids=(1,))),
]


def tool_taking(annotation: Any, received: list[Any]) -> Tool:
    def take(value):  # type: ignore[no-untyped-def]
        received.append(value)

    take.__annotations__ = {"value": annotation}
    return function_tool(take)


@pytest.mark.parametrize(("annotation", "part", "sent", "got"), GRID, ids=lambda v: str(v)[:40])
def test_each_type_is_told_and_read(annotation: Any, part: Any, sent: Any, got: Any) -> None:
    received: list[Any] = []
    tool = tool_taking(annotation, received)
    shown = tool.parameters["properties"]["value"]
    assert tool.parameters["type"] == "object"
    assert tool.parameters["required"] == ["value"]
    assert {key: shown.get(key) for key in part} == part
    assert list(breaches({"tools": [tool.to_openai()]})) == []
    asyncio.run(tool.call({"value": sent}))
    assert received == [got]
    assert type(received[0]) is type(got)


@pytest.mark.parametrize(
    ("annotation", "sent", "field"),
    [
        (int, "soon", "value"),
        (int, None, "value"),
        (Literal["C", "F"], "K", "value"),
        (Unit, "K", "value"),
        (list[int], [1, "x"], "value.1"),
        (Place, {"country": "NO"}, "value.city"),
        (Trip, {"stops": [{}]}, "value.stops.0.city"),
        (Point, {"x": "a"}, "value.x"),
        (OldDict, {}, "value.name"),
        (uuid.UUID, "no", "value"),
        (datetime.date, "yesterday", "value"),
        (Annotated[int, Field(ge=1)], 0, "value"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_field(
    annotation: Any, sent: Any, field: str
) -> None:
    received: list[Any] = []
    with pytest.raises(InvalidArgumentsError, match=rf"(^|; ){field}: ") as caught:
        asyncio.run(tool_taking(annotation, received).call({"value": sent}))
    assert received == []
    assert "http" not in str(caught.value)
    assert "arg_0" not in str(caught.value)


def test_definitions_are_kept_and_titles_made_from_names_are_not() -> None:
    schema = tool_taking(Trip, []).parameters
    assert set(schema["$defs"]) == {"Trip", "Place"}
    assert schema["$defs"]["Place"]["required"] == ["city"]
    assert "title" not in schema
    assert "title" not in schema["$defs"]["Place"]["properties"]["city"]


def test_no_parameters_is_an_object_without_properties() -> None:
    @function_tool
    def ping() -> str:
        return "pong"

    assert ping.parameters == {"type": "object", "properties": {}}
    assert asyncio.run(ping.call({})) == "pong"
    assert asyncio.run(ping.call({"": "", "dummy": 1})) == "pong"


def test_a_parameter_without_annotation_takes_any_value() -> None:
    @function_tool
    def echo(value, times=1):  # type: ignore[no-untyped-def]
        return value

    assert echo.parameters["properties"] == {"value": {}, "times": {"default": 1}}
    assert echo.parameters["required"] == ["value"]
    assert asyncio.run(echo.call({"value": {"a": 1}})) == '{"a": 1}'


def test_keyword_only_parameters_are_like_the_others() -> None:
    @function_tool
    def find(query: str, *, limit: int, offset: int = 0) -> str:
        return f"{query} {limit} {offset}"

    assert find.parameters["required"] == ["query", "limit"]
    assert asyncio.run(find.call({"query": "q", "limit": "3"})) == "q 3 0"


def test_defaults_are_told_and_only_the_others_are_required() -> None:
    @function_tool
    def f(
        a: int,
        b: int = 3,
        c: str | None = None,
        d: str = None,  # type: ignore[assignment]  # noqa: RUF013
        e: Unit = Unit.CELSIUS,
        g: Place = Place(city="Oslo"),  # noqa: B008
        h: float = float("inf"),
        i: object = object(),
    ) -> str:
        return f"{b} {c} {d} {e} {g} {h}"

    shown = f.parameters["properties"]
    assert f.parameters["required"] == ["a"]
    assert shown["b"]["default"] == 3
    assert shown["c"]["default"] is None
    assert shown["d"] == STRING, "null is no string, so only 'not required' is told"
    assert shown["e"]["default"] == "C"
    assert shown["g"]["default"] == {"city": "Oslo", "country": None}
    assert "default" not in shown["h"], "JSON has no infinity"
    assert "default" not in shown["i"]
    assert asyncio.run(f.call({"a": 1})).startswith("3 None None Unit.CELSIUS city='Oslo'")


def test_null_for_a_parameter_with_a_default_means_not_given() -> None:
    @function_tool
    def f(
        unit: str = "C",
        note: str | None = "n",
        text: str = None,  # type: ignore[assignment]  # noqa: RUF013
    ) -> Any:
        return [unit, note, text]

    told = asyncio.run(f.call({"unit": None, "note": None, "text": None}))
    assert json.loads(told) == ["C", None, None]


def test_a_mutable_default_is_new_for_each_call() -> None:
    @function_tool
    def add(item: str, basket: list[str] = [], places: Place = Place(city="A")) -> Any:  # noqa: B006, B008
        basket.append(item)
        places.city += "!"
        return [basket, places.city]

    calls = [asyncio.run(add.call({"item": item})) for item in ("a", "b")]
    assert calls == ['[["a"], "A!"]', '[["b"], "A!"]']


def test_pydantic_field_as_default_is_understood() -> None:
    @function_tool
    def f(
        days: int = Field(3, ge=1, description="How many."),
        tags: list[str] = Field(default_factory=list),  # noqa: B008
        city: str = Field(min_length=2),
    ) -> Any:
        return [days, tags, city]

    assert f.parameters["properties"]["days"] == {
        "type": "integer",
        "default": 3,
        "minimum": 1,
        "description": "How many.",
    }
    assert f.parameters["required"] == ["city"]
    assert asyncio.run(f.call({"city": "Oslo"})) == '[3, [], "Oslo"]'
    with pytest.raises(InvalidArgumentsError, match=r"days: .*greater than or equal to 1"):
        asyncio.run(f.call({"city": "Oslo", "days": 0}))


def test_an_alias_of_the_author_is_the_name_in_json() -> None:
    @function_tool
    def f(days: Annotated[int, Field(alias="numDays")]) -> int:
        return days

    assert list(f.parameters["properties"]) == ["numDays"]
    assert asyncio.run(f.call({"numDays": 2})) == "2"


@pytest.mark.parametrize(
    "name",
    [
        "_x",
        "__y",
        "model_config",
        "schema",
        "json",
        "copy",
        "validate",
        "model_fields",
        "dict",
        "self_",
        "cls",
        "args",
        "kwargs",
        "name",
        "tool",
        "arg_0",
        "größe",
    ],
)
def test_any_parameter_name_works(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f(first: int, {name}: int = 1): return first + {name}", namespace)
    tool = function_tool(namespace["f"])
    assert list(tool.parameters["properties"]) == ["first", name]
    assert asyncio.run(tool.call({"first": 1, name: "4"})) == "5"


def test_the_schema_given_away_is_a_copy() -> None:
    tool = tool_taking(int, [])
    tool.to_openai()["function"]["parameters"]["properties"].clear()
    assert "value" in tool.parameters["properties"]


# What models send instead of what they were asked for ------------------------------------------------------------


def test_an_object_sent_as_text_is_opened() -> None:
    received: list[Any] = []
    asyncio.run(tool_taking(Place, received).call({"value": '{"city": "Oslo"}'}))
    asyncio.run(tool_taking(list[int], received).call({"value": " [1, 2]"}))
    asyncio.run(tool_taking(str, received).call({"value": '{"city": "Oslo"}'}))
    assert received == [Place(city="Oslo"), [1, 2], '{"city": "Oslo"}']


def test_the_fields_of_a_lone_model_may_come_without_the_parameter_around_them() -> None:
    @function_tool
    def book(place: Place) -> str:
        assert isinstance(place, Place)
        return place.city

    assert asyncio.run(book.call({"city": "Oslo"})) == "Oslo"
    assert asyncio.run(book.call({"place": {"city": "Oslo"}})) == "Oslo"
    with pytest.raises(InvalidArgumentsError, match=r"place\.city: Field required"):
        asyncio.run(book.call({"country": "NO"}))


def test_unknown_arguments_are_ignored_unless_something_is_wrong() -> None:
    @function_tool
    def f(city: str) -> str:
        return city

    assert asyncio.run(f.call({"city": "Oslo", "town": "Rome"})) == "Oslo"
    with pytest.raises(
        InvalidArgumentsError, match="city: Field required; there is no parameter 'town'"
    ):
        asyncio.run(f.call({"town": "Rome"}))


@pytest.mark.parametrize("args", [None, [], "x", 3, True])
def test_arguments_that_are_no_object_are_refused(args: Any) -> None:
    with pytest.raises(InvalidArgumentsError, match="must be a JSON object"):
        asyncio.run(tool_taking(int, []).call(args))


def test_many_faults_are_told_shortly() -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        asyncio.run(tool_taking(list[int], []).call({"value": ["x" * 1000] * 1000}))
    assert "and 980 more" in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_hostile_arguments_are_errors_and_not_crashes() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 10**6000):
        with pytest.raises(InvalidArgumentsError):
            asyncio.run(tool_taking(Any, []).call({"value": value}))


def test_lone_surrogates_do_not_reach_the_function() -> None:
    received: list[Any] = []
    asyncio.run(tool_taking(dict, received).call({"value": {"a\ud800": "b\udfff"}}))
    assert received == [{"a�": "b�"}]


def test_python_values_of_a_program_that_calls_by_hand_pass() -> None:
    received: list[Any] = []
    day = datetime.date(2026, 1, 2)
    asyncio.run(tool_taking(datetime.date, received).call({"value": day}))
    asyncio.run(tool_taking(Place, received).call({"value": Place(city="Oslo")}))
    assert received == [day, Place(city="Oslo")]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer Pythons need no twin")
def test_a_typed_dict_that_holds_itself_is_refused_and_not_followed_forever() -> None:
    with pytest.raises(ValueError, match="parameter 'value'"):
        tool_taking(Endless, [])


class Endless(typing.TypedDict):
    inner: "Endless | None"
