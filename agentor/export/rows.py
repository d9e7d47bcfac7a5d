"""A run as rows: its log folded once more, with a row written down wherever the fold says that something happened.

`turns`, `tool_calls` and `usage` are facts: what a model answered and what it cost stays there when the turn was
given up later. `messages` are the conversation as it stands at the end of the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeAlias

from agentor.engine import events as ev
from agentor.engine import strict_json
from agentor.engine.batch import IN_DOUBT
from agentor.engine.events import Event, Message
from agentor.engine.replay import RunState, evolve
from agentor.engine.request import Call, Transcript
from agentor.engine.store.summary import branched_from, own_times
from agentor.errors import LogCorruptError
from agentor.export.tables import COUNTS

Row: TypeAlias = dict[str, Any]
Parent: TypeAlias = tuple[str | None, int]

UNFINISHED = "unfinished"
DAMAGED = "damaged"
_OUTCOMES = {None: "ok", IN_DOUBT: "in doubt"}  # by the error of a result; any other failed
_LARGEST = 2**63 - 1  # that a column holds


@dataclass(slots=True)
class Numbers:
    """Where the ids of the rows of a snapshot come from: counted over all its runs."""

    turns: Iterator[int] = field(default_factory=lambda: count(1))
    messages: Iterator[int] = field(default_factory=lambda: count(1))
    tool_calls: Iterator[int] = field(default_factory=lambda: count(1))


def rows_of(
    run_id: str, log: Sequence[Event], numbers: Numbers, parent: Parent = (None, 0)
) -> dict[str, list[Row]]:
    """The rows of a run by table. `LogCorruptError` if the log cannot be folded.

    `parent`: what the store knows of a fork, the run that it shares events with and the last seq of those.
    """
    walk = _Walk(run_id, numbers, max(_last_inherited(log), parent[1]))
    for event in log:
        walk.take(event)
    return {
        "runs": [walk.run_row(log, parent)],
        "turns": walk.turns,
        "messages": walk.message_rows(),
        "tool_calls": walk.tool_calls,
        "usage": walk.usage,
    }


def row_of_damaged(run_id: str, problem: str) -> Row:
    return {"run_id": run_id, "status": DAMAGED, "error": problem}


def _last_inherited(log: Sequence[Event]) -> int:
    """The seq up to which a fork has its events from its parent, by what its log says; 0 for a run that is no fork."""
    return max((seq for seq, event in enumerate(log, 1) if event.type == ev.FORK), default=0)


class _Walk:
    """Goes along the log and keeps the rows, and where each message of the conversation came from."""

    def __init__(self, run_id: str, numbers: Numbers, inherited: int) -> None:
        self.run_id = run_id
        self.turns: list[Row] = []
        self.tool_calls: list[Row] = []
        self.usage: list[Row] = []
        self._numbers = numbers
        self._inherited = inherited
        self._state = RunState()
        self._origins: list[
            int
        ] = []  # of each message of the conversation: the seq that brought it in
        self._turn_of: dict[int, int] = {}  # seq of a generation or a result -> id of its turn
        self._calls: dict[int, Row] = {}  # of the open batch, by position

    def take(self, event: Event) -> None:
        before, after = self._state, self._evolved(event)
        self._state = after
        match event.type:
            case ev.GENERATION:
                self._generation(event, after)
            case ev.TOOL_CALL:
                self._tool_call(event, before, after.seq)
            case ev.TOOL_RESULT:
                self._tool_result(event, before, after.seq)
        self._follow_conversation(event, before, after)

    def _evolved(self, event: Event) -> RunState:
        try:
            return evolve(self._state, event)
        except LogCorruptError as error:
            raise LogCorruptError(self.run_id, error.seq, error.reason) from None

    def _generation(self, event: Event, after: RunState) -> None:
        turn_id = self._turn_of[after.seq] = next(self._numbers.turns)
        calls = after.batch.calls if after.batch else ()
        self.turns.append(
            {
                "id": turn_id,
                "run_id": self.run_id,
                "seq": after.seq,
                "segment": after.segments,
                "turn": after.turn,
                "model": event.model or after.model,
                "text": event.text,
                "reasoning": event.reasoning,
                "calls": len(calls),
                "finish_reason": event.finish_reason,
                **_times(event),
                "inherited": self._is_inherited(after.seq),
            }
        )
        self._add_usage(event, turn_id, after)
        self._calls = {call.position: self._call_row(call, turn_id, after.seq) for call in calls}
        self.tool_calls.extend(self._calls.values())

    def _add_usage(self, event: Event, turn_id: int, after: RunState) -> None:
        if event.usage is None:
            return
        self.usage.append(
            {
                "turn_id": turn_id,
                "run_id": self.run_id,
                "model": event.model or after.model,
                **{name: _count(getattr(event.usage, name)) for name in COUNTS},
                "inherited": self._is_inherited(after.seq),
            }
        )

    def _call_row(self, call: Call, turn_id: int, seq: int) -> Row:
        row = self._empty_call_row(call.call_id, call.name, call.arguments, seq)
        return {**row, "turn_id": turn_id, "position": call.position}

    def _empty_call_row(
        self, call_id: str | None, name: str | None, args: str | None, seq: int
    ) -> Row:
        return {
            "id": next(self._numbers.tool_calls),
            "run_id": self.run_id,
            "turn_id": None,
            "position": None,
            "call_id": call_id,
            "name": name,
            "args": args,
            "outcome": "not started",
            "result": None,
            "error": None,
            "call_seq": None,
            "result_seq": None,
            "started_at": None,
            "ended_at": None,
            "seconds": None,
            "inherited": self._is_inherited(seq),
        }

    def _tool_call(self, event: Event, before: RunState, seq: int) -> None:
        batch = before.batch
        call = batch.find(event, batch.started) if batch else None
        row = self._calls[call.position] if call else self._stray(event, seq)
        row["call_seq"] = seq
        row["outcome"] = (
            "in doubt" if event.error is None else "not started"
        )  # until there is a result

    def _tool_result(self, event: Event, before: RunState, seq: int) -> None:
        batch = before.batch
        call = batch.find(event, batch.answers) if batch else None
        row = self._calls[call.position] if call else self._stray(event, seq)
        row["result"], row["error"], row["result_seq"] = event.result, event.error, seq
        row["outcome"] = _OUTCOMES.get(event.error, "failed")
        row.update(_times(event))
        if row["turn_id"] is not None:
            self._turn_of[seq] = row["turn_id"]

    def _stray(self, event: Event, seq: int) -> Row:
        """A row for a call or result that no open batch asked for: a fact of the log all the same."""
        args = None if event.args is None else strict_json.dumps(event.args)
        row = self._empty_call_row(event.call_id, event.name, args, seq)
        self.tool_calls.append(row)
        return row

    def _follow_conversation(self, event: Event, before: RunState, after: RunState) -> None:
        if after.transcript is before.transcript:
            return
        if event.type == ev.RUN_START or event.messages is not None:
            same = _common(before.transcript, after.transcript)
        else:
            same = len(before.transcript)
        del self._origins[same:]
        self._origins += self._origins_of(len(after.transcript) - same, event, before, after.seq)

    def _origins_of(self, new: int, event: Event, before: RunState, seq: int) -> list[int]:
        """Where the newest messages came from: a settled batch brings in its question and all answers at once."""
        batch = before.batch
        if event.type == ev.TOOL_RESULT and batch is not None and new == 1 + len(batch.calls):
            return [batch.seq, *(self._calls[call.position]["result_seq"] for call in batch.calls)]
        return [seq] * new

    def message_rows(self) -> list[Row]:
        conversation = zip(self._state.transcript, self._origins, strict=True)
        return [
            {
                "id": next(self._numbers.messages),
                "run_id": self.run_id,
                "position": position,
                "seq": seq,
                "turn_id": self._turn_of.get(seq),
                "role": message.get("role"),
                "content": _text(message),
                "parts": _parts(message),
                "call_id": message.get("tool_call_id"),
                "inherited": self._is_inherited(seq),
            }
            for position, (message, seq) in enumerate(conversation, 1)
        ]

    def run_row(self, log: Sequence[Event], parent: Parent) -> Row:
        state, fork = self._state, ev.last_of(log, ev.FORK)
        told_at = (fork.forked_at or _last_inherited(log) - 1) if fork else None
        forked_from, forked_at = branched_from(*parent, state.forked_from, told_at)
        return {
            "run_id": self.run_id,
            "agent": state.agent,
            "model": state.model,
            "status": state.status or UNFINISHED,
            "error": state.error,
            "input": _first_input(log),
            "output": state.text,
            **_span(
                *own_times(state.started_at, state.ended_at, fork.started_at if fork else None)
            ),
            "segments": state.segments,
            "turns": len(self.turns),
            "tool_calls": len(self.tool_calls),
            **{name: _count(getattr(state.usage, name)) for name in COUNTS[:3]},
            "forked_from": forked_from,
            "forked_at": None if forked_at is None else _count(forked_at),
            "parent": None,  # known when all runs are there
        }

    def _is_inherited(self, seq: int) -> int:
        return int(seq <= self._inherited)


def _common(one: Transcript, other: Transcript) -> int:
    """How many messages two conversations have in common from the beginning."""
    same = 0
    for a, b in zip(one, other, strict=False):
        if a is not b and a != b:
            break
        same += 1
    return same


def _first_input(log: Iterable[Event]) -> str | None:
    start = next((event for event in log if event.type == ev.RUN_START), None)
    asked = [m for m in (start.messages if start else None) or [] if m.get("role") == "user"]
    return _text(asked[-1]) if asked else None


def _text(message: Message) -> str | None:
    """What a message says; of one in parts, the texts among them."""
    content = message.get("content")
    if not isinstance(content, list):
        return None if content is None else str(content)
    texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
    return "\n".join(texts)


def _parts(message: Message) -> str | None:
    content = message.get("content")
    return strict_json.dumps(content) if isinstance(content, list) else None


def _times(event: Event) -> Row:
    return _span(event.started_at, event.ended_at)


def _span(started_at: float | None, ended_at: float | None) -> Row:
    seconds = None
    if started_at is not None and ended_at is not None:
        with contextlib.suppress(OverflowError):  # a whole number beyond all floats
            seconds = round(float(ended_at) - float(started_at), 6)
    return {"started_at": _moment(started_at), "ended_at": _moment(ended_at), "seconds": seconds}


def _moment(seconds: float | None) -> str | None:
    """ISO 8601 in UTC, which SQLite's date functions and every other tool read; None for what is no time."""
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _count(number: int) -> int:
    """What a foreign log says may be larger than a column holds."""
    return max(-_LARGEST, min(number, _LARGEST))
