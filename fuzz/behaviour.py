"""What models and tools do in a simulation: answer, fail and hang, by seed.

The model reads its place off the conversation (how many turns the user asked for, how many there have been), so that a
resumed run gets a sensible reply; everything else is drawn. In a calm world nothing fails and every run comes to an end.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, Final

from agentor import DidNotHappen, Happened, Unknown, function_tool
from agentor.engine.events import Usage
from agentor.engine.responses import ModelResponse, ToolCall
from agentor.engine.run_context import RunContext
from agentor.errors import ModelError
from agentor.testing.answers import turn_of

if TYPE_CHECKING:
    from fuzz.worker import Worker

HANG_S: Final = 40.0  # longer than a lease
TOOL_TIMEOUT_S: Final = 45.0


class SeededModel:
    """The model of one simulated process."""

    model = "seeded"

    def __init__(self, worker: Worker, rng: random.Random) -> None:
        self._worker = worker
        self._rng = rng

    async def complete(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> ModelResponse:
        with self._worker.asking(messages) as number:
            await asyncio.sleep(0.01 if self._worker.world.calm else _latency_s(self._rng))
        return self._reply(number, messages, [tool["function"]["name"] for tool in tools or ()])

    def _reply(
        self, number: int, messages: list[dict[str, Any]], offered: list[str]
    ) -> ModelResponse:
        calm, rng = self._worker.world.calm, self._rng
        if not calm and rng.random() < 0.06:
            raise rng.choice((ModelError("overloaded", retryable=True), RuntimeError("no route")))
        usage = Usage(rng.randint(1, 99), number % 7, 1)
        if not offered or turn_of(messages) >= _turns_wanted(messages) or calm:
            text = "" if not calm and rng.random() < 0.1 else f"Answer {number}."
            return ModelResponse(text, usage=usage, finish_reason=self._finish_reason())
        asked = [self._call(offered, number, index) for index in range(rng.randint(1, 3))]
        said = rng.choice((None, f"Step {number}."))
        return ModelResponse(said, asked, usage, finish_reason="tool_calls")

    def _finish_reason(self) -> str:
        return "length" if not self._worker.world.calm and self._rng.random() < 0.04 else "stop"

    def _call(self, offered: list[str], number: int, index: int) -> ToolCall:
        rng = self._rng
        name = rng.choice([*offered, *offered, "no_such_tool"])
        arguments = json.dumps({"number": number * 10 + index})
        if rng.random() < 0.05:
            arguments = rng.choice(("", "not json", '{"number": "x"}'))
        call_id = rng.choice(
            (f"call_{number}_{index}", "call_1", "")
        )  # servers repeat and forget ids
        return ToolCall(call_id, name, arguments)


def _latency_s(rng: random.Random) -> float:
    return HANG_S if rng.random() < 0.02 else rng.expovariate(1.0)


def _turns_wanted(messages: list[dict[str, Any]]) -> int:
    first = next(str(message["content"]) for message in messages if message["role"] == "user")
    return int(first.rsplit(" ", 1)[-1]) if first[-1:].isdigit() else 1


@function_tool
async def look(ctx: RunContext, number: int) -> str:
    """Answers soon."""
    await _work(ctx, mean_s=0.5)
    return f"seen {number}"


@function_tool
async def wander(ctx: RunContext, number: int) -> str:
    """Takes its time, sometimes more than a lease, sometimes for ever."""
    await _work(ctx, mean_s=8.0, hangs=0.05)
    return f"walked {number}"


@function_tool
async def stumble(ctx: RunContext, number: int) -> str:
    """Fails every other time."""
    await _work(ctx, mean_s=0.2, fails=0.5)
    return f"got {number}"


@function_tool(effect="idempotent")
async def save(ctx: RunContext, number: int) -> str:
    """May be started again with the same key."""
    await _work(ctx, mean_s=3.0)
    return f"saved {number}"


@function_tool(effect="once")
async def send(ctx: RunContext, number: int) -> str:
    """Must not be started twice for one call; what is in doubt stays in doubt."""
    await _work(ctx, mean_s=5.0)
    return f"sent {number}"


async def _was_wired(ctx: RunContext) -> Happened | DidNotHappen | Unknown:
    """The other side usually knows."""
    worker: Worker = ctx.context
    if not worker.world.calm and worker.rng.random() < 0.3:
        return Unknown()
    return Happened("wired") if worker.world.evidence.has_started(ctx) else DidNotHappen()


@function_tool(effect="once", reconcile=_was_wired, on_doubt="park")
async def wire(ctx: RunContext, number: int) -> str:
    """Must not be started twice for one call; the other side can be asked, and at last a person."""
    await _work(ctx, mean_s=5.0)
    return f"wired {number}"


@function_tool(needs_approval=True)
async def pay(ctx: RunContext, number: int) -> str:
    """Waits for a person's consent."""
    await _work(ctx, mean_s=1.0)
    return f"paid {number}"


TOOLS: Final = (look, wander, stumble, save, send, wire, pay)
ONCE: Final = frozenset({"send", "wire"})


async def _work(ctx: RunContext, mean_s: float, hangs: float = 0.0, fails: float = 0.0) -> None:
    """Tell the world, then take the time it takes. `hangs` and `fails` are probabilities."""
    worker: Worker = ctx.context
    with worker.using(ctx):
        rng = worker.rng
        if worker.world.calm:
            return
        if rng.random() < hangs:
            await asyncio.sleep(2 * HANG_S)
        await asyncio.sleep(rng.expovariate(1 / mean_s))
        if rng.random() < fails:
            raise RuntimeError("database unavailable")
