"""Asking the model: one request, one whole reply, as a generation event that is yet to be recorded.

Falls back on the next model when one is rate-limited or down, as long as nothing of a reply was shown.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Protocol

from agentor.engine import clock, strict_json
from agentor.engine import events as ev
from agentor.engine.events import MOST, Event, Message, Usage
from agentor.engine.lending import Lending
from agentor.engine.models import is_unavailable
from agentor.engine.outbox import Audience
from agentor.engine.replay import CUT_REASONS, RunState
from agentor.engine.responses import Model, ModelResponse, StreamChunk, ToolCall
from agentor.errors import ModelError

logger = logging.getLogger("agentor")

Tools = list[dict[str, Any]]


class Output(Protocol):
    """The shape that the final answer must have."""

    @property
    def response_format(self) -> dict[str, Any]:
        """What the provider is told of it."""

    def unfit(self, text: str) -> str | None:
        """Why an answer does not have the shape; None if it does."""

    def correction(self, unfit: str) -> str:
        """What to ask of the model then."""


class Asking:
    """The models of a run in the order of preference. A fallback, once taken, stays for the segment."""

    def __init__(
        self,
        models: Sequence[Model],
        output: Output | None,
        audience: Audience,
        check: Callable[[], None],
    ) -> None:
        """`check` raises if no model may be asked now."""
        self._check = check
        self._models = models
        self._output = output
        self._audience = audience
        self._lending = Lending()
        self._current = 0
        self._shown = False

    @property
    def model(self) -> Model:
        return self._models[self._current]

    async def ask(self, state: RunState, tools: Tools) -> Event:
        """The generation that follows. A model's exception comes through as it is."""
        started_at = clock.now()
        self._shown = False
        while True:
            self._check()
            model = self.model
            messages = self._lending.request(state.transcript, source_of(model))
            try:
                response = await self._reply(model, messages, tools, state.turn + 1)
            except Exception as error:
                self._fall_back(error)
            else:
                return self._generation(state, model, response, started_at)

    def _fall_back(self, error: Exception) -> None:
        if self._shown or self._current + 1 >= len(self._models) or not is_unavailable(error):
            raise error
        logger.warning(
            "model %s is unavailable (%s); going on with %s",
            name_of(self.model),
            type(error).__name__,
            name_of(self._models[self._current + 1]),
        )
        self._current += 1

    async def _reply(
        self, model: Model, messages: list[Message], tools: Tools, turn: int
    ) -> ModelResponse:
        request: list[Any] = [messages, tools or None]
        if self._output is not None:
            request.append(self._output.response_format)
        wants_text = self._audience.wants_text
        if wants_text and (stream := getattr(model, "stream", None)) is not None:
            return await self._streamed(stream(*request), turn)
        response = await model.complete(*request)
        if wants_text and getattr(response, "content", None):
            await self._show_text(response.content, turn)
        return response

    async def _streamed(self, stream: Any, turn: int) -> ModelResponse:
        chunks: AsyncIterator[StreamChunk] = await stream if inspect.isawaitable(stream) else stream
        final = None
        if not hasattr(chunks, "__aiter__"):
            raise ModelError(f"the model's stream is {type(chunks).__name__}, not async")
        async with _closing(chunks):
            async for chunk in chunks:
                if not isinstance(chunk, StreamChunk):
                    raise ModelError(
                        f"the model streamed {type(chunk).__name__}, not a StreamChunk"
                    )
                if chunk.delta:
                    await self._show_text(chunk.delta, turn)
                final = chunk.final or final
        if final is None:
            raise ModelError("the model's stream ended without a final reply", retryable=True)
        return final

    async def _show_text(self, text: str | None, turn: int) -> None:
        self._shown = True
        shown = strict_json.clean_text(str(text))
        await self._audience.show(Event(ev.TEXT_DELTA, text=shown, turn=turn))

    def _generation(
        self, state: RunState, model: Model, response: ModelResponse, started_at: float
    ) -> Event:
        if not hasattr(response, "content") or not hasattr(response, "tool_calls"):
            raise ModelError(f"the model returned {type(response).__name__}, not a ModelResponse")
        try:
            read = _read(response)
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"the model's reply cannot be recorded: {error}") from error
        return Event(
            ev.GENERATION,
            **read,
            turn=state.turn + 1,
            digest=state.transcript.digest(),
            model=name_of(model),
            source=source_of(model),
            **self._unfit(read),
            started_at=started_at,
            ended_at=clock.now(),
        )

    def _unfit(self, read: dict[str, Any]) -> dict[str, Any]:
        """The fields that say that an answer does not have the shape it must have."""
        if self._output is None:
            return {}
        refused = (read["provider_fields"] or {}).get("refusal")
        cut = read["finish_reason"] in CUT_REASONS
        if read["calls"] or cut or refused:
            return {}
        if (unfit := self._output.unfit(read["text"] or "")) is None:
            return {}
        return {"error": unfit, "correction": self._output.correction(unfit)}


