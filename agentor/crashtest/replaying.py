"""A model that answers as it did in the first run, so that a paid one is asked once.

It answers by turn: as often as the model has spoken in the conversation that it is sent, so many of its recorded answers
are past. What the conversation says otherwise does not matter. If a tool has answered differently, a real model might
too; here the run goes on as before, and the difference is told as one of the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentor.engine import events as ev
from agentor.engine import strict_json
from agentor.engine.events import Event, Message, Usage
from agentor.engine.replay import with_messages
from agentor.engine.responses import ModelResponse
from agentor.errors import ModelError
from agentor.testing.answers import turn_of

Replies = Mapping[int, Sequence[Event]]  # by turn; several where the model was asked again


def write_replies(events: Iterable[Event], path: Path) -> None:
    """The model's answers in a log, for `read_replies`."""
    _, filled = with_messages(events)
    replies = [
        strict_json.dumps({"turn": turn_of(event.messages or []), "reply": event.to_dict()})
        for event in filled
        if event.type == ev.GENERATION
    ]
    path.write_text("".join(f"{reply}\n" for reply in replies), "utf-8")


def read_replies(path: Path) -> Replies:
    replies: dict[int, list[Event]] = {}
    for line in path.read_text("utf-8").split("\n")[:-1]:
        recorded = strict_json.loads(line)
        replies.setdefault(recorded["turn"], []).append(Event.from_dict(recorded["reply"]))
    return replies


class ReplayingModel:
    """Gives the recorded answers. `model` and `source` are those of the model that gave them first."""

    def __init__(self, replies: Replies, model: str, source: str | None) -> None:
        self.model = model
        self.source = source
        self._replies = replies
        self._asked: Counter[int] = Counter()

    async def complete(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> ModelResponse:
        turn = turn_of(messages)
        if turn not in self._replies:
            raise ModelError(
                f"the run goes on where the uninterrupted one did not: the model is asked after {turn} answers, "
                f"and the recorded run has {sum(map(len, self._replies.values()))}"
            )
        replies = self._replies[turn]
        reply = replies[min(self._asked[turn], len(replies) - 1)]
        self._asked[turn] += 1
        return _response(reply)


def _response(reply: Event) -> ModelResponse:
    return ModelResponse(
        content=reply.text,
        tool_calls=list(reply.calls or ()),  # type: ignore[arg-type]  # as the provider wrote them
        usage=reply.usage or Usage(),
        reasoning=reply.reasoning,
        finish_reason=reply.finish_reason,
        extra=dict(reply.provider_fields or {}),
    )
