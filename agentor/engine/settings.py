"""How a model is asked: sampling, limits, timeouts, retries, and what a vendor wants besides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from agentor.engine import strict_json
from agentor.errors import ConfigError

EchoReasoning = Literal["tool_loop", "always", "never"]
InstructionsRole = Literal["system", "developer"]

_OURS: Final = ("model", "messages", "tools", "response_format", "stream", "stream_options", "n")


class ModelSettings:
    """Everything is optional; what is not set is not sent. Unknown keywords go into the request body as they are.

    Times are in seconds. `timeout` is for a whole call with its retries (600), `connect_timeout` for reaching the
    server (10), `read_timeout` for silence on the line, the wait for the first byte included (as `timeout`).
    `max_retries` bounds all retries of a call together (2). `tool_choice` is "auto", "none", "required", the
    name of a tool, or the provider's own object; a forced choice holds until tools have answered, or the loop
    would never end. `echo_reasoning` says which reasoning texts go back to the server that sent them: those of
    the tool loop they belong to, all, or none. `ConfigError` names a value that cannot be.
    """

    def __init__(
        self,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        reasoning_effort: str | None = None,
        verbosity: str | None = None,
        *,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        read_timeout: float | None = None,
        max_retries: int | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        echo_reasoning: EchoReasoning = "tool_loop",
        instructions_role: InstructionsRole | None = None,
        **unknown: Any,
    ) -> None:
        self.temperature = _check("temperature", temperature, _number, "a number of 0 or more")
        self.top_p = _check("top_p", top_p, _share, "a number from 0 to 1")
        self.max_tokens = _check("max_tokens", max_tokens, _positive, "a whole number above 0")
        self.seed = _check("seed", seed, _whole, "a whole number")
        self.stop = _check("stop", stop, _texts, "a string or a list of strings")
        self.tool_choice = _check(
            "tool_choice",
            tool_choice,
            _choice,
            "'auto', 'none', 'required', a tool's name or a dict",
        )
        self.parallel_tool_calls = _check(
            "parallel_tool_calls", parallel_tool_calls, _flag, "True or False"
        )
        self.reasoning_effort = _check("reasoning_effort", reasoning_effort, _text, "a string")
        self.verbosity = _check("verbosity", verbosity, _text, "a string")
        self.timeout = _check("timeout", timeout, _seconds, _SECONDS)
        self.connect_timeout = _check("connect_timeout", connect_timeout, _seconds, _SECONDS)
        self.read_timeout = _check("read_timeout", read_timeout, _seconds, _SECONDS)
        self.max_retries = _check("max_retries", max_retries, _count, "a whole number of 0 or more")
        self.extra_headers = dict(
            _check("extra_headers", extra_headers, _headers, "a dict of header names and texts")
            or {}
        )
        self.extra_body = _json("extra_body", _check("extra_body", extra_body, _object, "a dict"))
        self.echo_reasoning = _check(
            "echo_reasoning", echo_reasoning, _one_of("tool_loop", "always", "never"), _ECHO
        )
        self.instructions_role = _check(
            "instructions_role",
            instructions_role,
            _one_of("system", "developer"),
            "'system' or 'developer'",
        )
        self.unknown = _json("settings", _without_ours(unknown))

    def to_params(self, *, tools: bool = True) -> dict[str, Any]:
        """The body fields of a request. What is about tools is left out where there are none."""
        params = {name: getattr(self, name) for name in _SENT if getattr(self, name) is not None}
        if isinstance(choice := params.get("tool_choice"), str) and choice not in _CHOICES:
            params["tool_choice"] = {"type": "function", "function": {"name": choice}}
        if not tools:
            params.pop("tool_choice", None)
            params.pop("parallel_tool_calls", None)
        return {**params, **self.unknown, **self.extra_body}

    def with_(self, **changes: Any) -> ModelSettings:
        """A copy with some of it changed."""
        return ModelSettings(**{**self._given(), **changes})

    def _given(self) -> dict[str, Any]:
        named = {name: value for name, value in vars(self).items() if name != "unknown"}
        return {
            **{name: value for name, value in named.items() if value not in (None, {})},
            **self.unknown,
        }

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, ModelSettings) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def __repr__(self) -> str:
        """Header values can be secrets: only their names are shown."""
        shown = self._given()
        if self.extra_headers:
            shown["extra_headers"] = dict.fromkeys(self.extra_headers, "...")
        return f"ModelSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_SENT: Final = (
    *("temperature", "top_p", "max_tokens", "seed", "stop", "tool_choice"),
    *("parallel_tool_calls", "reasoning_effort", "verbosity"),
)
_CHOICES: Final = ("auto", "none", "required")
_SECONDS: Final = "a number of seconds above 0"
_ECHO: Final = "'tool_loop', 'always' or 'never'"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _check(name: str, value: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
    if value is None or fits(value):
        return value
    shown = type(value).__name__ if name == "extra_headers" else repr(value)
    raise ConfigError(f"{name} must be {wanted}, not {shown}")


def _number(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(value) and value >= 0


def _share(value: Any) -> bool:
    return _number(value) and value <= 1


def _seconds(value: Any) -> bool:
    return _number(value) and value > 0


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _whole(value) and value > 0


def _count(value: Any) -> bool:
    return _whole(value) and value >= 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _texts(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _choice(value: Any) -> bool:
    return _text(value) or isinstance(value, dict)


def _object(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _headers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and _HEADER_NAME.fullmatch(name)
        and isinstance(text, str)
        and text.isprintable()
        for name, text in value.items()
    )


def _one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: value in choices


def _without_ours(unknown: dict[str, Any]) -> dict[str, Any]:
    for name in _OURS:
        if name in unknown:
            raise ConfigError(f"{name} is not a setting: the agent fills it in")
    return unknown


def _json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in (value or {}).items():
        try:
            fields[key] = strict_json.clean(item)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key} of {name} cannot be sent as JSON: {error}") from None
    return fields
