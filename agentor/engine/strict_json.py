"""Strict JSON in and out, and the door that text must pass before it is stored or sent.

Strict means RFC 8259: valid Unicode, no NaN, no lone surrogates, string keys. The peers on both sides of the
engine (SQLite, the provider's client) crash on anything else, so nothing else gets past `clean`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from pydantic_core import from_json

MAX_BITS: Final = 4096  # of an integer; Python refuses to write those of more than 4,300 digits, and few readers agree

_COMPACT: Final[dict[str, Any]] = {"ensure_ascii": False, "separators": (",", ":")}
_CANONICAL: Final[dict[str, Any]] = {**_COMPACT, "sort_keys": True}


def encoding(**form: Any) -> Callable[[Any], str]:
    """`JSONEncoder(**form).encode` in half its time: that makes its C encoder anew for every value, so as to know one that
    contains itself. Here such a value is one that is nested too deeply: a RecursionError."""
    plain = json.JSONEncoder(**form, allow_nan=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    separators = plain.key_separator, plain.item_separator
    texts = json.encoder.encode_basestring
    encode = make(None, plain.default, texts, None, *separators, plain.sort_keys, False, False)
    return lambda value: "".join(encode(value, 0))


_compact = encoding(**_COMPACT)
_canonical = encoding(**_CANONICAL)

LARGE: Final = (
    "1e999"  # how a number is written that no float can hold; every reader takes it for one
)
_WORD: Final = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|NaN|Infinity'
)  # a text, or what json says of such a number


def dumps(value: Any) -> str:
    """Compact JSON text of a clean value. Raises ValueError or TypeError for what JSON cannot say.

    An infinity is what was read of a number that is too large for a float, and is written as one.
    """
    try:
        return _compact(value)
    except (ValueError, RecursionError):
        return _with_large(value, **_COMPACT)


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values: keys sorted, no spaces. For digests."""
    try:
        return _canonical(value)
    except (ValueError, RecursionError):
        return _with_large(value, **_CANONICAL)


def in_ascii(value: Any, indent: int | None = None) -> str:
    """The same for a terminal, whatever it can show."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return _with_large(value, indent=indent)


def _with_large(value: Any, **form: Any) -> str:
    return _WORD.sub(_said, json.JSONEncoder(**form).encode(value))


def _said(found: re.Match[str]) -> str:
    if found[0] == "NaN":
        raise ValueError("NaN is not JSON")
    return LARGE if found[0] == "Infinity" else found[0]


def has_large(value: Any) -> bool:
    """Whether a value that was read holds a number that was too large for a float."""
    try:
        _compact(value)
    except ValueError:
        return True
    return False


def digest(value: Any) -> str:
    """32 hexadecimal digits that two clean values share only if they are equal."""
    return digest_of_text(canonical(value))


def digest_of_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def loads(text: str | bytes) -> Any:
    """Read JSON text; ValueError if it is none. Tolerates what older writers stored: lone surrogates, NaN.

    A number that is too large for a float, as 1e400 is, is infinity.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except (
        ValueError,
        TypeError,
    ):  # TypeError: also for text with lone surrogates, which no UTF-8 can say
        return _read_slowly(text)


def _read_slowly(text: str | bytes) -> Any:
    """What the fast reader refuses: lone surrogates, NaN, more than 200 levels; and the errors of what is no JSON."""
    try:
        return clean(json.loads(text, parse_constant=str))
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """A deep copy of a clean value; `copy.deepcopy` takes ten times as long."""
    if isinstance(value, dict):
        if _PLAIN.issuperset(map(type, value.values())):
            return value.copy()
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def clean_text(text: str) -> str:
    """The same text in valid Unicode: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean(value: Any) -> Any:
    """A copy of `value` in strict JSON types, or TypeError / ValueError naming what cannot be one.

    Tuples become lists, keys become strings, text becomes valid Unicode. NaN and the infinities, which JSON
    lacks, become their names as strings.
    """
    try:
        return _clean(value)
    except RecursionError:
        raise ValueError("nested too deeply for JSON, or a value that contains itself") from None


def _clean(value: Any) -> Any:
    kind = type(value)  # what nearly all of it is, first
    if kind is str:
        return clean_text(value)
    if kind is dict:
        return {
            clean_text(key) if type(key) is str else _key(key): _clean(item)
            for key, item in value.items()
        }
    match value:
        case str():
            return clean_text(str(value))
        case None | bool():
            return value
        case int():
            if value.bit_length() > MAX_BITS:
                raise ValueError("an integer of too many digits for JSON")
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case dict():
            return {_key(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return clean_text(str(key))
    if isinstance(key, bool | int | float) or key is None:
        return json.dumps(key)
    raise TypeError(f"{type(key).__name__} cannot be a JSON key")
