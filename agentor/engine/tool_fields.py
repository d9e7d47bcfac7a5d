"""One parameter of a tool as a field: what it is called in JSON, whether it may be left out, what it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentor.engine.tool_signature import MISSING, Parameter
from agentor.engine.typed_dicts import readable
from agentor.errors import ConfigError


class SchemaWriter(GenerateJsonSchema):
    """pydantic's, but without a title made from each field's name, and silent about defaults JSON cannot say."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  (pydantic's own form)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ToolField:
    parameter: str  # the name in Python
    key: str  # the name in JSON
    optional: bool  # has a default
    nullable: bool  # null is a value of its type
    is_model: bool  # a BaseModel
    definition: tuple[Any, FieldInfo]  # as pydantic's create_model takes it

    def may_tell_default(self, default: Any) -> bool:
        """A default null of a type without null only says "not given"; NaN and the infinities are not JSON."""
        if default is None:
            return self.nullable
        return not isinstance(default, float) or math.isfinite(default)


def define(tool_name: str, parameter: Parameter, text: str | None) -> ToolField:
    """The field of a parameter; `text` is what the docstring says of it.

    `ConfigError` if its type has no JSON form, or if it refuses the default.
    """
    hint, default = parameter.hint, parameter.default
    if isinstance(default, FieldInfo):  # `days: int = Field(3, ge=1)`
        hint, default = Annotated[hint, default], MISSING
    try:
        hint = readable(hint)
        info = FieldInfo.from_annotation(hint)
        definition = (hint, _field(parameter.name, info, default, text))
        probe = create_model(tool_name, value=definition)
        probe.model_json_schema(schema_generator=SchemaWriter)
    except Exception as error:  # also whatever a hook of the author's type raises
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"tool {tool_name!r}: parameter {parameter.name!r} has a type that cannot be told in JSON "
            f"({parameter.hint!r}): {reason}"
        ) from error
    if default is not MISSING:
        _check_default(tool_name, parameter, probe)
    return ToolField(
        parameter=parameter.name,
        key=_key(info) or parameter.name,
        optional=default is not MISSING or not info.is_required(),
        nullable=_accepts(probe, None),
        is_model=isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel),
        definition=definition,
    )


def _key(info: FieldInfo) -> str | None:
    return info.validation_alias if isinstance(info.validation_alias, str) else info.alias


def _field(name: str, info: FieldInfo, default: Any, text: str | None) -> FieldInfo:
    """What the hint leaves open. Its own alias and description come first."""
    settings: dict[str, Any] = {}
    if info.alias is None and info.validation_alias is None:
        settings["alias"] = name
    if info.description is None and (said := _annotated_text(info) or text):
        settings["description"] = said
    if default is not MISSING:
        settings["default"] = default
    field: FieldInfo = Field(**settings)
    return field


def _annotated_text(info: FieldInfo) -> str | None:
    """`Annotated[str, "The city."]`, or `Annotated[str, Doc("The city.")]`."""
    for item in info.metadata:
        text = getattr(item, "documentation", item)
        if isinstance(text, str):
            return text
    return None


def _accepts(probe: type[BaseModel], value: Any) -> bool:
    try:
        probe.__pydantic_validator__.validate_assignment(probe.model_construct(), "value", value)
    except Exception:  # an author's validator may raise anything
        return False
    return True


def _check_default(tool_name: str, parameter: Parameter, probe: type[BaseModel]) -> None:
    """A plain default that the type refuses is a mistake, and the schema would repeat it to the model.

    None is the usual way to say "not given", and an object of the program's own is a sentinel: both pass.
    """
    default = parameter.default
    plain = isinstance(default, str | int | float | list | dict | tuple)
    if plain and not _accepts(probe, default):
        raise ConfigError(
            f"tool {tool_name!r}: the default {default!r} of parameter {parameter.name!r} "
            f"does not fit its type {parameter.hint!r}"
        )
