"""Models: anything that answers chat messages, and the one that asks a chat-completions server.

`ChatCompletionsModel` is the most tolerant reader and the strictest writer it can be. A reply counts only if it is
seen to be whole; a broken one is asked for again as long as nothing of it was shown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from agentor.engine import clock, wire
from agentor.engine.adapt import Adaptations, Attempt, Refusal
from agentor.engine.failure import (
    explain_tools,
    is_unavailable,
    model_error,
    refusal_of,
    wait_before_retry,
)
from agentor.engine.redact import hide_in_error
from agentor.engine.reply import BrokenReply, ReplyReader
from agentor.engine.responses import Model, ModelResponse, StreamChunk, StreamingModel, ToolCall
from agentor.engine.settings import ModelSettings
from agentor.engine.transport import ApiKey, Incoming, Transport
from agentor.errors import ConfigError

__all__ = [
    "ChatCompletionsModel",
    "Model",
    "ModelResponse",
    "ModelSettings",
    "StreamChunk",
    "StreamingModel",
    "ToolCall",
    "as_model",
    "is_unavailable",
]

_LINGER_S = 5.0  # how long usage may come after the reply has said that it is finished
_DRAIN_S = (
    0.1  # what the end of the body may take; a connection that is read to its end is used again
)


class ChatCompletionsModel:
    """A model behind any endpoint that speaks OpenAI's chat completions.

        model = ChatCompletionsModel("llama3.2", base_url="http://localhost:11434/v1")
        response = await model.complete([{"role": "user", "content": "Hello"}])

    `api_key` and `base_url` default to OPENAI_API_KEY and OPENAI_BASE_URL; a server of your own needs no key.
    `client` is an `AsyncOpenAI` (or Azure's) of yours: it stays yours to close. Further keywords are settings.

    Exceptions of the openai package say that the server refused the request or could not be reached; `ModelError`
    says that it answered with something that is no reply; `ConfigError` that there is no key.
    """

    def __init__(
        self,
        model: str,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: Any = None,
        settings: ModelSettings | None = None,
        **params: Any,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ConfigError(f"model must be the name of a model, not {model!r}")
        self.model = model
        self.settings = _settings(settings, params)
        self._transport = Transport(api_key, base_url, client, self.settings)
        self._adaptations = Adaptations()

    @property
    def source(self) -> str:
        """Which server it asks, as host or host:port."""
        return self._transport.source

    async def complete(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> ModelResponse:
        """One whole reply. The messages are not changed; `finish_reason` is what the server said."""
        body = self._body(messages, tools, response_format)
        async with contextlib.aclosing(self._exchange(body, visible=False)) as chunks:
            async for chunk in chunks:
                if chunk.final is not None:
                    return chunk.final
        raise AssertionError("an exchange ends with a reply or an error")

    async def stream(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> AsyncGenerator[StreamChunk, None]:
        """The reply as it comes, then one chunk with `final`. Closing the iterator closes the connection."""
        body = self._body(messages, tools, response_format)
        body = {"stream_options": {"include_usage": True}, **body, "stream": True}
        async with contextlib.aclosing(self._exchange(body, visible=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The model can be used again afterwards."""
        await self._transport.aclose()

    def __repr__(self) -> str:
        return f"ChatCompletionsModel({self.model!r}, source={self.source!r})"

    def _body(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        response_format: dict[str, Any] | None,
    ) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {
            "model": self.model,
            "messages": wire.outgoing(
                messages,
                echo_reasoning=settings.echo_reasoning,
                instructions_role=settings.instructions_role,
            ),
        }
        if tools:
            body["tools"] = tools
        if response_format is not None:
            body["response_format"] = response_format
        body |= settings.to_params(tools=bool(tools))
        if messages and messages[-1].get("role") == "tool" and _forces(body.get("tool_choice")):
            body["tool_choice"] = "auto"
        return body

    async def _exchange(
        self, body: dict[str, Any], *, visible: bool
    ) -> AsyncGenerator[StreamChunk, None]:
        """Ask until there is a whole reply, within one budget of retries and one of time.

        `visible`: somebody sees the pieces, so that a reply cannot be asked for again once one was given.
        """
        attempt = self._adaptations.attempt(body)
        patience = _Patience(self._transport.max_retries, self._transport.timeout_s)
        shown = False
        while True:
            reader = ReplyReader(_tool_names(body))
            try:
                chunks = self._attempt(attempt.body, reader, patience)
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        attempt.passed()
                        shown = visible
                        yield chunk
                return
            except Exception as error:
                if shown or not await self._goes_on(error, attempt, patience):
                    told = self._told(error, attempt, reader)
                    if told is error:
                        raise
                    raise told from None

    async def _attempt(
        self, body: dict[str, Any], reader: ReplyReader, patience: _Patience
    ) -> AsyncGenerator[StreamChunk, None]:
        """Send the request once, and read what comes."""
        async with contextlib.AsyncExitStack() as opened:
            async with patience.limit(reader):
                incoming = await opened.enter_async_context(
                    self._transport.send(body, patience.retries)
                )
            patience.began(incoming)
            while (piece := await _next(incoming, reader, patience)) is not None:
                for chunk in _fed(reader, piece):
                    yield chunk
            for chunk in reader.end():
                yield chunk
            response = reader.response()
            if reader.is_whole and (response.content or response.reasoning):
                yield StreamChunk(response.content or None, reasoning_delta=response.reasoning)
            yield StreamChunk(final=response)

    async def _goes_on(self, error: Exception, attempt: Attempt, patience: _Patience) -> bool:
        """Whether to ask again: differently if the server refused something, as before if the reply broke."""
        refusal = refusal_of(error)
        if refusal is not None and attempt.adapt(refusal):
            patience.adapted(refusal)
            return True
        if isinstance(error, BrokenReply) and error.transient:
            return await patience.wait()
        return False

    def _told(self, error: Exception, attempt: Attempt, reader: ReplyReader) -> Exception:
        """The error as the caller gets it."""
        if isinstance(error, BrokenReply):
            error = model_error(error, reader, self.source, self.model)
        if (refusal := refusal_of(error)) is not None:
            explain_tools(error, refusal, bool(attempt.body.get("tools")))
        hide_in_error(error)
        return error


class _Patience:
    """How long, and how many times more, one call may still try."""

    def __init__(self, retries: int, timeout_s: float) -> None:
        self.retries = retries
        self._timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._tried = 0
        self._headers: Mapping[str, str] = {}

    def began(self, incoming: Incoming) -> None:
        self.retries = max(self.retries - incoming.retries, 0)
        self._headers = incoming.headers

    def adapted(self, refusal: Refusal) -> None:
        if refusal.status >= 500:
            self.retries = 0  # the client has used them up

    async def wait(self) -> bool:
        """Wait before the next attempt; False if there is to be none."""
        wait_s = wait_before_retry(self._headers, self._tried)
        now = asyncio.get_running_loop().time()
        if self.retries <= 0 or wait_s is None or now + wait_s >= self._deadline:
            return False
        self.retries -= 1
        self._tried += 1
        self._headers = {}
        await clock.sleep(wait_s)
        return True

    @contextlib.asynccontextmanager
    async def limit(self, reader: ReplyReader) -> AsyncIterator[None]:
        """The time that the next step has. `BrokenReply` when the whole call has taken too long."""
        now = asyncio.get_running_loop().time()
        until = min(self._deadline, now + _LINGER_S) if reader.finished else self._deadline
        try:
            async with asyncio.timeout_at(until) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise BrokenReply(f"the call took longer than {self._timeout_s:g} s") from None


async def _next(
    incoming: Incoming, reader: ReplyReader, patience: _Patience
) -> bytes | Mapping[str, Any] | None:
    """The next piece of the body; None when it is over, however it ended: the reader judges what there is."""
    if reader.ended:
        await _drain(incoming)
        return None
    try:
        async with patience.limit(reader):
            return await anext(incoming.pieces, None)
    except BrokenReply:
        if reader.finished:
            return None
        raise
    except Exception as error:
        reader.broke = type(error).__name__
        return None


async def _drain(incoming: Incoming) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in incoming.pieces:
                pass


def _fed(reader: ReplyReader, piece: bytes | Mapping[str, Any]) -> list[StreamChunk]:
    return reader.feed(piece) if isinstance(piece, bytes) else reader.add(piece)


def _tool_names(body: Mapping[str, Any]) -> list[str]:
    return [tool.get("function", {}).get("name", "") for tool in body.get("tools", ())]


def _forces(tool_choice: Any) -> bool:
    return tool_choice == "required" or isinstance(tool_choice, dict)


def _settings(settings: ModelSettings | None, params: dict[str, Any]) -> ModelSettings:
    if settings is not None and not isinstance(settings, ModelSettings):
        raise ConfigError(f"settings must be ModelSettings, not {type(settings).__name__}")
    return (settings or ModelSettings()).with_(**params)


def as_model(
    model: Any,
    api_key: ApiKey | None = None,
    base_url: str | None = None,
    settings: ModelSettings | None = None,
) -> Model:
    """A model from its name, or the object itself if it is one. `ConfigError` for anything else."""
    if isinstance(model, str):
        return ChatCompletionsModel(model, api_key, base_url, settings=settings)
    if isinstance(model, type) or not callable(getattr(model, "complete", None)):
        raise ConfigError(
            f"model must be a name or an object with `async complete(messages, tools)`, not {model!r}"
        )
    return model  # type: ignore[no-any-return]
