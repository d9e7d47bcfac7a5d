"""The stand-in for a provider that the documents' examples talk to.

It behaves as a sensible model would: asks for the first offered tool once, with arguments made from its schema, then
answers from the result; where a schema is asked for, the answer fits it.
"""

from __future__ import annotations

import json
from typing import Any

from agentor.testing.answers import Answer, calls, says
from agentor.testing.completions import Request

PLAUSIBLE = {"city": "London", "country": "GB", "email": "ada@example.com", "name": "Ada"}
FORMATS = {
    "date-time": "2026-11-03T12:00:00Z",
    "date": "2026-11-03",
    "time": "12:00:00Z",
    "uuid": "7f9c24e5-5f0d-4a0b-9a5e-3b1d8c6f2a11",
    "uri": "https://example.com/",
}


def answer(request: Request) -> Answer:
    last = request.messages[-1]
    if request.response_format and "json_schema" in request.response_format:
        schema = request.response_format["json_schema"]["schema"]
        return says(json.dumps(example(schema, schema)))
    if last["role"] == "tool":
        return says(f"I looked it up: {last['content']}")
    if request.tools:
        function = request.tools[0]["function"]
        schema = function.get("parameters", {})
        return calls((function["name"], example(schema, schema)))
    return says(f"You said: {last.get('content')}")


def example(schema: dict[str, Any], root: dict[str, Any], name: str = "") -> Any:
    """A value that fits a JSON schema: only what is required, the first of several choices."""
    if "$ref" in schema:
        return example(_resolve(schema["$ref"], root), root, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choices in ("anyOf", "oneOf", "allOf"):
        if choices in schema:
            return example(schema[choices][0], root, name)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind if isinstance(kind, str) else kind[0]:
        case "object":
            properties = schema.get("properties", {})
            return {key: example(properties[key], root, key) for key in schema.get("required", [])}
        case "array":
            items = schema.get("items", {"type": "string"})
            return [example(items, root, name)] * max(1, schema.get("minItems", 1))
        case "integer":
            return max(3, schema.get("minimum", 3))
        case "number":
            return max(1.5, schema.get("minimum", 1.5))
        case "boolean":
            return True
        case "null":
            return None
    text = FORMATS.get(schema.get("format", ""), PLAUSIBLE.get(name, f"some {name}".strip()))
    return text.ljust(schema.get("minLength", 0), ".")


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return dict(found)
