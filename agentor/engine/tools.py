"""Tools: functions that a model may call.

A function's signature, hints and docstring say all that a model needs to know; `function_tool` turns them into a
`Tool`, and `perform` calls one without ever being harmed by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import itertools
import logging
import re
import sys
import types
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, overload

from agentor.engine import strict_json
from agentor.engine.argument_faults import InvalidArgumentsError, check_object
from agentor.engine.daemon_thread import in_thread
from agentor.engine.docstrings import read_docstring
from agentor.engine.effects import Effect, OnDoubt, check_effect, check_transactional
from agentor.engine.result_text import RESULT_LIMIT, error_text, result_text
from agentor.engine.run_context import RunContext
from agentor.engine.tool_perform import (
    ON_THREAD,
    CancelledWithOutcomeError,
    ToolOutcome,
    perform,
)
from agentor.engine.tool_schema import ToolSchema
from agentor.engine.tool_signature import (
    is_method_of_a_class,
    name_of,
    parameters_of,
    split_context,
    text_of,
)
from agentor.errors import ConfigError

_logger = logging.getLogger("agentor")

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, eq=False)
class Tool:
    """Something a model may call. Made by `function_tool`, or by hand from a JSON Schema and a callable.

    `invoke(**args)` may be sync (it runs in a thread) or async. `parameters` is a JSON Schema whose root is an
    object. `context_param` names the keyword under which `invoke` wants the `RunContext`.
    `ConfigError` if one of them cannot be.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    invoke: Callable[..., Any]
    context_param: str | None = None
    _: dataclasses.KW_ONLY
    timeout_s: float | None = None  # after which a call counts as failed
    strict: bool = False  # ask the provider to keep to the schema to the letter
    max_result_chars: int = RESULT_LIMIT
    effect: Effect | None = None  # what a second start would do; see agentor.engine.effects
    reconcile: Callable[[RunContext], Any] | None = None  # what became of a call in doubt
    on_doubt: OnDoubt = (
        "tell"  # the model that the outcome is unknown, or park the run for a person
    )
    needs_approval: bool | Callable[[RunContext, dict[str, Any]], bool] = False
    validate: Callable[[Any], dict[str, Any]] | None = field(default=None, repr=False)
    unbound: bool = field(default=False, repr=False)  # a method that still waits for its `self`

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not callable(self.invoke):
            raise ConfigError(f"tool {self.name!r}: invoke must be callable, not {self.invoke!r}")
        if not isinstance(self.parameters, dict) or self.parameters.get("type") != "object":
            raise ConfigError(
                f"tool {self.name!r}: parameters must be a JSON Schema with type 'object' at its root"
            )
        check_effect(self.name, self.effect, self.reconcile, self.on_doubt, self.needs_approval)
        if self.effect == "transactional":
            check_transactional(self.name, self.invoke, self.context_param)
        if self.timeout_s is not None:
            _check_positive(self.name, "timeout_s", self.timeout_s)
        _check_positive(self.name, "max_result_chars", self.max_result_chars, int)

    def asks_approval(self, context: RunContext, args: dict[str, Any]) -> bool:
        """Whether a person must consent to this call.

        A predicate is given the arguments as the tool would get them, defaults included. Arguments that do not fit need
        no consent: the tool will not run. A predicate that fails asks: consent is the safe side.
        """
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            given = self.validated(args)
        except InvalidArgumentsError:
            return False
        try:
            return bool(self.needs_approval(context, given))
        except BaseException:  # also its exits and interrupts are its own
            _logger.exception("tool %s: needs_approval failed; a person is asked", self.name)
            return True

    def to_openai(self) -> dict[str, Any]:
        """The tool in the form of a chat-completions request."""
        function: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": copy.deepcopy(self.parameters),  # it leaves our hands
        }
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}

    async def call(self, args: Any, context: Any = None) -> str:
        """Validate the arguments, run the tool and put its result into words.

        Raises `InvalidArgumentsError` for arguments that do not fit, and whatever the tool raises. `context` that
        is no `RunContext` is wrapped in one.
        """
        keywords = self.validated(args)
        if self.context_param is not None:
            keywords[self.context_param] = _as_context(context)
        if self._is_async:
            value = await self.invoke(**keywords)
        else:
            value = await self._call_in_thread(keywords)
        if type(value) is str:  # most of them, and nothing to wait for or to collect
            return result_text(value, self.max_result_chars)
        if inspect.isawaitable(value):  # of a function that is not async itself
            value = await value
        if isinstance(value, AsyncGenerator):
            value = await _collect_async(value)
        return value.text if isinstance(value, _Told) else self._tell(value)

    @cached_property
    def _is_async(self) -> bool:
        return _is_async(self.invoke)

    async def _call_in_thread(self, keywords: dict[str, Any]) -> Any:
        told: list[_Told] = []
        on_thread = ON_THREAD.get()
        try:
            return await in_thread(
                lambda: self._answer(keywords, told), f"tool-{self.name}", on_thread
            )
        except asyncio.CancelledError:
            # The thread has ended, and the loop was about to hear of it. `perform` sees to the cancellation.
            if told and on_thread is not None:
                return told[0]
            raise

    def _answer(self, keywords: dict[str, Any], told: list[_Told]) -> Any:
        """On the tool's thread: its result in words, also put into `told`, or what the loop has to await first."""
        value = self.invoke(**keywords)
        if inspect.isawaitable(value) or isinstance(value, AsyncGenerator):
            return value
        told.append(_Told(self._tell(value)))
        return told[0]

    def _tell(self, value: Any) -> str:
        if isinstance(value, _LAZY):
            value = _collect(value)
        return result_text(value, self.max_result_chars)

    def validated(self, args: Any) -> dict[str, Any]:
        """The keyword arguments for `invoke`. `InvalidArgumentsError` names what does not fit."""
        if self.validate is not None:
            return self.validate(args)
        given = dict(check_object(args))
        missing = [name for name in self.parameters.get("required", ()) if name not in given]
        if missing:
            raise InvalidArgumentsError("; ".join(f"{name}: Field required" for name in missing))
        return given

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were no tool."""
        return self.invoke(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """`@function_tool` on a method: `obj.method` is the tool with `self` filled in."""
        if instance is None or not self.unbound:
            return self
        bound = types.MethodType(self.invoke, instance)
        return dataclasses.replace(self, invoke=bound, unbound=False)


@dataclass(frozen=True, slots=True)
class _Told:
    text: str


_LAZY: Final = (Generator, map, filter, zip)
_ITEMS_LIMIT: Final = 100_000  # of a generator, which may never end
_STOPPED: Final = f"<stopped after {_ITEMS_LIMIT} items>"


def _collect(items: Iterable[Any]) -> list[Any]:
    """All that a generator yields. What it raises on the way is the tool's failure."""
    found = list(itertools.islice(items, _ITEMS_LIMIT + 1))
    return found if len(found) <= _ITEMS_LIMIT else [*found[:_ITEMS_LIMIT], _STOPPED]