def name_of(model: Model) -> str:
    """The model's name for the log."""
    name = getattr(model, "model", None)
    return strict_json.clean_text(name) if isinstance(name, str) else type(model).__name__


def source_of(model: Model) -> str | None:
    """Which server the model talks to, if it says so."""
    source = getattr(model, "source", None)
    return strict_json.clean_text(source) if isinstance(source, str) else None


def _read(response: ModelResponse) -> dict[str, Any]:
    """The fields of the generation that say what the reply was."""
    calls = [_call(call) for call in response.tool_calls or ()]
    extra = getattr(response, "extra", None)
    return {
        "text": _text(response.content),
        "reasoning": _text(getattr(response, "reasoning", None)),
        "calls": calls or None,
        "usage": _usage(getattr(response, "usage", None)),
        "finish_reason": _text(getattr(response, "finish_reason", None)),
        "provider_fields": strict_json.clean(extra) or None if extra else None,
    }


def _usage(usage: Any) -> Usage:
    """The counts of whatever a model gave as usage; none if it is nothing of the kind."""
    if isinstance(usage, dict):
        return Usage.from_dict(usage)
    counts = [getattr(usage, name, 0) for name in _COUNTS]
    if (
        type(usage) is Usage
        and _WHOLE.issuperset(map(type, counts))
        and 0 <= min(counts) <= max(counts) <= MOST
    ):
        return usage
    return Usage.from_dict(dict(zip(_COUNTS, counts, strict=True)))


_COUNTS: Final = tuple(Usage.__dataclass_fields__)
_WHOLE: Final = frozenset({int})


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return strict_json.clean_text(value) if value else None
    raise TypeError(f"text was expected, not {type(value).__name__}")


def _call(call: ToolCall | dict[str, Any]) -> dict[str, Any]:
    if isinstance(call, dict):  # in chat-completions form already
        read: dict[str, Any] = strict_json.clean(call)
        return read
    arguments: Any = call.arguments
    if not isinstance(arguments, str):
        arguments = strict_json.dumps({} if arguments is None else strict_json.clean(arguments))
    function = {"name": _cleaned(call.name), "arguments": strict_json.clean_text(arguments)}
    own: dict[str, Any] = {"id": _cleaned(call.id), "type": "function", "function": function}
    extra = getattr(call, "extra", None)
    return {**strict_json.clean(extra), **own} if extra else own


def _cleaned(value: Any) -> Any:
    return strict_json.clean(value) if value else ""


@contextlib.asynccontextmanager
async def _closing(chunks: AsyncIterator[StreamChunk]) -> AsyncIterator[None]:
    """Close the stream on every way out, if it can be closed."""
    try:
        yield
    finally:
        if (close := getattr(chunks, "aclose", None)) is not None:
            await close()
