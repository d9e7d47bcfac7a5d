"""From parameters to JSON Schema, and from a model's arguments to the values the function wants.

One pydantic model per tool does both, so that what is promised is what is checked. Its fields have neutral names
and carry the parameter's name as alias: so a parameter may be called `schema`, `copy`, `_x` or `model_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentor.engine import strict_json
from agentor.engine.argument_faults import InvalidArgumentsError, check_object, explain
from agentor.engine.strict_schema import close_schema
from agentor.engine.tool_fields import SchemaWriter, ToolField, define
from agentor.engine.tool_signature import Parameter
from agentor.errors import ConfigError


class ToolSchema:
    """The parameters of one tool: `json` for the model, `validate` for what it sends back.

    `strict` closes the schema as OpenAI's strict mode wants it: nothing may be left out, so null stands for a
    default. `ConfigError` names the parameter that cannot be told, or cannot be closed.
    """

    def __init__(
        self,
        tool_name: str,
        parameters: Sequence[Parameter],
        texts: Mapping[str, str],
        strict: bool = False,
    ) -> None:
        self._fields = [define(tool_name, p, texts.get(p.name)) for p in parameters]
        self._keys = _distinct(tool_name, [field.key for field in self._fields])
        self._attributes = [(f.parameter, _attribute(i)) for i, f in enumerate(self._fields)]
        self._droppable = {f.key for f in self._fields if f.optional and not f.nullable}
        self._only = next(
            (f.key for f in self._fields if f.is_model and len(self._fields) == 1), None
        )
        self._strict = strict
        self._model: type[BaseModel] = create_model(
            tool_name,
            __config__=ConfigDict(extra="forbid" if strict else "ignore"),
            **{_attribute(i): field.definition for i, field in enumerate(self._fields)},  # type: ignore[call-overload]
        )
        self.json = _shown(self._model, self._fields)
        if strict:
            self.json = _closed(tool_name, self.json, self._fields)

    def validate(self, args: Any) -> dict[str, Any]:
        """The keyword arguments for the function. `InvalidArgumentsError` says what does not fit."""
        given = self._without_nulls(self._wrapped(check_object(args)))
        try:
            instance = self._read(given)
        except ValidationError as error:
            instance = self._read_again(given, error)
        return {parameter: getattr(instance, name) for parameter, name in self._attributes}

    def _wrapped(self, args: dict[str, Any]) -> dict[str, Any]:
        """Models often send the fields of a lone BaseModel parameter without the parameter around them."""
        if args and self._only is not None and self._only not in args:
            return {self._only: args}
        return args

    def _without_nulls(self, args: dict[str, Any]) -> dict[str, Any]:
        """Null for a parameter that has a default, and no null in its type, means "not given"."""
        if not self._droppable:
            return args
        return {k: v for k, v in args.items() if v is not None or k not in self._droppable}

    def _read(self, args: dict[str, Any]) -> BaseModel:
        """Read as the JSON it was, so that a strict model inside takes a date or a tuple from it."""
        try:
            text = strict_json.dumps(strict_json.clean(args))
        except TypeError:  # Python values, from a program that calls the tool by hand
            return self._model.model_validate(args)
        except ValueError as error:
            raise InvalidArgumentsError(f"the arguments cannot be read: {error}") from None
        return self._model.model_validate_json(text)

    def _read_again(self, args: dict[str, Any], error: ValidationError) -> BaseModel:
        """Models often send an object or a list as text; such text is opened where it did not fit."""
        wrong = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
        opened = {key: _opened(value) if key in wrong else value for key, value in args.items()}
        if opened != args:
            try:
                return self._read(opened)
            except ValidationError as second:
                error = second
        raise InvalidArgumentsError(explain(error) + self._unknown(args)) from None

    def _unknown(self, args: dict[str, Any]) -> str:
        """Unknown arguments are ignored, but when something is wrong anyway they may be the reason."""
        unknown = [repr(key) for key in args if key not in self._keys]
        return (
            f"; there is no parameter {', '.join(unknown)}" if unknown and not self._strict else ""
        )


def _attribute(index: int) -> str:
    return f"arg_{index}"


def _distinct(tool_name: str, keys: list[str]) -> set[str]:
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"tool {tool_name!r}: two parameters share the name {key!r}")
    return set(keys)


def _opened(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return strict_json.loads(value)
        except ValueError:
            return value
    return value


def _shown(model: type[BaseModel], fields: Sequence[ToolField]) -> dict[str, Any]:
    """The model's schema, without what is only about the model, and with defaults only where they can be told."""
    full = model.model_json_schema(schema_generator=SchemaWriter)
    schema: dict[str, Any] = {"type": "object", "properties": full.get("properties", {})}
    for part in ("required", "additionalProperties", "$defs"):
        if part in full:
            schema[part] = full[part]
    for field in fields:
        shown = schema["properties"].get(field.key, {})
        if "default" in shown and not field.may_tell_default(shown["default"]):
            del shown["default"]
    cleaned: dict[str, Any] = strict_json.clean(schema)
    return cleaned


def _closed(tool_name: str, schema: dict[str, Any], fields: Sequence[ToolField]) -> dict[str, Any]:
    properties = dict(schema["properties"])
    for field in fields:
        if field.optional and field.key in properties:
            properties[field.key] = _nullable(properties[field.key], field.nullable)
    try:
        return close_schema({**schema, "properties": properties})
    except ValueError as error:
        raise ConfigError(f"tool {tool_name!r} cannot be strict: parameter {error}") from None


def _nullable(shown: dict[str, Any], already: bool) -> dict[str, Any]:
    """A parameter that may be left out, where nothing may: null says so. Its default is told in words."""
    kept = {key: part for key, part in shown.items() if key not in ("default", "description")}
    said = [shown["description"]] if "description" in shown else []
    if shown.get("default") is not None:
        word = "The default is" if already else "Null means"
        said.append(f"{word} {strict_json.dumps(shown['default'])}.")
    described = {"description": " ".join(said)} if said else {}
    return {**kept, **described} if already else {"anyOf": [kept, {"type": "null"}], **described}
