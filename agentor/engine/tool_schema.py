"""From parameters to JSON Schema, and from a model's arguments to the values the function wants.

One pydantic model per tool does both, so that what is promised is what is checked. Its fields have neutral names
and carry the parameter's name as alias: so a parameter may be called `schema`, `copy`, `_x` or `model_config`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentor.engine import strict_json
from agentor.engine.tool_signature import MISSING, Parameter
from agentor.errors import ConfigError

_FAULTS_TOLD = 20  # of one call; a model needs no more to see what it did
_VALUE_TOLD = 80  # characters


class InvalidArgumentsError(ValueError):
    """The model's arguments do not fit the tool's parameters. The text names each field and what is wrong."""


class _Schema(GenerateJsonSchema):
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  (pydantic's own form)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # "City" for `city` tells a model nothing


@dataclass(frozen=True, slots=True)
class _Field:
    parameter: str  # the name in Python
    key: str  # the name in JSON
    optional: bool
    nullable: bool  # null is a value of its type
    is_model: bool


class ToolSchema:
    """The parameters of one tool: `json` for the model, `validate` for what it sends back."""

    def __init__(
        self,
        tool_name: str,
        parameters: Sequence[Parameter],
        texts: Mapping[str, str],
        extra: Literal["ignore", "forbid"] = "ignore",
    ) -> None:
        self._fields: dict[str, _Field] = {}
        definitions: dict[str, Any] = {}
        for number, parameter in enumerate(parameters):
            attribute = f"arg_{number}"
            self._fields[attribute], definitions[attribute] = _define(
                tool_name, parameter, texts.get(parameter.name)
            )
        _check_keys(tool_name, [field.key for field in self._fields.values()])
        config = ConfigDict(extra=extra)
        self._model: type[BaseModel] = create_model(tool_name, __config__=config, **definitions)
        self._validator = self._model.__pydantic_validator__
        self.json = _json_schema(self._model, self._fields.values())

    def validate(self, args: Any) -> dict[str, Any]:
        """The keyword arguments for the function. `InvalidArgumentsError` says what does not fit."""
        if not isinstance(args, dict):
            raise InvalidArgumentsError(
                f"the arguments must be a JSON object, not {type(args).__name__}"
            )
        given = self._without_nulls(self._wrapped(args))
        try:
            instance = self._check(given)
        except ValidationError as error:
            raise InvalidArgumentsError(self._explain(error, given)) from None
        return {field.parameter: getattr(instance, name) for name, field in self._fields.items()}

    def _check(self, args: dict[str, Any]) -> Any:
        """Validated as the JSON it was, so that nested strict models read dates and the like."""
        try:
            text = strict_json.dumps(strict_json.clean(args))
        except TypeError:  # Python values, from a program that calls the tool by hand
            return self._validator.validate_python(args)
        except ValueError as error:
            raise InvalidArgumentsError(f"the arguments cannot be read: {error}") from None
        return self._validator.validate_json(text)

    def _wrapped(self, args: dict[str, Any]) -> dict[str, Any]:
        """Models often send the fields of a lone BaseModel parameter without the parameter around them."""
        match list(self._fields.values()):
            case [_Field(key=key, is_model=True)] if args and key not in args:
                return {key: args}
        return args

    def _without_nulls(self, args: dict[str, Any]) -> dict[str, Any]:
        """Null for a parameter that has a default, and no null in its type, means "not given"."""
        droppable = {f.key for f in self._fields.values() if f.optional and not f.nullable}
        return {k: v for k, v in args.items() if v is not None or k not in droppable}

    def _explain(self, error: ValidationError, args: dict[str, Any]) -> str:
        unknown = [key for key in args if key not in {f.key for f in self._fields.values()}]
        text = explain(error)
        if unknown and self._model.model_config.get("extra") == "ignore":
            text += f"; there is no parameter {', '.join(map(repr, unknown))}"
        return text


def explain(error: ValidationError) -> str:
    """Each field with its fault, in one line, without pydantic's links."""
    faults = error.errors(include_url=False, include_context=False)
    lines = [_fault(fault["loc"], fault["msg"], fault) for fault in faults[:_FAULTS_TOLD]]
    if len(faults) > _FAULTS_TOLD:
        lines.append(f"and {len(faults) - _FAULTS_TOLD} more")
    return "; ".join(lines)


