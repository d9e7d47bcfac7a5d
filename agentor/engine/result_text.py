"""Whatever a tool returns or raises, in words for the model. Nothing here ever raises.

The tool's work is done by the time its result is put into words, so a value that cannot be told well is told
badly rather than turned into a failure.
"""

from __future__ import annotations

import base64
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
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from agentor.engine import strict_json
from agentor.engine.tool_schema import explain

RESULT_LIMIT: Final = 1_000_000  # characters
_ERROR_LIMIT: Final = 20_000
_DEPTH_LIMIT: Final = 100  # far below what JSON readers refuse
_ITEM_LIMIT: Final = 100_000  # of a generator, which may never end


def result_text(value: Any, limit: int = RESULT_LIMIT) -> str:
    """The text of a result: a string as it is, anything else as JSON text or as `str` says it.

    At most `limit` characters, then a marker that says how many are missing. Always valid Unicode.
    """
    plain = _plain(value, ())
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return cut(strict_json.clean_text(text), limit)


def cut(text: str, limit: int) -> str:
    missing = len(text) - limit
    return text if missing <= 0 else f"{text[:limit]}\n[cut here: {missing} more characters]"


def error_text(error: BaseException) -> str:
    """One line for one exception: "RuntimeError: database unavailable"."""
    name = type(error).__name__
    message = explain(error) if isinstance(error, ValidationError) else _said(error)
    if isinstance(error, BaseExceptionGroup):
        message += ": " + "; ".join(error_text(inner) for inner in error.exceptions)
    text = f"{name}: {message}" if message else name
    return cut(strict_json.clean_text(text), _ERROR_LIMIT)


def _said(value: Any) -> str:
    try:
        return str.__str__(str(value))
    except BaseException:  # also SystemExit from a __repr__: the tool has done its work
        return f"<{type(value).__name__} that cannot be shown>"


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    """The value in JSON's own types. `above`: the ids of the containers it is in."""
    try:
        return _converted(value, above)
    except BaseException:  # a container or a model with a fault of its own
        return _said(value)


def _converted(value: Any, above: tuple[int, ...]) -> Any:
    match value:
        case enum.Enum():
            return _plain(value.value, above)
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case float():
            return float(value) if math.isfinite(value) else _NOT_FINITE[str(float(value))]
        case numbers.Integral():
            return _integer(int(value))
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(value))
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta() | decimal.Decimal() | uuid.UUID():
            return str(value)
        case os.PathLike():
            return os.fsdecode(value)
        case BaseException():
            return error_text(value)
    if id(value) in above:
        return "<contains itself>"
    if len(above) >= _DEPTH_LIMIT:
        return f"<nested deeper than {_DEPTH_LIMIT} levels>"
    return _container(value, (*above, id(value)))


def _container(value: Any, above: tuple[int, ...]) -> Any:
    match value:
        case BaseModel():
            return _plain(value.model_dump(), above)
        case collections.abc.Mapping():
            return {_key(key): _plain(item, above) for key, item in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return _plain(value._asdict(), above)
        case collections.abc.Set():
            return sorted((_plain(item, above) for item in value), key=_order)
        case collections.abc.Sequence() | collections.abc.ValuesView():
            return [_plain(item, above) for item in value]
        case collections.abc.Generator():
            return _collected(value, above)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), above) for name in names}
    return _said(value)


_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _integer(value: int) -> int | str:
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


def _key(key: Any) -> str:
    plain = _plain(key, ())
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _order(plain: Any) -> str:
    """Sets have no order; give the same set the same text in every process."""
    return json.dumps(plain, ensure_ascii=False, sort_keys=True)


def _collected(value: Any, above: tuple[int, ...]) -> list[Any]:
    items: list[Any] = []
    for item in value:
        if len(items) == _ITEM_LIMIT:
            items.append(f"<stopped after {_ITEM_LIMIT} items>")
            value.close()
            break
        items.append(_plain(item, above))
    return items
