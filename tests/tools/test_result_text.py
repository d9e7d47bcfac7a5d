"""Whatever a tool returns has a text, and making it never fails."""

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import types
import uuid
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from agentor.engine.result_text import result_text


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Place(BaseModel):
    city: str
    since: datetime.date | None = None


class Cities(RootModel[list[str]]):
    pass


@dataclasses.dataclass
class Point:
    x: int
    tags: set[str]


class Pair(NamedTuple):
    left: int
    right: str


class Plain:
    def __str__(self) -> str:
        return "plain text"


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Exits:
    def __repr__(self) -> str:
        raise SystemExit(1)


class Lying(collections.abc.Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "Lying()"


class Array:
    """As numpy's: its own text leaves out the middle."""

    def tolist(self) -> list[list[float]]:
        return [[1.0, 2.0], [3.0, float("nan")]]


DAY = datetime.date(2026, 1, 2)

TEXTS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (-7, "-7"),
    (1.5, "1.5"),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    (10**5000, hex(10**5000)),
    ("", ""),
    ("as it is \x00 é", "as it is \x00 é"),
    ('{"already": "json"}', '{"already": "json"}'),
    ("pair \ud83d\ude00 lone \ud800", "pair 😀 lone �"),
    ([], "[]"),
    ({}, "{}"),
    ([1, "a", None, True], '[1, "a", null, true]'),
    ({"a": {"b": [1.5]}, "é": "ü"}, '{"a": {"b": [1.5]}, "é": "ü"}'),
    ({1: "a", None: "b", (1, 2): "d"}, '{"1": "a", "null": "b", "[1, 2]": "d"}'),
    ((1, 2), "[1, 2]"),
    ({3, 1, 2}, "[1, 2, 3]"),
    (frozenset({"b", "a"}), '["a", "b"]'),
    (range(3), "[0, 1, 2]"),
    (collections.deque([1]), "[1]"),
    ({"a": 1}.keys(), '["a"]'),
    ({"a": 1}.values(), "[1]"),
    ({"a": 1}.items(), '[["a", 1]]'),
    (types.MappingProxyType({"a": 1}), '{"a": 1}'),
    (collections.OrderedDict(a=1), '{"a": 1}'),
    (collections.UserString("text"), "text"),
    (DAY, "2026-01-02"),
    (datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC), "2026-01-02T03:04:00+00:00"),
    (datetime.time(3, 4), "03:04:00"),
    (datetime.timedelta(hours=1), "1:00:00"),
    (decimal.Decimal("1.10"), "1.10"),
    (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
    (pathlib.PurePosixPath("a/b"), "a/b"),
    (b"text \xc3\xa9", "text é"),
    (b"\xff\xfe", "//4="),
    (bytearray(b"text"), "text"),
    (memoryview(b"text"), "text"),
    (Colour.RED, "red"),
    (Level.HIGH, "3"),
    (Place(city="Oslo", since=DAY), '{"city": "Oslo", "since": "2026-01-02"}'),
    (Cities(["Oslo"]), '["Oslo"]'),
    (Point(1, {"b", "a"}), '{"x": 1, "tags": ["a", "b"]}'),
    (Pair(1, "a"), '{"left": 1, "right": "a"}'),
    (Array(), '[[1.0, 2.0], [3.0, "NaN"]]'),
    (Plain(), "plain text"),
    ([Plain(), DAY, Colour.RED], '["plain text", "2026-01-02", "red"]'),
    (Mute(), "<Mute that cannot be shown>"),
    ([Exits(), 1], '["<Exits that cannot be shown>", 1]'),
    ([Lying(), 1], '["Lying()", 1]'),
    (ValueError("as a value"), "ValueError: as a value"),
    ((number for number in (1, 2)), "[1, 2]"),
    (int, "<class 'int'>"),
]


@pytest.mark.parametrize(("value", "text"), TEXTS, ids=lambda v: type(v).__name__)
def test_each_value_has_its_text(value: Any, text: str) -> None:
    assert result_text(value) == text


def test_a_mock_has_a_text() -> None:
    assert "MagicMock" in result_text(MagicMock(name="tool"))


def test_a_value_that_contains_itself_ends() -> None:
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = [loop]
    assert result_text(loop) == '{"a": 1, "self": ["<contains itself>"]}'


def test_a_value_that_appears_twice_is_told_twice() -> None:
    shared = [1]
    assert result_text([shared, shared]) == "[[1], [1]]"


def test_very_deep_nesting_is_told_to_a_depth() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]
    text = result_text(deep)
    assert "<nested deeper than 100 levels>" in text
    json.loads(text)


@pytest.mark.slow
def test_a_value_far_larger_than_its_memory_is_told_in_part() -> None:
    vast: list[Any] = []
    for _ in range(100):
        vast = [vast, vast]
    text = result_text(vast, limit=1000)
    assert text.startswith("[[[[")
    assert "at least" in text[1000:]


@pytest.mark.parametrize(
    ("value", "whole"), [("x" * 1_000_100, "x" * 1_000_100), (list(range(200_000)), None)]
)
def test_a_long_text_is_cut_with_a_marker_that_counts_what_is_missing(
    value: Any, whole: str | None
) -> None:
    whole = whole or json.dumps(value)
    text = result_text(value)
    assert text[:1_000_000] == whole[:1_000_000]
    assert text[1_000_000:] == f"\n[cut here: {len(whole) - 1_000_000} more characters]"


def test_a_text_of_exactly_the_limit_is_not_cut() -> None:
    assert result_text("x" * 10, limit=10) == "x" * 10
    assert result_text("x" * 11, limit=10) == "x" * 10 + "\n[cut here: 1 more characters]"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(JSON)
def test_json_comes_back_from_its_text(value: Any) -> None:
    text = result_text(value)
    assert isinstance(value, str) or json.loads(text) == value


ANYTHING = st.recursive(
    st.none()
    | st.floats()
    | st.binary()
    | st.datetimes()
    | st.decimals()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.integers()
    | st.builds(Mute)
    | st.uuids()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text() | st.none() | st.tuples(st.text()), inner)
        | st.builds(lambda value: types.SimpleNamespace(value=value), inner)
    ),
    max_leaves=10,
)


@given(ANYTHING, st.integers(0, 50))
def test_anything_has_a_text_that_can_be_stored_and_sent(value: Any, limit: int) -> None:
    text = result_text(value, limit)
    text.encode()
    assert len(text) <= limit + len("\n[cut here:  more characters]") + 20
