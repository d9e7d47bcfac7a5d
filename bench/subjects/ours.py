"""agentor, from this checkout."""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentor import Agentor, FileStore, MemoryStore, SQLiteStore, Usage, function_tool
from agentor.engine.events import Event
from agentor.engine.models import ModelResponse, ToolCall
from agentor.engine.replay import replay
from agentor.engine.store import fork_run
from bench import script
from bench.slow_disk import slow_vfs


class Model:
    """Reads its place off the conversation when runs share it, and counts when there is only one run."""

    model = "scripted"

    def __init__(self, turns: int, counts: bool = True) -> None:
        self._turns = turns
        self._asked = 0
        self._counts = counts
        self.times: list[float] = []

    async def complete(
        self, messages: list[Any], tools: Any = None, response_format: Any = None
    ) -> ModelResponse:
        self.times.append(time.perf_counter())
        turn = self._asked if self._counts else _turn_of(messages)
        self._asked += 1
        if turn >= self._turns:
            return ModelResponse(content=script.ANSWER, usage=Usage(*script.USAGE))
        call = ToolCall(script.call_id(turn), script.TOOL, script.ARGUMENTS)
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
        "bench",
        instructions=script.INSTRUCTIONS,
        model=Model(turns, counts),
        tools=[get_weather],
        max_turns=turns + 1,
        store=store,
    )


def _store(kind: str, folder: Path, vfs: str | None = None) -> Any:
    match kind:
        case "sqlite":
            return SQLiteStore(folder / "runs.db", vfs=vfs)
        case "file":
            return FileStore(folder / "runs")
    return MemoryStore()


def _commits(store: Any) -> int | None:
    writer = getattr(store, "_writer", None)  # a figure for the bench alone
    return getattr(writer, "commits", None)


def run(
    folder: Path, log: Path | None, *, turns: int, store: str = "sqlite", sync_ms: float = 0
) -> dict[str, Any]:
    """One durable run from its first event to its last."""
    disk, vfs = slow_vfs(sync_ms)
    opened = _store(store, folder, vfs)
    agent = _agent(opened, turns)
    before = _commits(opened)
    begin = time.perf_counter()
    result = asyncio.run(agent.arun(script.QUESTION, run_id=script.RUN_ID))
    seconds = time.perf_counter() - begin
    _check(result, turns)
    commits = None if before is None else (_commits(opened) or 0) - before
    memory = script.figures()  # before anything that only the bench does
    extra = (
        _replayed(opened) | _resumed(opened, len(result.events), turns) if store == "memory" else {}
    )
    opened.close()
    del disk
    json_bytes = sum(len(event.to_json().encode()) for event in result.events)
    return {
        **memory,
        **extra,
        "seconds": seconds,
        "events": len(result.events),
        "commits": commits,
        "bytes": script.size_of(folder),
        "json_bytes": json_bytes,
    }


def _check(result: Any, turns: int) -> None:
    if result.status != "completed" or len(result.tool_calls) != turns or result.unsaved:
        raise RuntimeError(f"the run went wrong: {result!r}, {result.unsaved} unsaved")


def concurrent(
    folder: Path, log: Path | None, *, runs: int, turns: int, sync_ms: float = 0
) -> dict[str, Any]:
    """Many runs at once on one store."""
    disk, vfs = slow_vfs(sync_ms)
    store = SQLiteStore(folder / "runs.db", vfs=vfs)
    agent = _agent(store, turns, counts=False)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(agent.arun(script.QUESTION) for _ in range(runs)))

    before = _commits(store) or 0
    begin = time.perf_counter()
    results = asyncio.run(all_of_them())
    seconds = time.perf_counter() - begin
    commits = (_commits(store) or 0) - before
    for result in results:
        _check(result, turns)
    events = store.counts()["events"]
    store.close()
    del disk
    return script.figures(
        seconds=seconds,
        events=events,
        events_per_s=events / seconds,
        events_per_commit=events / commits,
    )


def load(folder: Path, log: Path, *, store: str = "sqlite") -> dict[str, Any]:
    """The first load and replay of a run in a new process; the store is open."""
    opened = _store(store, log)
    opened.list_runs()
    gc.collect()
    measured = _replayed(opened)
    opened.close()
    return script.figures(**measured)


