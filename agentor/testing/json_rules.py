"""Strict JSON, as the strictest servers read it: no duplicate keys, no NaN, valid Unicode, sane depth and numbers.

Written apart from the engine's own JSON door on purpose: a checker that shares code with what it checks
agrees with its mistakes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

DEPTH_MAX: Final = (
    200  # of nested objects and arrays; servers in other languages stop at 100 to 1,000
)

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LARGEST_DOUBLE: Final = int(float.fromhex("0x1.fffffffffffffp+1023"))
_DIGITS_MAX: Final = len(str(_LARGEST_DOUBLE))


def read_strict(text: str) -> tuple[Any, list[str]]:
    """The value of JSON text, and its breaches in words. The value is None if the text could not be read."""
    if text.count("{") + text.count("[") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        return None, [f"nested deeper than {DEPTH_MAX}"]
    try:
        value = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        return None, [f"not strict JSON ({error})"]
    return value, impurities(value)


def impurities(value: Any, path: str = "") -> list[str]:
    """What in a Python value strict JSON cannot say, each breach naming its place."""
    return [] if _is_pure(value, 0) else list(_walk(value, path, 0))


def _is_pure(value: Any, depth: int) -> bool:
    """The quick answer for what is right, since it nearly always is; `_walk` finds the words for what is not."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, int | float):
        return _fits_a_double(value)
    if depth > DEPTH_MAX:
        return False
    if isinstance(value, list):
        return all(_is_pure(item, depth + 1) for item in value)
    return isinstance(value, dict) and all(
        isinstance(k, str) and is_unicode(k) and _is_pure(v, depth + 1) for k, v in value.items()
    )


def _walk(value: Any, path: str, depth: int) -> Iterator[str]:
    here = path or "the value"
    if depth > DEPTH_MAX:
        yield f"{here[:80]}: nested deeper than {DEPTH_MAX}, or a value that contains itself"
    elif isinstance(value, str):
        if not is_unicode(value):
            yield f"{here}: a lone surrogate, which is not valid Unicode"
    elif value is None or isinstance(value, bool):
        return
    elif isinstance(value, int | float):
        if not _fits_a_double(value):
            yield f"{here}: a number that is not finite or that no double can hold"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, dict):
        yield from _walk_object(value, path, depth)
    else:
        yield f"{here}: {type(value).__name__} is not a JSON type"


def _walk_object(value: dict[Any, Any], path: str, depth: int) -> Iterator[str]:
    for key, item in value.items():
        if not isinstance(key, str):
            yield f"{path or 'the value'}: key {key!r} is not a string"
            continue
        if not is_unicode(key):
            yield f"{path or 'the value'}: a key with a lone surrogate"
        yield from _walk(item, f"{path}.{key}" if path else key, depth + 1)


def is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits_a_double(number: float) -> bool:
    return abs(number) <= _LARGEST_DOUBLE if isinstance(number, int) else math.isfinite(number)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _read_int(digits: str) -> int:
    if len(digits) > _DIGITS_MAX + 1:  # one for the sign; Python itself refuses only beyond 4,300
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {doubled!r} given twice")
    return found


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object_of, parse_constant=_refuse_constant, parse_int=_read_int
)


def _depth(text: str) -> int:
    """How deep the brackets outside strings nest; found without recursion, so that any text is safe."""
    depth = deepest = 0
    for character in _STRING.sub("", text):
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
