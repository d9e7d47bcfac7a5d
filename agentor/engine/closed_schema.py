"""JSON schemas as providers enforce them to the letter: every object closed, every property required."""

from __future__ import annotations

from typing import Any, Final

_UNENFORCED: Final = ("default", "title")  # said nowhere in a strict schema


def close_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A closed copy of a schema. ValueError names the place where it is open and cannot be closed."""
    closed: dict[str, Any] = _closed(schema, "the type itself")
    if "$ref" in closed:  # a root must be an object itself
        name = closed["$ref"].removeprefix("#/$defs/")
        closed = {**closed["$defs"][name], "$defs": closed["$defs"]}
    return closed


def _closed(node: Any, where: str) -> Any:
    if isinstance(node, list):
        return [_closed(item, where) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: value for key, value in node.items() if key not in _UNENFORCED}
    if "$ref" in closed:  # nothing may stand beside a reference but what the root needs
        closed = {key: value for key, value in closed.items() if key in ("$ref", "$defs")}
    for key in ("$defs", "properties"):
        if isinstance(closed.get(key), dict):
            closed[key] = {name: _closed(value, f"{name!r}") for name, value in closed[key].items()}
    for key in ("items", "anyOf", "prefixItems"):
        if key in closed:
            closed[key] = _closed(closed[key], where)
    if "oneOf" in closed:
        closed["anyOf"] = _closed(closed.pop("oneOf"), where)
        closed.pop("discriminator", None)
    if closed.get("type") == "object" or "properties" in closed:
        _check_enumerated(closed, where)
        closed["additionalProperties"] = False
        closed["required"] = list(closed.get("properties", {}))
    elif not closed or set(closed) <= {"description"}:
        raise ValueError(f"{where} may be anything at all; give it a type")
    return closed


def _check_enumerated(node: dict[str, Any], where: str) -> None:
    if (
        node.get("additionalProperties")
        or "patternProperties" in node
        or not node.get("properties")
    ):
        raise ValueError(
            f"{where} is an object with open-ended keys (a dict), which cannot be enforced; "
            "use a list of objects with fields, or a model that names its fields"
        )
