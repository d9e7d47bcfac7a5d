"""Reading the arguments of a call: a JSON object, or the reason why it is none.

Models write anything here. What they write is never trusted and never harms the process: the reason goes back to the
model, so that it can mend its call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from agentor.engine import strict_json

MAX_NESTING: Final = 128  # deeper arguments are a model gone astray, and harm readers downstream
MAX_DIGITS: Final = 1000  # of an integer; Python itself refuses to read 4,301


def parse_arguments(text: Any) -> tuple[dict[str, Any], str | None]:
    """The arguments as an object, and what is wrong with them (None: nothing).

    Absent or empty arguments are an empty object: whether that will do is for the tool's schema to say.
    """
    if isinstance(text, dict):
        text = json.dumps(text)
    if text is None or not str(text).strip():
        return {}, None
    if (plain := _plain(str(text))) is not None:
        return plain, None
    try:
        value = _decoder.decode(str(text))
    except RecursionError:
        return {}, "the arguments are nested too deeply"
    except _Fault as fault:
        return {}, f"the arguments {fault}"
    except ValueError as error:
        return {}, f"the arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, not {_json_type(value)}"
    if str(text).count("{") + str(text).count("[") > MAX_NESTING and _depth(value) > MAX_NESTING:
        return {}, f"the arguments are nested more than {MAX_NESTING} levels deep"
    return value, None


def _plain(text: str) -> dict[str, Any] | None:
    """What nearly all arguments are: a flat object of texts without escapes, integers, booleans and nulls. None: it may
    be something else, and has to be read with care.

    Every name and every text has two quotes of its own. If the text has more than what was read of it, a name came twice.
    """
    if "\\" in text or len(text) > MAX_DIGITS:
        return None
    try:
        value = strict_json.loads(text)
    except ValueError:
        return None
    if type(value) is not dict:
        return None
    texts = 0
    for item in value.values():
        if type(item) is str:
            texts += 1
        elif type(item) not in _SIMPLE:
            return None
    return value if text.count('"') == 2 * (len(value) + texts) else None


_SIMPLE: Final = frozenset({int, bool, type(None)})


class _Fault(ValueError):
    """A fault of JSON text that json itself would let pass; reads after 'the arguments'."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Fault(f"name {twice!r} twice")
    return {strict_json.clean_text(key): _cleaned(item) for key, item in value.items()}


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return strict_json.clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return value  # objects have been through _pairs


def _refuse_constant(name: str) -> float:
    raise _Fault(f"hold {name}, which is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _Fault(f"hold the number {text[:40]}, which is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _Fault(f"hold an integer of {len(text)} digits, which is too large")
    return int(text)


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_constant=_refuse_constant,
    parse_float=_finite,
    parse_int=_integer,
)


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "an array"
        case str():
            return "a string"
        case bool():
            return "a boolean"
    return "a number"


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [child for item in level for child in _containers(item)]
    return deepest


def _containers(value: Any) -> Iterable[Any]:
    children = value.values() if isinstance(value, dict) else value
    return (child for child in children if isinstance(child, dict | list))