async def _collect_async(items: AsyncGenerator[Any, Any]) -> list[Any]:
    found: list[Any] = []
    async with contextlib.aclosing(items):
        async for item in items:
            if len(found) == _ITEMS_LIMIT:
                found.append(_STOPPED)
                break
            found.append(item)
    return found


def _is_async(function: Callable[..., Any]) -> bool:
    """Also for an object whose `__call__` is async. A function that is not, but returns an awaitable, may block."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def _as_context(context: Any) -> RunContext:
    return context if isinstance(context, RunContext) else RunContext(context)


@overload
def function_tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def function_tool(
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    timeout_s: float | None = None,
    strict: bool = False,
    max_result_chars: int = RESULT_LIMIT,
    effect: Effect | None = None,
    reconcile: Callable[[RunContext], Any] | None = None,
    on_doubt: OnDoubt = "tell",
    needs_approval: bool | Callable[[RunContext, dict[str, Any]], bool] = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


@overload
def function_tool(
    function: Callable[..., Any],
    /,
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    timeout_s: float | None = None,
    strict: bool = False,
    max_result_chars: int = RESULT_LIMIT,
    effect: Effect | None = None,
    reconcile: Callable[[RunContext], Any] | None = None,
    on_doubt: OnDoubt = "tell",
    needs_approval: bool | Callable[[RunContext, dict[str, Any]], bool] = False,
) -> Tool: ...


def function_tool(function: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function, a bound method, a partial or a callable object.

    Bare (`@function_tool`), with options (`@function_tool(timeout_s=5)`) or as a call.

    Args:
        name_override: The name the model sees, instead of the function's.
        description_override: The text the model sees, instead of the docstring's.
        timeout_s: Seconds after which a call counts as failed.
        strict: Have the provider keep to the schema to the letter (OpenAI's strict mode).
        max_result_chars: Where a longer result is cut.
        effect: What a second start of one call would do: "read" (harmless, the default), "idempotent" (safe with
            the same `ctx.idempotency_key`), "transactional" (sync, and writes only through `ctx.db`: what it writes and
            its result are one commit, or neither), or "once" (must not be).
        reconcile: For "once": a function of the `RunContext` (`ctx.args`, `ctx.idempotency_key`) that finds out what
            became of a call in doubt: `Happened(result)`, `DidNotHappen()` or `Unknown()`.
        on_doubt: For "once", when nobody knows: "tell" the model so, or "park" the run until a person decides.
        needs_approval: True, or a function of (ctx, args): a person must consent before the call starts.

    Raises:
        ConfigError: The function cannot be a tool; the text names function and parameter.
    """
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise ConfigError(
            f"function_tool() has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}"
        )
    names = sys._getframe(1).f_locals  # hints may name classes of the function we are called in
    if function is None:
        return lambda decorated: _make(decorated, names, **options)
    return _make(function, names, **options)


