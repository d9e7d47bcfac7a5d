"""Whatever a tool returns or raises, in words for the model. Nothing here ever raises.

The tool's work is done by the time its result is put into words, so a value that cannot be told well is told
badly rather than turned into a failure.
"""

from __future__ import annotations

import base64
import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import json
import math
import numbers
import os
import uuid
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from agentor.engine import strict_json
from agentor.engine.argument_faults import explain
from agentor.engine.redact import SECRETS

RESULT_LIMIT: Final = 1_000_000  # characters
ERROR_LIMIT: Final = 20_000  # characters
_DEPTH_LIMIT: Final = 100  # levels; far below what JSON readers refuse
_VALUES_LIMIT: Final = (
    1_000_000  # a value that shares its parts, or never ends, can be larger than any text
)


def result_text(value: Any, limit: int = RESULT_LIMIT) -> str:
    """The text of a result: a string as it is, anything else as JSON text or as `str` says it.

    Dates, UUIDs, paths, numbers that JSON lacks and other values become their usual text; bytes are read as UTF-8,
    else told as base64; models, dataclasses and named tuples are objects, sets sorted lists, generators lists.
    At most `limit` characters, then a marker that says how many are missing. Always valid Unicode.
    """
    if type(value) is str:
        return cut(strict_json.clean_text(value), limit)
    telling = _Telling()
    plain = telling.plain(value, ())
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return cut(strict_json.clean_text(text), limit, "" if telling.left > 0 else "at least ")


def error_text(error: BaseException) -> str:
    """One exception in words, as in "RuntimeError: database unavailable"; those of a group are named too.

    Secrets are hidden: what an exception says may come from anywhere in it.
    """
    name = type(error).__name__
    try:
        message = _message(error)
    except (
        BaseException
    ):  # groups in groups beyond recursion, a validation error that cannot list its faults
        message = _said(error)
    text = f"{name}: {message}" if message else name
    return cut(SECRETS.hide(strict_json.clean_text(text)), ERROR_LIMIT)


def _message(error: BaseException) -> str:
    match error:
        case ValidationError():
            return explain(error)
        case BaseExceptionGroup():
            return f"{_said(error)}: {'; '.join(map(error_text, error.exceptions))}"
    return _said(error)


def cut(text: str, limit: int, about: str = "") -> str:
    missing = len(text) - limit
    if missing <= 0:
        return text
    return f"{text[:limit]}\n[cut here: {about}{missing} more characters]"


def _said(value: Any) -> str:
    try:
        return str.__str__(str(value))
    except BaseException:  # even SystemExit from a `__repr__`: the tool has done its work
        return f"<{type(value).__name__} that cannot be shown>"


class _Telling:
    """One value on its way to JSON's own types. `above` are the ids of the containers a part is in."""

    def __init__(self) -> None:
        self.left = _VALUES_LIMIT

    def plain(self, value: Any, above: tuple[int, ...]) -> Any:
        self.left -= 1
        if value is None or type(value) in (str, bool):  # most values, and the quickest way
            return value
        try:
            return self._converted(value, above)
        except BaseException:  # of a container or a model with a fault of its own
            return _said(value)

    def _converted(self, value: Any, above: tuple[int, ...]) -> Any:
        match value:
            case enum.Enum():
                return self.plain(value.value, above)
            case str():
                return str.__str__(value)
            case float():
                return float(value) if math.isfinite(value) else _NOT_FINITE[str(float(value))]
            case int():
                return _integer(int(value))
        if not isinstance(value, dict | list) and (leaf := _leaf(value)) is not None:
            return leaf
        if id(value) in above:
            return "<contains itself>"
        if len(above) >= _DEPTH_LIMIT:
            return f"<nested deeper than {_DEPTH_LIMIT} levels>"
        return self._container(value, (*above, id(value)))

    def _container(self, value: Any, above: tuple[int, ...]) -> Any:
        match value:
            case dict():
                return self._object(value.items(), above)
            case tuple() if hasattr(value, "_asdict"):
                return self._object(value._asdict().items(), above)
            case list() | tuple():
                return self._list(value, above)
            case BaseModel():
                return self.plain(value.model_dump(warnings=False), above)
            case collections.abc.Mapping():
                return self._object(value.items(), above)
            case collections.abc.Set():
                return sorted(self._list(value, above), key=_order)
            case collections.abc.Sequence() | collections.abc.ValuesView():
                return self._list(value, above)
            case collections.abc.Generator() | map() | filter() | zip():
                return self._list(value, above)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return self._object(((name, getattr(value, name)) for name in names), above)
        if hasattr(type(value), "tolist"):  # numpy, whose own text leaves out the middle
            return self.plain(value.tolist(), above)
        return _said(value)

    def _object(self, items: Iterable[tuple[Any, Any]], above: tuple[int, ...]) -> dict[str, Any]:
        told = {}
        for key, item in items:
            if self.left <= 0:
                break
            told[self._key(key)] = self.plain(item, above)
        return told

    def _list(self, items: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
        told = []
        for item in items:
            if self.left <= 0:
                break
            told.append(self.plain(item, above))
        return told

    def _key(self, key: Any) -> str:
        if type(key) is str:
            return key
        plain = self.plain(key, ())
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _leaf(value: Any) -> str | int | None:
    """A value that is one thing, or None for a container."""
    match value:
        case numbers.Integral():  # of numpy
            return _integer(int(value))
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(value))
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta() | decimal.Decimal() | uuid.UUID() | collections.UserString():
            return str(value)
        case os.PathLike():
            return os.fsdecode(value)
        case BaseException():
            return error_text(value)
    return None


def _integer(value: int) -> int | str:
    if -(2**63) <= value < 2**63:
        return value
    try:
        str(value)
    except ValueError:  # more digits than Python is willing to write in decimal
        return hex(value)
    return value


def _bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _order(plain: Any) -> str:
    """Sets have no order; the same set gets the same text in every process."""
    return json.dumps(plain, ensure_ascii=False, sort_keys=True)
