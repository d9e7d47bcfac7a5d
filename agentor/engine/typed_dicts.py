"""`typing.TypedDict` for pydantic, which before Python 3.12 reads only that of typing_extensions.

The older class forgets which keys are required when hints are text, so pydantic refuses it. Its values are plain
dicts either way: a twin class serves as well, with the keys resolved here.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

import typing_extensions  # pydantic itself needs it


def readable(hint: Any, _open: tuple[Any, ...] = ()) -> Any:
    """The hint with every TypedDict in it replaced by its twin. Inside the fields of a class they stay."""
    if sys.version_info >= (3, 12):
        return hint
    if typing.is_typeddict(hint) and hint not in _open:
        return _twin(hint, (*_open, hint))
    args = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not args or origin in (Literal, Callable):
        return hint
    if origin is typing.Annotated:
        return typing.Annotated[(readable(args[0], _open), *hint.__metadata__)]
    mended = tuple(readable(arg, _open) for arg in args)
    if mended == args:
        return hint
    if origin in (typing.Union, types.UnionType):
        return typing.Union[mended]  # noqa: UP007  (the members are known at run time only)
    return hint.copy_with(mended) if hasattr(hint, "copy_with") else origin[mended]


def _twin(typed_dict: Any, is_open: tuple[Any, ...]) -> Any:
    fields = {}
    for name, hint in typing.get_type_hints(typed_dict, include_extras=True).items():
        hint = readable(hint, is_open)
        if typing.get_origin(hint) not in (typing.Required, typing.NotRequired):
            required = name in typed_dict.__required_keys__
            hint = typing.Required[hint] if required else typing.NotRequired[hint]
        fields[name] = hint
    twin: Any = typing_extensions.TypedDict(typed_dict.__name__, fields)  # type: ignore[misc]
    twin.__doc__, twin.__module__ = typed_dict.__doc__, typed_dict.__module__
    return twin
