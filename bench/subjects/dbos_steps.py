"""DBOS on SQLite: a workflow whose model calls and tool calls are steps, each recorded before the next."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from dbos import DBOS

from bench import script


@DBOS.step()
def ask(messages: list[dict[str, Any]], turn: int, turns: int) -> dict[str, Any]:
    usage = dict(zip(("input", "output", "total"), script.USAGE, strict=True))
    if turn >= turns:
        return {"role": "assistant", "content": script.ANSWER, "usage": usage}
    function = {"name": script.TOOL, "arguments": script.ARGUMENTS}
    call = {"id": script.call_id(turn), "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], "usage": usage}


@DBOS.step()
def get_weather(city: str) -> str:
    return script.weather(city)


@DBOS.workflow()
def converse(question: str, turns: int) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": script.INSTRUCTIONS},
        {"role": "user", "content": question},
    ]
    for turn in itertools.count():
        answer = ask(messages, turn, turns)
        messages.append(answer)
        if not answer.get("tool_calls"):
            return str(answer["content"])
        for call in answer["tool_calls"]:
            text = get_weather("London")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    raise AssertionError("the count of turns has no end")


def run(folder: Path, log: Path | None, *, turns: int) -> dict[str, Any]:
    settings: Any = {
        "name": "bench",
        "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
        "run_admin_server": False,
        "log_level": "WARNING",
    }
    DBOS(config=settings)
    DBOS.launch()
    begin = time.perf_counter()
    answer = converse(script.QUESTION, turns)
    seconds = time.perf_counter() - begin
    DBOS.destroy()
    if answer != script.ANSWER:
        raise RuntimeError("the run went wrong")
    return script.figures(seconds=seconds, bytes=script.size_of(folder))


KINDS = {"run": run}
