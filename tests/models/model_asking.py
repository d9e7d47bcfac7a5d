"""Asking a model the way the tests do: one question, streamed or not, to a server of the test."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from agentor.engine import clock
from agentor.engine.models import ChatCompletionsModel, ModelResponse, StreamChunk
from agentor.testing import FakeServer

HELLO = [{"role": "user", "content": "Hello"}]


class InstantClock(clock.SystemClock):
    """Sleeps take no time and are written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def random(self) -> float:
        return 0.0


def model_for(server: FakeServer, **settings: Any) -> ChatCompletionsModel:
    settings.setdefault("max_retries", 0)
    return ChatCompletionsModel(
        "test-model", api_key="a-key-for-tests", base_url=server.base_url, **settings
    )


async def streamed(
    model: ChatCompletionsModel, messages: Any = HELLO, tools: Any = None, wanted: Any = None
) -> tuple[list[StreamChunk], ModelResponse]:
    """The pieces of a streamed reply and the whole."""
    async with contextlib.aclosing(model.stream(messages, tools, wanted)) as stream:
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].final is not None
    assert all(chunk.final is None for chunk in chunks[:-1])
    return chunks[:-1], chunks[-1].final


async def asked(
    model: ChatCompletionsModel,
    stream: bool,
    messages: Any = HELLO,
    tools: Any = None,
    wanted: Any = None,
) -> ModelResponse:
    """A whole reply, streamed or not, and the connections closed."""
    try:
        if stream:
            return (await streamed(model, messages, tools, wanted))[1]
        return await model.complete(messages, tools, wanted)
    finally:
        await model.aclose()


def ask(model: ChatCompletionsModel, stream: bool = False, *rest: Any) -> ModelResponse:
    return asyncio.run(asked(model, stream, *rest))