def _replayed(store: Any) -> dict[str, Any]:
    begin = time.perf_counter()
    events = store.load(script.RUN_ID)
    loaded = time.perf_counter()
    state = replay(events)
    end = time.perf_counter()
    if not state.is_complete:
        raise RuntimeError("the log that was loaded is not complete")
    return {"load_s": loaded - begin, "replay_s": end - loaded, "load_replay_s": end - begin}


def resume(folder: Path, log: Path, *, turns: int, store: str = "sqlite") -> dict[str, Any]:
    """Finish a run of which only the last answer is missing, in a new process."""
    script.copy_log(log, folder)
    opened = _store(store, folder)
    measured = _resumed(opened, len(opened.load(script.RUN_ID)), turns)
    opened.close()
    return script.figures(**measured)


def _resumed(store: Any, events: int, turns: int) -> dict[str, Any]:
    cut = fork_run(
        store, script.RUN_ID, "cut", at=events - 3
    )  # without its answer, message and end
    agent = _agent(store, turns, counts=False)
    begin = time.perf_counter()
    result = asyncio.run(agent.aresume(cut))
    seconds = time.perf_counter() - begin
    _check(result, turns)
    return {"resume_s": seconds}


def fork(folder: Path, log: Path, *, forks: int = 50) -> dict[str, Any]:
    """Fork one run again and again: the median time, and what the file grows by."""
    script.copy_log(log, folder)
    store = SQLiteStore(folder / "runs.db")
    times = [_timed(partial(fork_run, store, script.RUN_ID, f"fork-{i}")) for i in range(forks)]
    whole = store.load("fork-0")
    store.close()
    grown = script.size_of(folder) - script.size_of(log)
    return script.figures(
        seconds=statistics.median(times),
        first_s=times[0],
        bytes_per_fork=grown / forks,
        events=len(whole),
    )


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def engine(folder: Path, log: Path | None, *, turns: int) -> dict[str, Any]:
    """What the engine itself takes, without a store: per turn near the start, near the end, and over all."""
    agent = _agent(None, turns)
    begin = time.perf_counter()
    result = asyncio.run(agent.arun(script.QUESTION))
    seconds = time.perf_counter() - begin
    _check(result, turns)
    times = agent.model.times  # type: ignore[attr-defined]
    per_turn = [later - earlier for earlier, later in pairwise(times)]
    window = min(50, turns // 4)
    return script.figures(
        turn_s=seconds / turns,
        early_s=statistics.median(per_turn[9 : 9 + window]),
        late_s=statistics.median(per_turn[-window:]),
    )


def append(folder: Path, log: Path | None, *, path: str, run_id: str, turns: int) -> dict[str, Any]:
    """One of several processes that append to one file: waits for a line on stdin, then writes as a run does."""
    store = SQLiteStore(path)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    store.append(run_id, Event("run_start", agent="bench", messages=[], seq=1))
    for turn in range(turns):
        store.append_many(run_id, _asked(turn))
        store.append_many(run_id, [_told(turn)])
    end = time.monotonic()
    stored = [event.seq for event in store.load(run_id)]
    store.close()
    if stored != list(range(1, 3 * turns + 2)):
        raise RuntimeError(f"{run_id}: events are missing")
    return script.figures(begin=begin, end=end, events=len(stored))


def _asked(turn: int) -> list[Event]:
    function = {"name": script.TOOL, "arguments": script.ARGUMENTS}
    call = {"id": script.call_id(turn), "type": "function", "function": function}
    name, call_id = script.TOOL, script.call_id(turn)
    return [
        Event("generation", calls=[call], usage=Usage(*script.USAGE), turn=turn + 1),
        Event("tool_call", name=name, call_id=call_id, args={"city": "London"}, turn=turn + 1),
    ]


def _told(turn: int) -> Event:
    return Event(
        "tool_result",
        name=script.TOOL,
        call_id=script.call_id(turn),
        result=script.weather("London"),
        turn=turn + 1,
    )


KINDS = {
    "run": run,
    "concurrent": concurrent,
    "load": load,
    "resume": resume,
    "fork": fork,
    "engine": engine,
    "append": append,
}
