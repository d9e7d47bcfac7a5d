"""What a model answers, and what a model is: the seam between the loop and any provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agentor.engine.events import Message, Usage


@dataclass(slots=True)
class ToolCall:
    """One call the model asks for. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""
    extra: dict[str, Any] = field(default_factory=dict)  # fields only the provider understands


@dataclass(slots=True)
class ModelResponse:
    """One whole reply. `extra` holds message fields that only the provider understands (reasoning details,
    thought signatures, a refusal): they are stored and sent back to the server that gave them."""

    content: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    raw: Any = None  # the provider's own object; never stored
    reasoning: str | None = None
    finish_reason: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StreamChunk:
    """A piece of a streamed reply: text as it arrives, then one last chunk with `final`, the whole reply."""

    delta: str | None = None
    final: ModelResponse | None = None
    reasoning_delta: str | None = None


@runtime_checkable
class Model(Protocol):
    """Anything that answers chat messages. `stream` is optional: without it a reply streams as one chunk.

    A model may have `model` (its name, for the log), `source` (which server it talks to: provider fields go
    back only to the source that sent them) and `aclose()`.
    """

    async def complete(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> ModelResponse: ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> AsyncIterator[StreamChunk]: ...
