"""What a world would work out again and again, and is the same every time: worked out once.

Only for pure functions of values that never change, so that what is judged stays what the real code says.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import apsw

from agentor import building, definition
from agentor.definition import Definition
from agentor.engine import replay
from agentor.engine.events import Event
from agentor.engine.replay import RunState
from agentor.engine.store import sqlite_runs
from agentor.engine.tools import Tool
from agentor.testing import checker, json_rules

_CLEAN_MAX: Final = 50_000  # messages


def patches() -> list[Any]:
    """To be entered for the time of a world."""
    return [
        mock.patch.object(Event, "from_json", _from_json),
        mock.patch.object(replay, "evolve", _folded_once()),
        mock.patch.object(building, "describe", _describe),
        mock.patch.object(Tool, "to_openai", _to_openai),
        mock.patch.object(checker, "impurities", _impurities),
        mock.patch.object(checker, "_check_message", _check_message),
        mock.patch.object(sqlite_runs, "_problems_of_schema", _problems_of_schema),
        mock.patch.object(typing, "_get_protocol_attrs", _protocol_attributes),
    ]


# A text is one event, and every one of a world is read by several.
_from_json = staticmethod(functools.lru_cache(4096)(Event.from_json))

# All agents have the same tools, and no model of a simulation changes what it is told of their parameters.
_shown_tool = functools.lru_cache(64)(Tool.to_openai)
_definitions: Final[dict[Any, Definition]] = {}


def _to_openai(tool: Tool) -> dict[str, Any]:
    shown = _shown_tool(tool)
    return {**shown, "function": {**shown["function"]}}


def _describe(
    instructions: str | None,
    model: str,
    tools: Mapping[str, Tool],
    output: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    real: Any = definition.describe,
) -> Definition:
    key = instructions, model, tuple(tools.items()), repr(output), repr(settings)
    if key not in _definitions:
        _definitions[key] = real(instructions, model, tools, output, settings)
    return _definitions[key]


# What a file's schema should be is made anew, in a database of its own, each time that a file is compared with it.
_schema_problems: Final[dict[Any, list[str]]] = {}


def _problems_of_schema(
    connection: apsw.Connection, real: Any = sqlite_runs._problems_of_schema
) -> list[str]:
    there = tuple(connection.execute(sqlite_runs._SCHEMA))
    version: Any = connection.execute("SELECT max(version) FROM agentor_schema").get
    if (there, version) not in _schema_problems:
        _schema_problems[there, version] = real(connection)
    return _schema_problems[there, version]


# Python 3.12 does so itself: before, each `isinstance` with a protocol looks for what the protocol asks.
_protocol_attributes = functools.cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]


def _folded_once() -> Callable[[RunState, Event], RunState]:
    """`evolve`, which everybody who loads a run does for all of its events, from the same beginning."""
    real = replay.evolve
    known: dict[tuple[int, int], tuple[RunState, Event, RunState]] = {}  # by identity, so kept

    def evolve(state: RunState, event: Event) -> RunState:
        key = (id(state) if state.seq else 0, id(event))  # every log begins with the same state
        if (entry := known.get(key)) is None:
            entry = known[key] = state, event, real(state, event)
        return entry[2]

    return evolve


# What is right of a message is right wherever it stands; of what is not, the place must be told.
_clean_messages: set[str] = set()


def _is_clean(message: Any) -> bool:
    return repr(message) in _clean_messages


def _impurities(value: Any, path: str = "", real: Any = json_rules.impurities) -> list[str]:
    if isinstance(value, list) and not real([m for m in value if not _is_clean(m)]):
        return []
    found: list[str] = real(value, path)
    return found


def _check_message(
    message: Any, path: str, allow: Collection[str], real: Any = checker._check_message
) -> Iterator[str]:
    text = repr(message)
    if text in _clean_messages and not allow:
        return
    breaches = list(real(message, path, allow))
    if not breaches and not allow and len(_clean_messages) < _CLEAN_MAX:
        _clean_messages.add(text)
    yield from breaches
