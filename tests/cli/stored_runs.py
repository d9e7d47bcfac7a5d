"""A user's app, and runs to put into a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from agentor.engine.events import Event
from agentor.engine.store import FileStore, SQLiteStore
from agentor.engine.store.protocol import Store

APP = """
from dataclasses import dataclass

from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls, says


@function_tool
def get_weather(city: str) -> str:
    with open("calls.txt", "a") as calls:
        calls.write(city)
    return f"sunny in {city}"


model = ScriptedModel.by_turn([calls(("get_weather", {"city": "London"})), "It is sunny.", "Arr!"])
agent = Agentor("Weather Agent", instructions="Be brief.", model=model, tools=[get_weather])


def down(messages):
    raise ConnectionError("the provider is \\x1b[31mdown")


unlucky = Agentor("Weather Agent", model=ScriptedModel(down))
hasty = Agentor("Weather Agent", model=model, tools=[get_weather], max_turns=1)


@dataclass
class Weather:
    sky: str
    degrees: int


typed = Agentor(
    "Typed", model=ScriptedModel.by_turn(["", '{"sky": "blue", "degrees": 22}']), output_type=Weather
)
at_home = Agentor("Weather Agent", model=model, tools=[get_weather], store="home/")
"""

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
}
USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
BODIES: list[dict[str, Any]] = [
    {
        "type": "run_start",
        "agent": "Weather Agent",
        "model": "gpt-4o-mini",
        "messages": [{"role": "user", "content": "How is Rome?"}],
        "started_at": 1_780_000_000.0,
    },
    {"type": "generation", "turn": 1, "calls": [CALL], "usage": USAGE, "finish_reason": "tool_calls"},
    {"type": "tool_call", "name": "get_weather", "args": {"city": "Rome"}, "call_id": "c1", "turn": 1},
    {"type": "tool_result", "name": "get_weather", "call_id": "c1", "result": "sunny in Rome"},
    {"type": "generation", "turn": 2, "text": "Sunny.", "usage": USAGE, "finish_reason": "stop"},
    {"type": "message", "text": "Sunny."},
    {"type": "run_end", "status": "completed", "text": "Sunny.", "ended_at": 1_780_000_002.5},
]  # fmt: skip


Program = Callable[..., Result]


def write(store_path: str, run_id: str, bodies: list[dict[str, Any]]) -> None:
    store: Store = FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path)
    for body in bodies:
        store.append(run_id, Event.from_dict(body))
    store.close()  # type: ignore[attr-defined]


def read_json(result: Result) -> Any:
    return json.loads(result.stdout)
