"""LangGraph with its SqliteSaver, durability="sync": every step's checkpoint is on disk before the next step."""

from __future__ import annotations

import gc
import itertools
import sqlite3
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from bench import script

_CONFIG: Any = {"configurable": {"thread_id": script.RUN_ID}, "recursion_limit": 10**9}
_USAGE = dict(zip(("input_tokens", "output_tokens", "total_tokens"), script.USAGE, strict=True))


def _graph(connection: sqlite3.Connection, turns: int) -> Any:
    asked = itertools.count()

    def ask(state: Any) -> dict[str, Any]:
        turn = next(asked)
        if turn >= turns:
            return {"messages": [AIMessage(script.ANSWER, usage_metadata=_USAGE)]}
        call = {"id": script.call_id(turn), "name": script.TOOL, "args": {"city": "London"}}
        return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=_USAGE)]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", _call_tools)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda s: "tools" if s["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "ask")
    return graph.compile(checkpointer=SqliteSaver(connection))


def _call_tools(state: Any) -> dict[str, Any]:
    calls = state["messages"][-1].tool_calls
    return {
        "messages": [
            ToolMessage(script.weather(**call["args"]), tool_call_id=call["id"], name=call["name"])
            for call in calls
        ]
    }


def _connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "graph.db", check_same_thread=False)


def run(folder: Path, log: Path | None, *, turns: int) -> dict[str, Any]:
    connection = _connect(folder)
    graph = _graph(connection, turns)
    messages = [SystemMessage(script.INSTRUCTIONS), HumanMessage(script.QUESTION)]
    begin = time.perf_counter()
    result = graph.invoke({"messages": messages}, _CONFIG, durability="sync")
    seconds = time.perf_counter() - begin
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.close()
    if result["messages"][-1].content != script.ANSWER or synchronous != 2:
        raise RuntimeError("the run went wrong, or was not durable")
    return script.figures(seconds=seconds, bytes=script.size_of(folder))


def load(folder: Path, log: Path) -> dict[str, Any]:
    """Its newest checkpoint holds the whole conversation: one row to read."""
    connection = _connect(log)
    graph = _graph(connection, 0)
    gc.collect()
    begin = time.perf_counter()
    state = graph.get_state(_CONFIG)
    seconds = time.perf_counter() - begin
    connection.close()
    return script.figures(load_replay_s=seconds, messages=len(state.values["messages"]))


KINDS = {"run": run, "load": load}
