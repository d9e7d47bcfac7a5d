"""A model for tests that need no network: it says what it is told to say, and checks what it is asked.

model = ScriptedModel([calls(("get_weather", {"city": "London"})), "Sunny in London."])
agent = Agentor("weather", model=model, tools=[get_weather])
assert agent.run("How is London?").final_output == "Sunny in London."
assert len(model.requests) == 2
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from agentor.engine import strict_json
from agentor.engine.events import Message, Usage
from agentor.engine.responses import ModelResponse, StreamChunk
from agentor.testing.answers import Answer, says, turn_of
from agentor.testing.growing import Growing
from agentor.testing.script import Script, by_turn, is_function

Spoken: TypeAlias = str | Answer | ModelResponse | BaseException | type[BaseException]
Behaviour: TypeAlias = Callable[[list[Message]], "Spoken | Awaitable[Spoken]"]


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """What the model was asked, copied, so that later turns do not change it. Requests share what they have in common."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    response_format: dict[str, Any] | None


class ScriptedModel:
    """A `Model` built from a list of replies, or from a function of the messages.

    A reply is a text, `says(...)`, `calls(...)`, a `ModelResponse`, an exception to raise, or a function of the
    messages (sync or async) that gives one of these. A function in place of the list answers every request; it
    keeps no place, so it works over several processes, as does `by_turn`.

    Every request is checked by `check_messages`; a breach is an `AssertionError` naming it (`check=False` turns
    that off, `allow` names further message keys). So is a request beyond the end of the script.
    """

    def __init__(
        self,
        replies: Iterable[Spoken | Behaviour] | Behaviour = (),
        *,
        model: str = "scripted",
        usage: Usage | None = None,
        check: bool = True,
        allow: Iterable[str] = (),
    ) -> None:
        self.model = model
        self.source = model
        self.requests: list[ScriptedRequest] = []
        self._script = Script(replies)
        self._usage = usage
        self._check = check
        self._asked = Growing(frozenset(allow))
        self._told = Growing()  # copies of their own for functions, which may change them

    @classmethod
    def by_turn(cls, replies: Sequence[Spoken | Behaviour], **settings: Any) -> ScriptedModel:
        """The first reply answers a conversation without an assistant message, the second one with one ...

        The place in the script is read off the messages, not counted: a run that is resumed in another process,
        or asks the same turn again, gets the reply that belongs there.
        """
        return cls(by_turn(replies, turn_of), **settings)

    @property
    def left(self) -> int:
        """How many replies of the list are not given yet; 0 when a function answers."""
        return self._script.left

    async def complete(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> ModelResponse:
        answer = await self._answer(messages, tools, response_format)
        return answer if isinstance(answer, ModelResponse) else answer.response()

    async def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> AsyncIterator[StreamChunk]:
        """The reply in pieces: reasoning, then text, then one last chunk with the whole."""
        answer = await self._answer(messages, tools, response_format)
        if isinstance(answer, ModelResponse):
            spoken, final = Answer(answer.content, reasoning=answer.reasoning), answer
        else:
            spoken, final = answer, answer.response()
        for piece in spoken.pieces(spoken.reasoning):
            yield StreamChunk(reasoning_delta=piece)
        for piece in spoken.pieces(spoken.text):
            yield StreamChunk(delta=piece)
        yield StreamChunk(final=final)

    async def _answer(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        response_format: dict[str, Any] | None,
    ) -> Answer | ModelResponse:
        asked = self._asked.copied(messages)
        self.requests.append(ScriptedRequest(asked, *strict_json.copied([tools, response_format])))
        number = len(self.requests)
        if self._check and (breaches := self._asked.check(asked)):
            raise AssertionError(f"request {number} is not legal:\n- " + "\n- ".join(breaches))
        reply = self._script.next()
        if is_function(reply):
            reply = reply(self._told.copied(messages))
            if inspect.isawaitable(reply):
                reply = await reply
        return self._spoken(reply, messages)

    def _spoken(self, reply: Any, messages: list[Message]) -> Answer | ModelResponse:
        match reply:
            case str():
                reply = says(reply)
            case ModelResponse():
                return copy.deepcopy(reply) if reply.raw is None else reply
            case BaseException():
                raise reply
            case type() if issubclass(reply, BaseException):
                raise reply
        if not isinstance(reply, Answer):
            raise TypeError(
                f"a scripted reply is a text, says(...), calls(...), a ModelResponse or an exception, not {reply!r}"
            )
        answer = reply.to(messages)
        return answer if self._usage is None else replace(answer, usage=self._usage)
