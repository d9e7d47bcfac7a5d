"""What a callable says of itself: its name, its text, and its parameters with their hints resolved.

A tool may be a function, a bound method, a partial, or an object with `__call__`, each of them wrapped by
decorators. The signature is that of the outermost; name, text and the namespace of the hints come from the
plain function at the bottom.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentor.engine.run_context import RunContext
from agentor.errors import ConfigError

MISSING: Final = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    hint: Any  # Any where the function has none; Annotated is kept
    default: Any = MISSING


def function_of(target: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function behind partials, bound methods, callable objects and `functools.wraps`."""
    while True:
        target = inspect.unwrap(target)
        if isinstance(target, functools.partial):
            target = target.func
        elif inspect.ismethod(target):
            target = target.__func__
        elif inspect.isroutine(target):
            return target
        else:
            target = type(target).__call__


def name_of(target: Callable[..., Any]) -> str:
    """The name of the function, or of the class of a callable object."""
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__name__", None) or type(target).__name__)


def text_of(target: Callable[..., Any]) -> str:
    """The docstring, without its indentation. A callable object may have it on `__call__` or on its class."""
    function = function_of(target)
    text = inspect.getdoc(function) if function.__doc__ else None
    if text is None and _is_callable_object(target):
        text = inspect.cleandoc(type(target).__doc__ or "")
    return text or ""


def _is_callable_object(target: Any) -> bool:
    return not inspect.isroutine(target) and not isinstance(target, functools.partial)


def is_method_of_a_class(target: Any) -> bool:
    """Whether this is a plain function written in a class body, that still waits for its `self`."""
    if not inspect.isfunction(target):
        return False
    outer, _, _ = target.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(target).parameters), None)
    return bool(outer) and not outer.endswith("<locals>") and first in ("self", "cls")


def parameters_of(
    target: Callable[..., Any], tool_name: str, names: Mapping[str, Any]
) -> list[Parameter]:
    """The parameters a caller may fill by keyword. `names`: where to look for hints beside the module.

    `ConfigError` names function and parameter when one cannot be filled by keyword or its hint does not resolve.
    What a partial has bound is not the model's to choose, so it is left out.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"tool {tool_name!r} has no readable signature: {error}") from error
    bound = target.keywords if isinstance(target, functools.partial) else {}
    function = function_of(target)
    return [
        Parameter(p.name, _hint_of(p, function, tool_name, names), p.default)
        for p in signature.parameters.values()
        if _fillable(p, tool_name) and p.name not in bound
    ]


def _fillable(parameter: inspect.Parameter, tool_name: str) -> bool:
    match parameter.kind:
        case inspect.Parameter.POSITIONAL_ONLY:
            fault = "is positional-only; models name their arguments: remove the '/'"
        case inspect.Parameter.VAR_POSITIONAL:
            fault = "takes any number of values; use a parameter with a list type"
        case inspect.Parameter.VAR_KEYWORD:
            fault = "takes any names; use a parameter with a dict type or a BaseModel"
        case _:
            return True
    raise ConfigError(f"tool {tool_name!r}: parameter '{parameter}' {fault}")


def _hint_of(
    parameter: inspect.Parameter,
    function: Callable[..., Any],
    tool_name: str,
    names: Mapping[str, Any],
) -> Any:
    """One hint at a time, so that the error can name it and a bad return hint does no harm."""
    if parameter.annotation is MISSING:
        return Any
    holder = types.SimpleNamespace(__annotations__={"hint": parameter.annotation})
    known = {**names, **getattr(function, "__globals__", {})}
    try:
        resolved = typing.get_type_hints(holder, known, include_extras=True)
    except (
        Exception
    ) as error:  # evaluating a hint runs the author's text: anything can come out of it
        raise ConfigError(
            f"tool {tool_name!r}: the hint of parameter {parameter.name!r} does not resolve "
            f"({parameter.annotation!r}: {error}); is it imported, and not only under TYPE_CHECKING?"
        ) from error
    return resolved["hint"]


def split_context(
    parameters: list[Parameter], tool_name: str
) -> tuple[list[Parameter], Parameter | None]:
    """The parameters for the model, and the one for the `RunContext`, if there is one."""
    contexts = [p for p in parameters if is_context(p.hint)]
    if len(contexts) > 1:
        names = " and ".join(repr(p.name) for p in contexts)
        raise ConfigError(
            f"tool {tool_name!r}: only one parameter can be the RunContext, not {names}"
        )
    others = [p for p in parameters if p not in contexts]
    for p in others:
        if any(is_context(part) for part in _parts(p.hint)):
            raise ConfigError(
                f"tool {tool_name!r}: parameter {p.name!r} mixes RunContext with other types; "
                "annotate it as plain RunContext"
            )
    return others, contexts[0] if contexts else None


def is_context(hint: Any) -> bool:
    """RunContext, a subclass, `RunContext[...]`, any of them Optional or Annotated."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return is_context(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        members = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return len(members) == 1 and is_context(members[0])
    cls = origin or hint
    return isinstance(cls, type) and issubclass(cls, RunContext)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for arg in typing.get_args(hint):
        yield from _parts(arg)
