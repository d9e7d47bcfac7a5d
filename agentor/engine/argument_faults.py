"""What is wrong with the arguments of a call, in words that help a model to mend them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

_FAULTS_TOLD: Final = 20  # of one call; a model needs no more to see what it did
_VALUE_TOLD: Final = 80  # characters


class InvalidArgumentsError(ValueError):
    """The model's arguments do not fit the tool's parameters. The text names each field and what is wrong."""


def check_object(args: Any) -> dict[str, Any]:
    """The arguments, if they are an object at all."""
    if isinstance(args, dict):
        return args
    raise InvalidArgumentsError(f"the arguments must be a JSON object, not {type(args).__name__}")


def explain(error: ValidationError) -> str:
    """Each field with its fault, in one line, without pydantic's links."""
    faults = error.errors(include_url=False, include_context=False)
    told = [_fault(fault) for fault in faults[:_FAULTS_TOLD]]
    if len(faults) > _FAULTS_TOLD:
        told.append(f"and {len(faults) - _FAULTS_TOLD} more")
    return "; ".join(told)


def _fault(fault: Mapping[str, Any]) -> str:
    where = ".".join(map(str, fault["loc"]))
    message = f"{where}: {fault['msg']}" if where else str(fault["msg"])
    value = fault.get("input")
    if fault["type"] == "missing" or not isinstance(value, str | int | float | None):
        return message
    return f"{message} (got {_shown(value)})"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # more digits than Python is willing to write in decimal
        return "a very long integer"
    return text if len(text) <= _VALUE_TOLD else f"{text[:_VALUE_TOLD]}..."