_OPTIONS: Final = (
    "name_override",
    "description_override",
    "timeout_s",
    "strict",
    "max_result_chars",
    "effect",
    "reconcile",
    "on_doubt",
    "needs_approval",
)


def _make(
    target: Any,
    names: Mapping[str, Any],
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    strict: bool = False,
    **limits: Any,
) -> Tool:
    _check_target(target)
    name = _check_name(name_of(target) if name_override is None else name_override)
    parameters = parameters_of(target, name, names)
    unbound = is_method_of_a_class(target)
    if unbound:
        parameters = parameters[1:]
    shown, context = split_context(parameters, name)
    text = read_docstring(text_of(target), {p.name for p in shown})
    schema = ToolSchema(name, shown, text.parameters, strict)
    return Tool(
        name,
        strict_json.clean_text(
            text.summary if description_override is None else description_override
        ),
        schema.json,
        target,
        None if context is None else context.name,
        strict=strict,
        validate=schema.validate,
        unbound=unbound,
        **limits,
    )


def _check_target(target: Any) -> None:
    if isinstance(target, Tool):
        raise ConfigError(
            f"{target.name!r} is a tool already; to declare more of it: dataclasses.replace(tool, effect=...)"
        )
    if isinstance(target, type):
        raise ConfigError(f"{target.__name__} is a class; a tool is a function or a bound method")
    if not callable(target):
        raise ConfigError(f"a tool is made of something that can be called, not of {target!r}")


def _check_name(name: Any) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"bad tool name {name!r}: use 1 to 64 of a-z, A-Z, 0-9, '_' and '-'; "
        "function_tool(name_override=...) names a function that has no such name"
    )


def _check_positive(tool_name: str, what: str, value: Any, kind: Any = int | float) -> None:
    if isinstance(value, kind) and not isinstance(value, bool) and value > 0:
        return
    number = "whole number" if kind is int else "number"
    raise ConfigError(f"tool {tool_name!r}: {what} must be a positive {number}, not {value!r}")


def as_tool(thing: Any) -> Tool:
    """A `Tool` as it is, anything callable through `function_tool`; else `ConfigError`."""
    tool = thing if isinstance(thing, Tool) else _make(thing, {})
    if tool.unbound:
        raise ConfigError(
            f"tool {tool.name!r} is a method of a class; pass the method of an object (obj.{tool.name})"
        )
    return tool


def check_tools(things: Iterable[Any]) -> dict[str, Tool]:
    """The tools by name, in the order given; `ConfigError` if two share a name."""
    tools: dict[str, Tool] = {}
    for tool in map(as_tool, things):
        if tool.name in tools:
            raise ConfigError(
                f"two tools are called {tool.name!r}; rename one with function_tool(name_override=...)"
            )
        tools[tool.name] = tool
    return tools


__all__ = [
    "CancelledWithOutcomeError",
    "InvalidArgumentsError",
    "RunContext",
    "Tool",
    "ToolOutcome",
    "as_tool",
    "check_tools",
    "error_text",
    "function_tool",
    "perform",
    "result_text",
]
