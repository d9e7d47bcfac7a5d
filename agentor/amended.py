"""Other arguments that a person gives a call that waits. They replace all that the model gave, so a slip in one is told
before anything is recorded: a misspelt name would leave the tool with its default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentor.definition import definition_in
from agentor.engine.events import Event
from agentor.engine.schema_faults import faults, unknown_names
from agentor.engine.tools import InvalidArgumentsError, Tool
from agentor.errors import ConfigError


def check_by_tool(tool: Tool, args: dict[str, Any]) -> None:
    """`ConfigError` if the tool would not take these, or would leave something out of them."""
    try:
        tool.validated(args)
    except InvalidArgumentsError as error:
        raise _unfit(tool.name, str(error)) from None
    if unknown := unknown_names(args, tool.parameters):
        raise _unfit(tool.name, "; ".join(unknown))


def check_by_log(events: Sequence[Event], tool_name: str, args: dict[str, Any]) -> None:
    """The same without the agent: by the schema that the run's last segment had. An old log that has none says nothing."""
    _, defined = definition_in(events)
    told = (defined or {}).get("tools", {}).get(tool_name, {}).get("parameters")
    if isinstance(told, dict) and (wrong := faults(args, told)):
        raise _unfit(tool_name, "; ".join(wrong))


def _unfit(tool_name: str, why: str) -> ConfigError:
    return ConfigError(
        f"the arguments do not fit the tool {tool_name!r}: {why}. They replace all that the model gave"
    )
