"""What a scripted model says: the little constructors that tests of either kind are written with.

`says("Sunny.")` is an answer, `calls(("get_weather", {"city": "London"}))` asks for tools. A `ScriptedModel`
turns them into replies in the process, a `FakeServer` into bytes on a socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from agentor.engine.events import Message, Usage
from agentor.engine.responses import ModelResponse, ToolCall

USAGE: Final = Usage(
    input_tokens=10, output_tokens=5, total_tokens=15
)  # unless a test says otherwise

CallSpec: TypeAlias = ToolCall | tuple[str, Any] | tuple[str, Any, str | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of a model, before it is known to which request.

    Calls without an id get one that is new in the conversation they answer: `call_1`, `call_2` ... The stream
    comes word by word, or in pieces of `chunk_size` characters. `extra` is added to the assistant message as
    it stands: reasoning details, a refusal, any field of a provider.
    """

    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    usage: Usage | None = USAGE
    finish_reason: str | None = None
    chunk_size: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to(self, messages: Sequence[Message]) -> Answer:
        """The same answer to a given conversation: every call has its id."""
        ids = _new_ids(messages)
        named = (call if call.id else replace(call, id=next(ids)) for call in self.calls)
        return replace(self, calls=tuple(named))

    def response(self) -> ModelResponse:
        """The answer as a `ModelResponse`."""
        return ModelResponse(
            content=self.text,
            tool_calls=[replace(call, extra=dict(call.extra)) for call in self.calls],
            usage=self.usage or Usage(),
            reasoning=self.reasoning,
            finish_reason=self.finish_reason,
            extra=dict(self.extra),
        )

    def pieces(self, text: str | None) -> list[str]:
        """`text` as it streams; joined, the pieces are the text."""
        if not text:
            return []
        if self.chunk_size is None:
            return re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)
        return [text[i : i + self.chunk_size] for i in range(0, len(text), self.chunk_size)]


def says(
    text: str | None,
    *,
    reasoning: str | None = None,
    usage: Usage | None = USAGE,
    finish_reason: str | None = "stop",
    chunk_size: int | None = None,
    **extra: Any,
) -> Answer:
    """The model answers with a text. Further keyword arguments become fields of the assistant message.

    `usage=None` is a provider that does not count; `finish_reason="length"` an answer cut off.
    """
    return Answer(text, (), reasoning, usage, finish_reason, _checked_size(chunk_size), extra)


def calls(
    *asked: CallSpec,
    text: str | None = None,
    reasoning: str | None = None,
    usage: Usage | None = USAGE,
    finish_reason: str | None = "tool_calls",
    chunk_size: int | None = None,
    **extra: Any,
) -> Answer:
    """The model asks for tools: `calls(("get_weather", {"city": "London"}), ("now", {}, "call_x"))`.

    Each call is `(name, arguments)` or `(name, arguments, id)`, or a `ToolCall`. Arguments are an object, or a
    string that is sent as it stands, broken JSON included.
    """
    if not asked:
        raise TypeError("calls() needs at least one (name, arguments); use says() for a text")
    made = tuple(_call(spec) for spec in asked)
    return Answer(text, made, reasoning, usage, finish_reason, _checked_size(chunk_size), extra)


def _call(spec: CallSpec) -> ToolCall:
    match spec:
        case ToolCall():
            return spec
        case (str(name), arguments):
            return ToolCall("", name, _arguments(arguments))
        case (str(name), arguments, call_id) if call_id is None or isinstance(call_id, str):
            return ToolCall(call_id or "", name, _arguments(arguments))
    raise TypeError(f"a call is (name, arguments) or (name, arguments, id), not {spec!r}")


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _checked_size(chunk_size: int | None) -> int | None:
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size counts characters, at least 1, not {chunk_size}")
    return chunk_size


def _new_ids(messages: Sequence[Message]) -> Iterator[str]:
    """Ids read off the conversation, so that the same request gets the same ids in every process."""
    used = {call.get("id") for message in messages for call in message.get("tool_calls") or ()}
    number = len(used)
    while True:
        number += 1
        if f"call_{number}" not in used:
            yield f"call_{number}"


def turn_of(messages: Sequence[Message]) -> int:
    """How many times the model has answered in this conversation: 0 for its first request."""
    return sum(message.get("role") == "assistant" for message in messages)