def _fault(loc: tuple[int | str, ...], message: str, fault: Any) -> str:
    where = ".".join(map(str, loc))
    prefix = f"{where}: " if where else ""
    value = fault.get("input")
    if fault["type"] == "missing" or not isinstance(value, str | int | float | None):
        return f"{prefix}{message}"
    try:
        told = repr(value)
    except ValueError:  # an integer too long to be written down
        return f"{prefix}{message}"
    return f"{prefix}{message} (got {told[:_VALUE_TOLD]}{'...' if len(told) > _VALUE_TOLD else ''})"


def _define(tool_name: str, parameter: Parameter, text: str | None) -> tuple[_Field, Any]:
    """The field of one parameter, as ours and as pydantic's."""
    hint, default = parameter.hint, parameter.default
    if isinstance(default, FieldInfo):  # `days: int = Field(3, ge=1)`
        hint, default = Annotated[hint, default], MISSING
    try:
        adapter = TypeAdapter(hint)
        info = FieldInfo.from_annotation(hint)
        adapter.json_schema(schema_generator=_Schema)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"tool {tool_name!r}: parameter {parameter.name!r} has a type that cannot be told in JSON "
            f"({hint!r}): {reason}"
        ) from error
    has_default = default is not MISSING
    if has_default:
        _check_default(tool_name, parameter, adapter)
    settings: dict[str, Any] = {}
    if info.alias is None and info.validation_alias is None:
        settings["alias"] = parameter.name
    if info.description is None and text:
        settings["description"] = text
    if has_default:
        settings["default"] = default
    key = info.validation_alias if isinstance(info.validation_alias, str) else info.alias
    field = _Field(
        parameter=parameter.name,
        key=key or parameter.name,
        optional=has_default or not info.is_required(),
        nullable=_accepts(adapter, None),
        is_model=isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel),
    )
    return field, (hint, Field(**settings))


def _accepts(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except Exception:  # an author's validator may raise anything
        return False
    return True


def _check_default(tool_name: str, parameter: Parameter, adapter: TypeAdapter[Any]) -> None:
    """A plain default that the type refuses is a mistake the schema would repeat to the model.

    None is the usual way to say "not given", and an object of the program's own is a sentinel: both pass.
    """
    default = parameter.default
    if isinstance(default, str | int | float | list | dict | tuple) and not _accepts(
        adapter, default
    ):
        raise ConfigError(
            f"tool {tool_name!r}: the default {default!r} of parameter {parameter.name!r} "
            f"does not fit its type {parameter.hint!r}"
        )


def _check_keys(tool_name: str, keys: list[str]) -> None:
    doubled = sorted({key for key in keys if keys.count(key) > 1})
    if doubled:
        raise ConfigError(f"tool {tool_name!r}: two parameters share the name {doubled[0]!r}")


def _json_schema(model: type[BaseModel], fields: Any) -> dict[str, Any]:
    full = model.model_json_schema(schema_generator=_Schema)
    schema: dict[str, Any] = {"type": "object", "properties": full.get("properties", {})}
    for part in ("required", "additionalProperties", "$defs"):
        if part in full:
            schema[part] = full[part]
    for field in fields:
        shown = schema["properties"].get(field.key, {})
        if not _tellable(shown.get("default"), field.nullable):
            shown.pop("default", None)
    cleaned: dict[str, Any] = strict_json.clean(schema)
    return cleaned


def _tellable(default: Any, nullable: bool) -> bool:
    if default is None:
        return nullable
    return not isinstance(default, float) or math.isfinite(default)


__all__ = ["InvalidArgumentsError", "ToolSchema", "explain"]
