"""What one part of a log says that another part of it denies, in words.

Only of what this engine has written: others name calls, and count, by rules of their own. Nothing here changes what an event
means; it is for whoever verifies a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from agentor.engine import strict_json
from agentor.engine.batch import REJECTED, Batch
from agentor.engine.events import GENERATION, RUN_START, TOOL_CALL, Event, Usage
from agentor.engine.request import Call

UNKNOWN: Final = object()


class Memory:
    """What the fold does not keep, to compare the rest of the log with."""

    def __init__(self) -> None:
        self.spent = Usage()  # by all generations so far
        self._defined: dict[str | None, Any] = {}  # what agents were said to be, by digest

    def note(self, event: Event) -> None:
        if event.type == GENERATION and event.usage is not None:
            self.spent += event.usage
        elif event.type == RUN_START and event.defined is not None:
            self._defined[event.definition] = event.defined

    def effect_of(self, definition: str, tool: str) -> Any:
        """What the tool was said to declare, UNKNOWN if the log does not say what the agent was."""
        match self._defined.get(definition):
            case {"tools": {**tools}}:
                said = tools.get(tool)
                return said.get("effect") if isinstance(said, dict) else None
        return UNKNOWN


def of_start(event: Event) -> Iterator[str]:
    """Of a `run_start`, by itself."""
    if event.defined is not None and event.definition != strict_json.digest(event.defined):
        yield "what is said of the agent (`defined`) does not fit its digest (`definition`)"


def of_call(batch: Batch | None, event: Event, declared: Any) -> Iterator[str]:
    """Of a `tool_call` or `tool_result`, by the batch that is open. `declared`: the effect that its tool was said to have."""
    if batch is None:
        if event.type == TOOL_CALL:
            yield f"a start of {event.name!r} that no generation asked for (skipped)"
    elif batch.by_own_ids:
        what = "start" if event.type == TOOL_CALL else "result"
        if (call := batch.find(event, ())) is None:
            yield f"a {what} of call {event.call_id!r}, which the generation did not ask for (skipped)"
        else:
            yield from _of_known(batch, call, event, what)
            if event.type == TOOL_CALL and declared not in (UNKNOWN, event.effect):
                yield f"call {call.call_id!r} is started with another effect than its tool declares"


def _of_known(batch: Batch, call: Call, event: Event, what: str) -> Iterator[str]:
    if event.name != call.name:
        yield f"a {what} of {event.name!r} as call {call.call_id!r}, which is of {call.name!r}"
    if event.type == TOOL_CALL:
        given = batch.edited.get(call.position, call.args)
        if strict_json.canonical(event.args) != strict_json.canonical(given):
            yield f"call {call.call_id!r} is started with other arguments than it was given"
    elif not (_may_have_result(batch, call) or event.error == REJECTED):
        yield f"a result of call {call.call_id!r}, which was not started"


def _may_have_result(batch: Batch, call: Call) -> bool:
    return batch.may_have_started(call) or call.position in batch.refused


def of_answer(event: Event, answer: str | None) -> Iterator[str]:
    """Of a `message`, or the `run_end` of a run that is completed, by the answer that stands before it."""
    if answer is None:
        yield "there is no answer before this"
    elif (event.text or "") != answer:
        yield "the text is not that of the answer before it"


def of_end(event: Event, answer: str | None, spent: Usage) -> Iterator[str]:
    """Of a `run_end`, by the answer before it and the usage of all generations."""
    if event.status == "completed":
        yield from of_answer(event, answer)
    elif event.text is not None:
        yield f"the status is {event.status!r}, and yet there is an answer"
    total = Usage.from_dict(spent.to_dict())  # no number is recorded that is larger
    if event.usage is not None and event.usage != total:
        yield f"the usage is not the sum of the generations ({total.total_tokens:,} tokens in all)"
