"""The chat-completions dialect: an answer as one body, or as a stream of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentor.engine.events import Message, Usage
from agentor.engine.responses import ToolCall
from agentor.testing.answers import Answer, turn_of
from agentor.testing.replies import Reply, json_reply, sse

CREATED: Final = 1_750_000_000  # a fixed time: the same request gives the same bytes


@dataclass(slots=True)
class Request:
    """One request the server got. Header names are in lower case; `body` is None if it was not JSON."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any = None
    number: int = 0  # among the chat requests of the server, from 1
    disconnected: bool = False  # the client left before it had the whole reply
    finished: bool = False  # the reply is sent, or given up
    breaches: list[str] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        messages = self._get("messages")
        return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        tools = self._get("tools")
        return tools if isinstance(tools, list) else None

    @property
    def response_format(self) -> dict[str, Any] | None:
        wanted = self._get("response_format")
        return wanted if isinstance(wanted, dict) else None

    @property
    def stream(self) -> bool:
        return self._get("stream") is True

    @property
    def turn(self) -> int:
        """How many times the model has answered in this conversation."""
        return turn_of(self.messages)

    def _get(self, key: str) -> Any:
        return self.body.get(key) if isinstance(self.body, dict) else None


def completion(answer: Answer, request: Request) -> Reply:
    """The reply that says `answer`, streamed if the request asked for it."""
    answer = answer.to(request.messages)
    return _streamed(answer, request) if request.stream else _whole(answer, request)


def _whole(answer: Answer, request: Request) -> Reply:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    choice = {
        "index": 0,
        "message": message | dict(answer.extra),
        "finish_reason": answer.finish_reason,
    }
    body = _envelope("chat.completion", request) | {"choices": [choice]}
    return json_reply(body if answer.usage is None else body | {"usage": usage_body(answer.usage)})


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function} | call.extra


def _streamed(answer: Answer, request: Request) -> Reply:
    envelope = _envelope("chat.completion.chunk", request)
    chunks = [chunk(delta, **envelope) for delta in _deltas(answer)]
    chunks.append(chunk({}, answer.finish_reason, **envelope))
    options = request.body.get("stream_options") if isinstance(request.body, dict) else None
    if answer.usage and isinstance(options, dict) and options.get("include_usage"):
        chunks.append(envelope | {"choices": [], "usage": usage_body(answer.usage)})
    return sse(*chunks)


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""} | dict(answer.extra)
    for piece in answer.pieces(answer.reasoning):
        yield {"reasoning_content": piece}
    for piece in answer.pieces(answer.text):
        yield {"content": piece}
    for index, call in enumerate(answer.calls):
        function = {"name": call.name, "arguments": ""}
        opening = {"index": index, "id": call.id, "type": "function", "function": function}
        yield {"tool_calls": [opening | call.extra]}
        for piece in answer.pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def chunk(
    delta: Mapping[str, Any], finish_reason: str | None = None, **envelope: Any
) -> dict[str, Any]:
    """One chunk of a stream, as a dict: for `sse`."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": "test-model",
        "choices": [choice],
    } | envelope


def deltas(
    *pieces: Mapping[str, Any],
    finish_reason: str | None = "stop",
    usage: Usage | None = None,
    done: bool = True,
) -> Reply:
    """A stream written delta by delta, for what no well-behaved server would send.

    `finish_reason=None` leaves out the chunk that says the model is done.
    """
    chunks = [chunk(piece) for piece in pieces]
    if finish_reason is not None:
        chunks.append(chunk({}, finish_reason))
    if usage is not None:
        chunks.append(chunk({}) | {"choices": [], "usage": usage_body(usage)})
    return sse(*chunks, done=done)


def _envelope(kind: str, request: Request) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.number}",
        "object": kind,
        "created": CREATED,
        "model": request.body.get("model") if isinstance(request.body, dict) else None,
    }


def usage_body(usage: Usage) -> dict[str, Any]:
    """Counts in the provider's words; the details only when there are any."""
    counts: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_tokens:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts


def models_body(names: Sequence[str]) -> dict[str, Any]:
    """What `/v1/models` answers."""
    owned = {"object": "model", "created": CREATED, "owned_by": "agentor"}
    return {"object": "list", "data": [{"id": name} | owned for name in names]}
