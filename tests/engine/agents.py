"""What the engine's tests share: a scripted agent with tools that count, and every kind of store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentor import Agentor, FileStore, MemoryStore, SQLiteStore
from agentor.engine.events import Event
from agentor.testing import ScriptedModel, calls, says

SCRIPT = [
    calls(("get_weather", {"city": "London"})),
    calls(("get_weather", {"city": "Paris"}), ("pay", {"amount": 3}), text="Now both."),
    says("Sunny, and paid for what could be paid."),
]
ANSWER = "Sunny, and paid for what could be paid."


class Tools:
    """Two tools, one of which always fails, that remember what they were asked."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def functions(self) -> list[Callable[..., str]]:
        def get_weather(city: str) -> str:
            """Get the weather."""
            self.ran[f"get_weather {city}"] += 1
            return f"sunny in {city}"

        def pay(amount: int) -> str:
            """Pay."""
            self.ran[f"pay {amount}"] += 1
            raise RuntimeError("database unavailable")

        return [get_weather, pay]


def scripted(script: list[Any] | None = None) -> ScriptedModel:
    """A model that reads its place in the script off the conversation, so that a resume gets the right reply."""
    return ScriptedModel.by_turn(SCRIPT if script is None else script)


def agent(
    store: Any = None, model: Any = None, tools: Tools | None = None, **settings: Any
) -> Agentor:
    return Agentor(
        "Weather Agent",
        "You are kind.",
        model=model or scripted(),
        tools=(tools or Tools()).functions(),
        store=store,
        **settings,
    )


class ThreeMethods:
    """The least a user's own store can be."""

    def __init__(self) -> None:
        self.runs: dict[str, list[str]] = {}

    def append(self, run_id: str, event: Event) -> None:
        self.runs.setdefault(run_id, []).append(event.to_json())

    def load(self, run_id: str) -> list[Event]:
        return [Event.from_json(body) for body in self.runs.get(run_id, [])]

    def list_runs(self) -> list[str]:
        return list(self.runs)


STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda path: MemoryStore(),
    "file": lambda path: FileStore(path / "runs"),
    "sqlite": lambda path: SQLiteStore(path / "runs.db"),
    "three methods": lambda path: ThreeMethods(),
}


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def without_times(event: Event) -> dict[str, Any]:
    """What two runs that went the same way have in common."""
    own = ("started_at", "ended_at", "nonce")
    return {k: v for k, v in event.to_dict().items() if k not in own}
