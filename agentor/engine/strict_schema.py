"""JSON Schema as strict mode wants it: every object closed, every property required, nothing unsaid.

Strict providers build a grammar from the schema and refuse what they cannot build. A keyword that only narrows
(a length, a format, a pattern with look-around) is left out: we check the answer ourselves. A schema that
leaves something open cannot be closed, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

# https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas"
_KEPT: Final = frozenset(
    {"type", "description", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minItems", "maxItems"}
)
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_LOOK_AROUND: Final = re.compile(r"\(\?")


def close_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A strict copy of a schema whose root is an object (or refers to one).

    ValueError names the place that cannot be closed, as in "filters[]: takes any keys; ...".
    """
    return _Closing(schema).root()


class _Closing:
    """One pass over a schema. Definitions are closed where they are first met, so that an error can name the place."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._open = schema.get("$defs", {})
        self._closed: dict[str, Any] = {}

    def root(self) -> dict[str, Any]:
        root = {key: part for key, part in self._schema.items() if key != "$defs"}
        if "$ref" in root:  # strict mode wants the object itself at the root
            root = self._target(root["$ref"])
        closed = self._close(root, "")
        return {**closed, "$defs": self._closed} if self._closed else closed

    def _target(self, reference: str) -> dict[str, Any]:
        target: dict[str, Any] = self._open[_name(reference)]
        return target

    def _close(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        if "$ref" in schema:
            return self._close_reference(schema, path)
        if len(schema.get("allOf", ())) == 1:
            rest = {key: part for key, part in schema.items() if key != "allOf"}
            return self._close({**schema["allOf"][0], **rest}, path)
        closed = {key: part for key, part in schema.items() if key in _KEPT}
        if "const" in schema:
            closed["enum"] = [schema["const"]]
        if schema.get("format") in _FORMATS:
            closed["format"] = schema["format"]
        if "pattern" in schema and not _LOOK_AROUND.search(schema["pattern"]):
            closed["pattern"] = schema["pattern"]
        closed.update(self._inside(schema, path))
        return closed

    def _close_reference(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """Nothing may stand beside a `$ref`, so a described one is replaced by what it refers to."""
        beside = {key: part for key, part in schema.items() if key in ("description",)}
        if beside:
            return self._close({**self._target(schema["$ref"]), **beside}, path)
        name = _name(schema["$ref"])
        if name not in self._closed:
            self._closed[name] = {}  # so that a type that holds itself is closed once
            self._closed[name] = self._close(self._open[name], path)
        return {"$ref": schema["$ref"]}

    def _inside(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """The part of the closed schema that holds other schemas."""
        variants = schema.get("anyOf") or schema.get("oneOf")
        if variants:
            return {"anyOf": [self._close(variant, path) for variant in variants]}
        close = _BY_TYPE.get(str(schema.get("type")))
        if close is not None:
            return close(self, schema, path)
        if "type" in schema or "enum" in schema or "const" in schema:
            return {}
        raise ValueError(f"{path or 'the root'}: takes any value; give it a type")

    def _object(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", "properties" not in schema)
        if not properties and others is not False:
            raise ValueError(
                f"{path or 'the root'}: takes any keys; use a BaseModel that names them, or a list of pairs"
            )
        return {
            "properties": {
                name: self._close(part, f"{path}.{name}" if path else name)
                for name, part in properties.items()
            },
            "required": list(properties),
            "additionalProperties": False,
        }

    def _array(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        if "prefixItems" in schema:
            raise ValueError(
                f"{path}: each place of the tuple has a type of its own; use a BaseModel with named fields"
            )
        return {"items": self._close(schema.get("items", {}), f"{path}[]")}


_BY_TYPE: Final[dict[str, Callable[[_Closing, dict[str, Any], str], dict[str, Any]]]] = {
    "object": _Closing._object,
    "array": _Closing._array,
}


def _name(reference: str) -> str:
    return reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
