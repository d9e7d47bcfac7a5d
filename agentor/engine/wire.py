"""The last step before the wire: what of a conversation this server may see, and under which names.

The messages given are never changed; what must differ is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from agentor.engine import strict_json
from agentor.engine.events import Message
from agentor.engine.request import SYSTEM_ROLES
from agentor.engine.settings import EchoReasoning, InstructionsRole

REASONING_FIELDS: Final = frozenset(
    {"reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "reasoning_opaque"}
    | {"thinking", "thinking_blocks"}
)
# What an assistant says about its answer. Servers that send these refuse or misread them when they come back.
_OUTPUT_ONLY: Final = frozenset(
    {"refusal", "annotations", "audio", "citations", "logprobs", "images", "executed_tools"}
)
_STANDARD: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_STANDARD_IN_CALL: Final = frozenset({"id", "type", "function"})


def outgoing(
    messages: Sequence[Message],
    *,
    echo_reasoning: EchoReasoning = "tool_loop",
    instructions_role: InstructionsRole | None = None,
) -> list[Message]:
    """The messages as they are sent: fields that go only one way are left out."""
    loop = _tool_loop(messages)
    sent = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            keep = echo_reasoning == "always" or (echo_reasoning == "tool_loop" and place > loop)
            message = _without(message, _OUTPUT_ONLY if keep else _OUTPUT_ONLY | REASONING_FIELDS)
        elif instructions_role and role in SYSTEM_ROLES and role != instructions_role:
            message = {**message, "role": instructions_role}
        sent.append(message)
    return sent


def _tool_loop(messages: Sequence[Message]) -> int:
    """Where the last user message stands: what comes after it is the tool loop that is still open."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].get("role") == "user":
            return place
    return -1


def _without(message: Message, names: frozenset[str]) -> Message:
    if names.isdisjoint(message):
        return message
    return {name: value for name, value in message.items() if name not in names}


def provider_fields(messages: Sequence[Message]) -> set[str]:
    """The fields of assistant messages and their calls that are not of the common API."""
    return {name for holder, standard in _holders(messages) for name in holder.keys() - standard}


def without_fields(messages: Sequence[Message], names: frozenset[str]) -> list[Message]:
    """The messages without these provider fields, in the assistant's messages and in their calls."""
    stripped = []
    for message in messages:
        if message.get("role") == "assistant":
            message = _without(message, names - _STANDARD)
            if calls := message.get("tool_calls"):
                kept = names - _STANDARD_IN_CALL
                message = {**message, "tool_calls": [_without(call, kept) for call in calls]}
        stripped.append(message)
    return stripped


def _holders(messages: Sequence[Message]) -> Iterator[tuple[Message, frozenset[str]]]:
    for message in messages:
        if message.get("role") == "assistant":
            yield message, _STANDARD
            for call in message.get("tool_calls") or ():
                yield call, _STANDARD_IN_CALL


def with_role(messages: Sequence[Message], role: str) -> list[Message]:
    """The messages with all instructions under one role."""
    return [
        {**message, "role": role} if message.get("role") in SYSTEM_ROLES else message
        for message in messages
    ]


def with_schema(messages: Sequence[Message], schema: Any) -> list[Message]:
    """The messages with the schema of the answer told in the instructions."""
    text = (
        "Answer with one JSON object and nothing else, neither prose nor code fences. "
        f"The object fits this JSON schema:\n{strict_json.dumps(schema)}"
    )
    for place, message in enumerate(messages):
        if message.get("role") in SYSTEM_ROLES:
            return [*messages[:place], _with_text(message, text), *messages[place + 1 :]]
    return [{"role": "system", "content": text}, *messages]


def _with_text(message: Message, text: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}
