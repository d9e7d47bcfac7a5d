"""The openai-agents package with its SQLiteSession, which keeps the conversation's items turn by turn."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from bench import script

_USAGE = dict(zip(("input_tokens", "output_tokens", "total_tokens"), script.USAGE, strict=True))


class Scripted(Model):
    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._asked = 0

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        turn, self._asked = self._asked, self._asked + 1
        usage = Usage(requests=1, **_USAGE)
        said = _call(turn) if turn < self._turns else _answer()
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the bench does not stream")


def _call(turn: int) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call",
        call_id=script.call_id(turn),
        name=script.TOOL,
        arguments=script.ARGUMENTS,
    )


def _answer() -> ResponseOutputMessage:
    text = ResponseOutputText(type="output_text", text=script.ANSWER, annotations=[])
    return ResponseOutputMessage(
        id="answer", type="message", role="assistant", status="completed", content=[text]
    )


@function_tool
async def get_weather(city: str) -> str:
    """The weather in a city."""
    return script.weather(city)


def run(folder: Path, log: Path | None, *, turns: int) -> dict[str, Any]:
    set_tracing_disabled(True)
    session = SQLiteSession(script.RUN_ID, folder / "session.db")
    agent = Agent(
        "bench", instructions=script.INSTRUCTIONS, model=Scripted(turns), tools=[get_weather]
    )
    running = Runner.run(
        agent,
        script.QUESTION,
        session=session,
        max_turns=turns + 1,
        run_config=RunConfig(tracing_disabled=True),
    )
    begin = time.perf_counter()
    result = asyncio.run(running)
    seconds = time.perf_counter() - begin
    session.close()
    if result.final_output != script.ANSWER:
        raise RuntimeError("the run went wrong")
    return script.figures(seconds=seconds, bytes=script.size_of(folder))


def load(folder: Path, log: Path) -> dict[str, Any]:
    """The items of the conversation; there is no run to replay."""
    session = SQLiteSession(script.RUN_ID, log / "session.db")
    gc.collect()
    begin = time.perf_counter()
    items = asyncio.run(session.get_items())
    seconds = time.perf_counter() - begin
    session.close()
    return script.figures(load_replay_s=seconds, messages=len(items))


KINDS = {"run": run, "load": load}
