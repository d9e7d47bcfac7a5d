"""Agents against a fake server that somebody else wrote: not everything is judged by our own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from agentor import Agentor, ModelSettings, function_tool
from agentor.engine.models import ChatCompletionsModel, is_unavailable

pytest.importorskip("fakellm")

RULES = """
version: 1
rules:
  - name: weather
    when: {turn: 1, messages_contain: "weather"}
    respond:
      tool_calls:
        - {name: get_weather, arguments: {city: "São Paulo"}}
        - {name: get_weather, arguments: {city: "London"}}
  - name: weather told
    when: {tool_result_contains: "sunny in London"}
    respond: {content: "Sunny in both."}
  - name: busy
    when: {header.x-scenario: busy}
    respond: {status: 429, error: "slow down"}
"""


@pytest.fixture
def base_url(tmp_path: Path) -> Iterator[str]:
    """A fresh fakellm in a process of its own."""
    rules = tmp_path / "fakellm.yaml"
    rules.write_text(RULES, encoding="utf-8")
    serve = ["-m", "uvicorn", "fakellm.server:app", "--port", "0", "--no-access-log"]
    process = subprocess.Popen(
        [sys.executable, *serve],
        env={**os.environ, "FAKELLM_CONFIG": str(rules)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        told = ""
        while (found := re.search(r"http://127\.0\.0\.1:\d+", told)) is None:
            line = process.stderr.readline()
            assert line, f"fakellm did not start: {told}"
            told += line
        yield f"{found[0]}/v1"
        process.terminate()


@pytest.mark.slow
def test_an_agent_uses_its_tool_and_answers(base_url: str) -> None:
    asked: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"sunny in {city}"

    agent = Agentor("weather", model="m", tools=[get_weather], base_url=base_url)
    result = agent.run("How is the weather?")
    assert result.final_output == "Sunny in both."
    assert sorted(asked) == ["London", "São Paulo"]
    assert result.usage.total_tokens > 0


@pytest.mark.slow
def test_a_stream_gives_the_same_calls(base_url: str) -> None:
    async def main() -> None:
        model = ChatCompletionsModel("m", base_url=base_url)
        messages = [{"role": "user", "content": "How is the weather?"}]
        chunks = [chunk async for chunk in model.stream(messages)]
        await model.aclose()
        final = chunks[-1].final
        assert final is not None
        assert final.finish_reason == "tool_calls"
        assert [call.arguments for call in final.tool_calls] == [
            '{"city": "S\\u00e3o Paulo"}',
            '{"city": "London"}',
        ]

    asyncio.run(main())


@pytest.mark.slow
def test_a_busy_server_is_told_as_unavailable(base_url: str) -> None:
    settings = ModelSettings(max_retries=0, extra_headers={"X-Scenario": "busy"})
    agent = Agentor("busy", model="m", base_url=base_url, model_settings=settings)
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        agent.run("Hello")
    assert is_unavailable(caught.value)
