"""Reading what callers give: stores, messages, arguments. Bad input is a `ConfigError` that names what is wrong."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from agentor.engine import strict_json
from agentor.engine.budget import Budget, read_budget
from agentor.engine.events import Message
from agentor.engine.request import Transcript
from agentor.engine.store.missing import MissingStore
from agentor.engine.store.own import check_plain
from agentor.engine.store.protocol import Store, check_number
from agentor.engine.tools import Tool
from agentor.errors import AgentorError, ConfigError

_Choice = TypeVar("_Choice")

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_WAIT: Final = "True, False or seconds, 0 or more"
_OPENS: Final[ContextVar[Callable[[str], bool]]] = ContextVar(
    "_OPENS", default=lambda path: True
)  # whether the store at a path may be opened

_FAILED: Final[ContextVar[list[MissingStore] | None]] = ContextVar("_FAILED", default=None)


def no_store_is_made() -> AbstractContextManager[None]:
    """Meanwhile an agent gets a `MissingStore` for a path at which nothing is: who only looks makes nothing."""
    return _opening_only(os.path.lexists)


def no_store_is_opened() -> AbstractContextManager[None]:
    """Meanwhile an agent gets a `MissingStore` for any path: it is going to have another store."""
    return _opening_only(lambda path: False)


@contextlib.contextmanager
def _opening_only(may_open: Callable[[str], bool]) -> Iterator[None]:
    before = _OPENS.set(may_open)
    try:
        yield
    finally:
        _OPENS.reset(before)


@contextlib.contextmanager
def stores_may_fail() -> Iterator[list[MissingStore]]:
    """Meanwhile an agent gets a `MissingStore` for a path whose store cannot be opened. They are noted in the list."""
    failed: list[MissingStore] = []
    before = _FAILED.set(failed)
    try:
        yield failed
    finally:
        _FAILED.reset(before)


def _unopened(path: str, error: AgentorError) -> MissingStore:
    failed = _FAILED.get()
    if failed is None:
        raise error
    failed.append(MissingStore(path, error))
    return failed[-1]


def open_store(store: Store | str | os.PathLike[str] | None) -> Store | None:
    """A store, or the one that a path names: a directory, or a path that ends in a slash, holds one file per run;
    any other path is an SQLite file."""
    if store is None:
        return None
    if isinstance(store, str | os.PathLike):
        from agentor.engine.store import FileStore, SQLiteStore

        missing = MissingStore(os.fspath(store))
        if not _OPENS.get()(missing.path):
            return missing
        try:
            return FileStore(missing.path) if missing.is_directory else SQLiteStore(missing.path)
        except AgentorError as error:
            return _unopened(missing.path, error)
    if isinstance(store, Store):
        check_plain(store)
        return store
    raise ConfigError(
        f"store must be a path or have append, load and list_runs; {type(store).__name__} is neither"
    )


def read_input(input: str | Sequence[Mapping[str, Any]]) -> list[Message]:
    """Chat messages from what a caller gave. `ConfigError` names what cannot be one."""
    if isinstance(input, str):
        if not input.strip():
            raise ConfigError("the input is empty: say something to the agent")
        return [{"role": "user", "content": strict_json.clean_text(input)}]
    if isinstance(input, Mapping) or not isinstance(input, Iterable):
        raise ConfigError(f"the input is text or a list of messages, not {type(input).__name__}")
    messages = [_read_message(message, number) for number, message in enumerate(input)]
    if not messages:
        raise ConfigError("the input is an empty list: add a message")
    sendable = Transcript(messages)
    if not len(sendable) or (len(sendable) == 1 and sendable.has_system):
        raise ConfigError("the input holds nothing that can be sent: add a user message")
    if sendable.last_answer is not None:
        raise ConfigError("the input ends with the assistant's word: add a user message after it")
    return messages


def _read_message(message: Any, number: int) -> Message:
    if hasattr(message, "model_dump"):
        message = message.model_dump(exclude_none=True)
    if not isinstance(message, Mapping):
        raise ConfigError(
            f"message {number} is {type(message).__name__}, not an object with a role"
        )
    if message.get("role") not in ROLES:
        raise ConfigError(
            f"message {number} has the role {message.get('role')!r}; use one of {sorted(ROLES)}"
        )
    try:
        read: Message = strict_json.clean(dict(message))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"message {number} cannot be recorded: {error}") from error
    return read


def checked_budget(budget: Any, models: Iterable[str]) -> Budget | None:
    """The budget, if every model has the price that it needs."""
    read = read_budget(budget)
    for model in models:
        if read is not None:
            read.check(model)
    return read


def check_approvals(tools: Mapping[str, Tool], store: Store | None) -> None:
    for name, tool in tools.items():
        if store is None and tool.needs_approval:
            raise ConfigError(
                f"tool {name!r} needs approval, and without a store nobody could give it later: Agentor(store='runs.db')"
            )


def read_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is text, not {type(value).__name__}")
    return strict_json.clean_text(value)


def read_name(value: Any) -> str:
    name = read_text("name", value)
    if not name.strip():
        raise ConfigError("name is empty: it is how a worker, and a list of runs, know the agent")
    return name


def read_optional_text(name: str, value: Any) -> str | None:
    return None if value is None else read_text(name, value)


def read_seconds(name: str, seconds: float | None) -> float | None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is None or (is_number and seconds > 0):
        return seconds
    raise ConfigError(f"{name} is a number of seconds above 0, not {seconds!r}")


def read_wait(wait: bool | float) -> float:
    """How many seconds at most."""
    if isinstance(wait, bool):
        return math.inf if wait else 0.0
    seconds = check_number("wait", wait, _WAIT)
    if not seconds >= 0:  # nor NaN, which no time ever reaches
        raise ConfigError(f"wait={wait!r}: give {_WAIT}")
    return seconds


def read_count(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")


def read_choice(name: str, value: _Choice, choices: Sequence[object]) -> _Choice:
    if value in choices:
        return value
    *others, last = (repr(choice) for choice in choices if choice is not None)
    raise ConfigError(f"{name} is {', '.join(others)} or {last}, not {value!r}")


def read_arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(args, Mapping):
        raise ConfigError(
            f"arguments are an object with a value for each name, not {type(args).__name__}"
        )
    try:
        read: dict[str, Any] = strict_json.clean(dict(args))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the arguments cannot be recorded: {error}") from error
    return read


def is_batch(input: Any) -> bool:
    return (
        isinstance(input, list | tuple) and bool(input) and all(isinstance(i, str) for i in input)
    )
