"""Models: anything that answers chat messages, and the one that asks a chat-completions server.

`ChatCompletionsModel` is the most tolerant reader and the strictest writer it can be. A reply counts only if it is
seen to be whole; a broken one is asked for again as long as nothing of it was shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from agentor.engine import wire
from agentor.engine.adapt import Adaptations, Attempt
from agentor.engine.exchange import Exchange
from agentor.engine.failure import (
    explain_connection,
    explain_tools,
    is_unavailable,
    model_error,
    refusal_of,
)
from agentor.engine.patience import Patience
from agentor.engine.redact import hide_in_error
from agentor.engine.reply import BrokenReply, ReplyReader
from agentor.engine.responses import Model, ModelResponse, StreamChunk, StreamingModel, ToolCall
from agentor.engine.settings import ModelSettings
from agentor.engine.transport import ApiKey, Transport
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
        patience = Patience(self._transport.max_retries, self._transport.timeout_s)
        shown = False
        while True:
            exchange = Exchange(ReplyReader(_tool_names(body)), patience)
            try:
                chunks = exchange.chunks(self._transport.send(attempt.body, patience.retries))
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        attempt.passed()
                        shown = visible
                        yield chunk
                return
            except Exception as error:
                if shown or not await _goes_on(error, attempt, exchange):
                    told = self._told(error, attempt, exchange.reader)
                    if told is error:
                        raise
                    raise told from None

    def _told(self, error: Exception, attempt: Attempt, reader: ReplyReader) -> Exception:
        """The error as the caller gets it."""
        if isinstance(error, BrokenReply):
            error = model_error(error, reader, self.source, self.model)
        if (refusal := refusal_of(error)) is not None:
            explain_tools(error, refusal, bool(attempt.body.get("tools")))
        explain_connection(error, self.source)
        hide_in_error(error)
        return error


async def _goes_on(error: Exception, attempt: Attempt, exchange: Exchange) -> bool:
    """Whether to ask again: differently if the server refused something, as before if the reply broke."""
    patience, refusal = exchange.patience, refusal_of(error)
    if refusal is not None and attempt.adapt(refusal):
        if refusal.status >= 500:
            patience.spend(patience.retries)  # the client has used them up
        return True
    if isinstance(error, BrokenReply) and error.transient:
        return await patience.wait(exchange.headers)
    return False


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
