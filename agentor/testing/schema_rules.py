"""The rules for what goes beside the messages: tools, the choice among them, and the format of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
TOOLS_MAX: Final = 128

_JSON_TYPES: Final = frozenset(
    {"object", "array", "string", "number", "integer", "boolean", "null"}
)
_FUNCTION_KEYS: Final = frozenset({"name", "description", "parameters", "strict"})
_FORMAT_KEYS: Final = frozenset({"name", "description", "schema", "strict"})


def is_name(value: Any) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def check_tools(body: Mapping[str, Any]) -> Iterator[str]:
    """Breaches of `tools`, and of `tool_choice` and `parallel_tool_calls`, which need them."""
    if "tools" in body:
        yield from _check_tool_list(body["tools"])
    else:
        for key in ("tool_choice", "parallel_tool_calls"):
            if key in body:
                yield f"{key}: only allowed with tools"
        return
    if "tool_choice" in body:
        yield from _check_choice(body["tool_choice"], _tool_names(body["tools"]))
    if not isinstance(body.get("parallel_tool_calls", True), bool):
        yield "parallel_tool_calls: not true or false"


def _tool_names(tools: Any) -> list[Any]:
    if not isinstance(tools, list):
        return []
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    return [function.get("name") for function in functions if isinstance(function, dict)]


def _check_tool_list(tools: Any) -> Iterator[str]:
    if not isinstance(tools, list) or not tools:
        yield "tools: not a list with at least one tool; leave it out when there is none"
        return
    if len(tools) > TOOLS_MAX:
        yield f"tools: {len(tools)} tools, more than {TOOLS_MAX}"
    for index, tool in enumerate(tools):
        yield from _check_tool(tool, f"tools[{index}]")
    names = _tool_names(tools)
    for name in sorted({n for n in names if isinstance(n, str) and names.count(n) > 1}):
        yield f"tools: two tools named {name!r}"


def _check_tool(tool: Any, path: str) -> Iterator[str]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        yield f'{path}: not an object with type "function"'
        return
    yield from _unknown_keys(tool, {"type", "function"}, path)
    function = tool.get("function")
    if not isinstance(function, dict):
        yield f"{path}.function: missing or not an object"
        return
    yield from _check_function(function, f"{path}.function")


def _check_function(function: dict[str, Any], path: str) -> Iterator[str]:
    yield from _unknown_keys(function, _FUNCTION_KEYS, path)
    if not is_name(function.get("name")):
        yield f"{path}.name: {function.get('name')!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$"
    if not isinstance(function.get("description", ""), str):
        yield f"{path}.description: not a string"
    strict = function.get("strict", False)
    if strict is not None and not isinstance(strict, bool):
        yield f"{path}.strict: not true or false"
    if "parameters" in function:
        yield from _check_root(function["parameters"], f"{path}.parameters", strict is True)
    elif strict is True:
        yield f"{path}.parameters: missing, though the function is strict"


def _check_choice(choice: Any, names: list[Any]) -> Iterator[str]:
    if choice in ("none", "auto", "required"):
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "allowed_tools" and isinstance(choice.get("allowed_tools"), dict):
        return
    function = choice.get("function") if kind == "function" else None
    if not isinstance(function, dict):
        yield f"tool_choice: {choice!r} is neither none, auto, required nor a named function"
    elif function.get("name") not in names:
        yield f"tool_choice: {function.get('name')!r} is not one of the tools"


def check_response_format(response_format: Any, prose: str) -> Iterator[str]:
    """Breaches of `response_format`; `prose` is the text of the messages, which must ask for JSON by name
    when the format is json_object."""
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        yield "response_format: its type is not text, json_object or json_schema"
        return
    wanted = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    yield from _unknown_keys(response_format, wanted, "response_format")
    if kind == "json_object" and "json" not in prose.lower():
        yield "response_format: json_object needs the word JSON in the messages"
    if kind == "json_schema":
        yield from _check_json_schema(response_format.get("json_schema"))


def _check_json_schema(wanted: Any) -> Iterator[str]:
    path = "response_format.json_schema"
    if not isinstance(wanted, dict):
        yield f"{path}: missing or not an object"
        return
    yield from _unknown_keys(wanted, _FORMAT_KEYS, path)
    if not is_name(wanted.get("name")):
        yield f"{path}.name: {wanted.get('name')!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$"
    strict = wanted.get("strict", False)
    if strict is not None and not isinstance(strict, bool):
        yield f"{path}.strict: not true or false"
    if "schema" in wanted:
        yield from _check_root(wanted["schema"], f"{path}.schema", strict is True)
    else:
        yield f"{path}.schema: missing"


def _check_root(schema: Any, path: str, strict: bool) -> Iterator[str]:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield f'{path}: the root is not a schema of type "object"'
        return
    if not isinstance(schema.get("properties", {}), dict):
        yield f"{path}.properties: not an object"
        return
    yield from _check_schema(schema, path, schema, strict)


def _check_schema(
    schema: Any, path: str, root: dict[str, Any], strict: bool, depth: int = 0
) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{path}: {type(schema).__name__} is not a schema"
        return
    if depth > 100:
        yield f"{path[:80]}: schemas nested deeper than 100"
        return
    yield from _check_keywords(schema, path, root)
    if "properties" in schema or schema.get("type") == "object":
        yield from _check_object(schema, path, strict)
    for part, step in _subschemas(schema):
        yield from _check_schema(part, f"{path}.{step}", root, strict, depth + 1)


def _check_keywords(schema: dict[str, Any], path: str, root: dict[str, Any]) -> Iterator[str]:
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _JSON_TYPES:
            yield f"{path}.type: {kind!r} is no JSON type"
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield f"{path}.enum: not a list with at least one value"
    if "$ref" in schema and not _resolves(schema["$ref"], root):
        yield f"{path}.$ref: {schema['$ref']!r} points at nothing in this schema"
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if keyword in schema and not (isinstance(schema[keyword], list) and schema[keyword]):
            yield f"{path}.{keyword}: not a list with at least one schema"
    for keyword in ("properties", "$defs", "definitions"):
        if not isinstance(schema.get(keyword, {}), dict):
            yield f"{path}.{keyword}: not an object"


def _check_object(schema: dict[str, Any], path: str, strict: bool) -> Iterator[str]:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict):
        return  # told already
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield f"{path}.required: not a list of names"
        return
    for name in required:
        if name not in properties:
            yield f"{path}.required: {name!r} is not among the properties"
    if len(set(required)) < len(required):
        yield f"{path}.required: a name given twice"
    if strict and schema.get("additionalProperties") is not False:
        yield f"{path}: strict, but additionalProperties is not false"
    if strict and set(properties) - set(required):
        yield f"{path}: strict, but {sorted(set(properties) - set(required))} are not required"


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    for keyword in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(keyword), dict):
            for name, part in schema[keyword].items():
                yield part, f"{keyword}.{name}"
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(keyword), list):
            for index, part in enumerate(schema[keyword]):
                yield part, f"{keyword}[{index}]"
    for keyword in ("items", "additionalProperties", "not"):
        if keyword in schema:
            yield schema[keyword], keyword


def _resolves(reference: Any, root: dict[str, Any]) -> bool:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    target: Any = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or step not in target:
            return False
        target = target[step]
    return isinstance(target, dict | bool)


def _unknown_keys(found: dict[str, Any], known: frozenset[str] | set[str], path: str) -> list[str]:
    return [f"{path}: unknown key {key!r}" for key in found if key not in known]
