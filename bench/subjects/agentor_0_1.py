"""agentor 0.1.1 from the package registry, with its FileStore: one JSONL file per run, fsync per event."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

from agentor import Agentor, function_tool
from agentor.engine.events import Usage
from agentor.engine.models import ModelResponse, ToolCall
from agentor.engine.store import FileStore, fork_run, replay_messages
from bench import script
from bench.slow_fsync import slow_fsync


class Model:
    """Counts when there is only one run, and reads its place off the conversation when runs share it."""

    model = "scripted"

    def __init__(self, turns: int, counts: bool) -> None:
        self._turns = turns
        self._asked = 0
        self._counts = counts

    async def complete(
        self, messages: list[Any], tools: Any = None, response_format: Any = None
    ) -> ModelResponse:
        turn = self._asked if self._counts else _turn_of(messages)
        self._asked += 1
        if turn >= self._turns:
            return ModelResponse(content=script.ANSWER, usage=Usage(*script.USAGE))
        call = ToolCall(id=script.call_id(turn), name=script.TOOL, arguments=script.ARGUMENTS)
        return ModelResponse(tool_calls=[call], usage=Usage(*script.USAGE))


def _turn_of(messages: list[Any]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


@function_tool
async def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return script.weather(city)


def _agent(store: Any, turns: int, counts: bool = True) -> Agentor:
    return Agentor(
        name="bench",
        instructions=script.INSTRUCTIONS,
        model=Model(turns, counts),
        tools=[get_weather],
        max_turns=turns + 1,
        store=store,
    )


def _check(result: Any) -> None:
    if str(result.final_output) != script.ANSWER:
        raise RuntimeError(f"the run went wrong: {result!r}")


def run(folder: Path, log: Path | None, *, turns: int, sync_ms: float = 0) -> dict[str, Any]:
    slow_fsync(sync_ms)
    store = FileStore(folder / "runs")
    agent = _agent(store, turns)
    begin = time.perf_counter()
    result = asyncio.run(agent.arun(script.QUESTION))
    seconds = time.perf_counter() - begin
    _check(result)
    return script.figures(seconds=seconds, bytes=script.size_of(folder), events=len(result.events))


def concurrent(
    folder: Path, log: Path | None, *, runs: int, turns: int, sync_ms: float = 0
) -> dict[str, Any]:
    slow_fsync(sync_ms)
    store = FileStore(folder / "runs")
    agent = _agent(store, turns, counts=False)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(agent.arun(script.QUESTION) for _ in range(runs)))

    begin = time.perf_counter()
    results = asyncio.run(all_of_them())
    seconds = time.perf_counter() - begin
    for result in results:
        _check(result)
    events = sum(len(result.events) for result in results)
    return script.figures(seconds=seconds, events=events, events_per_s=events / seconds)


def load(folder: Path, log: Path) -> dict[str, Any]:
    store = FileStore(log / "runs")
    (run_id,) = store.list_runs()
    gc.collect()
    begin = time.perf_counter()
    events = store.load(run_id)
    messages = replay_messages(events)
    seconds = time.perf_counter() - begin
    return script.figures(load_replay_s=seconds, messages=len(messages))


def fork(folder: Path, log: Path) -> dict[str, Any]:
    script.copy_log(log, folder)
    store = FileStore(folder / "runs")
    (run_id,) = store.list_runs()
    before = script.size_of(folder)
    begin = time.perf_counter()
    fork_run(store, run_id, "fork-0")
    seconds = time.perf_counter() - begin
    return script.figures(seconds=seconds, bytes_per_fork=script.size_of(folder) - before)


KINDS = {"run": run, "concurrent": concurrent, "load": load, "fork": fork}
