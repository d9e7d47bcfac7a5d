"""What is wrong with arguments that a person gives a call, judged by the schema that the model was told.

A model's slip goes back to the model; a person's would go out into the world. So a name that the schema does not have is
wrong here, at every depth, although a schema that says nothing of it would let it pass. Patterns and formats are not
looked at: what the tool itself refuses, it refuses when it starts.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentor.engine import strict_json

Schema = Mapping[str, Any]


def faults(args: Mapping[str, Any], schema: Schema) -> list[str]:
    """Each fault as "path: what is wrong", none if the arguments fit."""
    return _Judge(schema, names_only=False).of_arguments(args)


def unknown_names(args: Mapping[str, Any], schema: Schema) -> list[str]:
    """Only the names that the schema does not have, for those who have checked the values."""
    return _Judge(schema, names_only=True).of_arguments(args)


@dataclass(frozen=True, slots=True)
class _Judge:
    root: Schema
    names_only: bool

    def of_arguments(self, args: Mapping[str, Any]) -> list[str]:
        try:
            return self._faults(self._wrapped(dict(args)), self.root, "")
        except RecursionError:  # a schema that refers to nothing but itself says nothing
            return []

    def _wrapped(self, args: dict[str, Any]) -> dict[str, Any]:
        """A tool with one object for a parameter takes the fields of that object without the parameter around them."""
        match list((self.root.get("properties") or {}).items()):
            case [(name, part)] if args and name not in args:
                return {name: args} if "properties" in self._resolved(part) else args
        return args

    def _faults(self, value: Any, schema: Any, path: str) -> list[str]:
        schema = self._resolved(schema)
        found = [] if self.names_only else [f"{path}: {told}" for told in _unfit(value, schema)]
        if found:
            return found
        for choice in ("anyOf", "oneOf"):
            if branches := schema.get(choice):
                found += self._nearest(value, branches, path)
        for part in schema.get("allOf", ()):
            found += self._faults(value, part, path)
        if isinstance(value, dict):
            found += self._in_object(value, schema, path)
        elif isinstance(value, list) and "items" in schema:
            for number, item in enumerate(value):
                found += self._faults(item, schema["items"], f"{path}[{number}]")
        return found

    def _nearest(self, value: Any, branches: list[Any], path: str) -> list[str]:
        """What is wrong by the branch that fits best. Where only names count, the others are not branches of it."""
        if self.names_only:
            branches = [b for b in branches if not _type_fault(value, self._resolved(b))]
        return min((self._faults(value, b, path) for b in branches), key=len, default=[])

    def _in_object(self, value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
        known, required = schema.get("properties") or {}, schema.get("required") or ()
        others = schema.get("additionalProperties", not _is_closed(schema))
        before = f"{path}." if path else ""
        if not self.names_only:
            yield from (f"{before}{name}: is required" for name in required if name not in value)
        for name, item in value.items():
            if name in known:
                is_left_out = item is None and name not in required
                yield from [] if is_left_out else self._faults(item, known[name], before + name)
            elif isinstance(others, dict):
                yield from self._faults(item, others, before + name)
            elif not others:
                yield f"{before}{name}: {_no_such(name, list(known))}"

    def _resolved(self, schema: Any) -> Schema:
        """Without a reference into `$defs`; {} of what says nothing."""
        for _ in range(_REFERENCES):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            name = str(schema["$ref"]).removeprefix("#/$defs/")
            schema = (self.root.get("$defs") or {}).get(name)
        return schema if isinstance(schema, dict) and "$ref" not in schema else {}


_REFERENCES: Final = 16  # from one to the next


def _is_closed(schema: Schema) -> bool:
    """Whether it means to name all there is. What is put together of several parts is not judged by one of them."""
    is_whole = not any(part in schema for part in ("allOf", "anyOf", "oneOf", "patternProperties"))
    return "properties" in schema and is_whole


def _no_such(name: str, known: list[str]) -> str:
    if len(known) < 2:
        only = f"there is only {known[0]}" if known else "there are none"
        return f"there is no such argument, and {only}"
    near = difflib.get_close_matches(name, known, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"there is no such argument; there are {', '.join(known)}{meant}"


# Single values ----------------------------------------------------------------------------------------------------


def _unfit(value: Any, schema: Schema) -> list[str]:
    if fault := _type_fault(value, schema):
        return [fault]
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list) and not any(_same(value, item) for item in allowed):
        return [f"must be one of {', '.join(map(strict_json.dumps, allowed))}"]
    return [
        f"must {words} {schema[key]}"
        for key, (measure, fits, words) in _BOUNDS.items()
        if key in schema and not fits(measure(value, schema[key]), schema[key])
    ]


def _type_fault(value: Any, schema: Schema) -> str | None:
    asked = schema.get("type")
    kinds = [asked] if isinstance(asked, str) else asked
    if not isinstance(kinds, list) or any(_KINDS.get(k, _anything)(value) for k in kinds):
        return None
    return f"must be {' or '.join(map(_with_article, kinds))}, not {strict_json.dumps(value)[:80]}"


def _with_article(kind: str) -> str:
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


def _anything(_: Any) -> bool:
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == value // 1,
}


def _same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _number(value: Any, bound: Any) -> Any:
    return value if _is_number(value) else bound  # a bound says nothing of other kinds


def _length(kind: type[str] | type[list[Any]]) -> Callable[[Any, Any], Any]:
    return lambda value, bound: len(value) if isinstance(value, kind) else bound


_BOUNDS: Final[Mapping[str, tuple[Any, Callable[[Any, Any], bool], str]]] = {
    "minimum": (_number, operator.ge, "be at least"),
    "maximum": (_number, operator.le, "be at most"),
    "minLength": (_length(str), operator.ge, "have at least so many characters:"),
    "maxLength": (_length(str), operator.le, "have at most so many characters:"),
    "minItems": (_length(list), operator.ge, "have at least so many items:"),
    "maxItems": (_length(list), operator.le, "have at most so many items:"),
}
