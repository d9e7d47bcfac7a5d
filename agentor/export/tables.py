"""The tables of a snapshot. What a column means is told in docs/export.md."""

from __future__ import annotations

from typing import Any, Final

COUNTS: Final = (
    *("input_tokens", "output_tokens", "total_tokens"),
    *("cached_tokens", "reasoning_tokens"),
)

# In an order in which a table only points to earlier ones, or to itself.
TABLES: Final[dict[str, dict[str, Any]]] = {
    "runs": {
        "run_id": str,
        "agent": str,
        "model": str,
        "status": str,
        "error": str,
        "input": str,
        "output": str,
        "started_at": str,
        "ended_at": str,
        "seconds": float,
        "segments": int,
        "turns": int,
        "tool_calls": int,
        "input_tokens": int,
        "output_tokens": int,
        "total_tokens": int,
        "forked_from": str,
        "forked_at": int,
        "parent": str,
    },
    "turns": {
        "id": int,
        "run_id": str,
        "seq": int,
        "segment": int,
        "turn": int,
        "model": str,
        "text": str,
        "reasoning": str,
        "calls": int,
        "finish_reason": str,
        "started_at": str,
        "ended_at": str,
        "seconds": float,
        "inherited": int,
    },
    "messages": {
        "id": int,
        "run_id": str,
        "position": int,
        "seq": int,
        "turn_id": int,
        "role": str,
        "content": str,
        "parts": str,
        "call_id": str,
        "inherited": int,
    },
    "tool_calls": {
        "id": int,
        "run_id": str,
        "turn_id": int,
        "position": int,
        "call_id": str,
        "name": str,
        "args": str,
        "outcome": str,
        "result": str,
        "error": str,
        "call_seq": int,
        "result_seq": int,
        "started_at": str,
        "ended_at": str,
        "seconds": float,
        "inherited": int,
    },
    "usage": {
        "turn_id": int,
        "run_id": str,
        "model": str,
        **dict.fromkeys(COUNTS, int),
        "inherited": int,
    },
}

PRIMARY_KEYS: Final = {
    "runs": "run_id",
    "turns": "id",
    "messages": "id",
    "tool_calls": "id",
    "usage": "turn_id",
}

_OF_A_RUN: Final = ("run_id", "runs", "run_id")
_OF_A_TURN: Final = ("turn_id", "turns", "id")
FOREIGN_KEYS: Final = {
    "runs": [("parent", "runs", "run_id")],
    "turns": [_OF_A_RUN],
    "messages": [_OF_A_RUN, _OF_A_TURN],
    "tool_calls": [_OF_A_RUN, _OF_A_TURN],
    "usage": [_OF_A_RUN, _OF_A_TURN],
}

SEARCHED: Final = {"messages": ["content"], "tool_calls": ["name", "args", "result", "error"]}
