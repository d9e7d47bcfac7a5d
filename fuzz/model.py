"""What the model does in a simulation: answer, fail and hang, by seed.

It reads its place off the conversation (how many turns the user asked for, how many there have been), so that a
resumed run gets a sensible reply; everything else is drawn. In a calm world nothing fails and every run comes to an end.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from agentor.engine.events import Usage
from agentor.engine.responses import ModelResponse, StreamChunk, ToolCall
from agentor.errors import ModelError
from agentor.testing.answers import turn_of
from fuzz.tools import HANG_S

if TYPE_CHECKING:
    from fuzz.worker import Worker


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

    async def stream(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> AsyncIterator[StreamChunk]:
        """The same in pieces; the line may break between them."""
        reply = await self.complete(messages, tools, response_format)
        for piece in (reply.content or "").partition(" "):
            yield StreamChunk(delta=piece)
            if not self._worker.world.calm:
                await asyncio.sleep(self._rng.expovariate(5.0))
                if self._rng.random() < 0.03:
                    raise ModelError("the line broke", retryable=True)
        yield StreamChunk(final=reply)

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
        invented = (
            [] if self._worker.world.files is not None else ["no_such_tool"]
        )  # see testing.md
        name = rng.choice([*offered, *offered, *invented])
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
