"""A scripted model says what it was told to, and fails the test that asks it wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import agentor.testing
from agentor.engine.events import Usage
from agentor.engine.responses import (
    Model,
    ModelResponse,
    StreamChunk,
    StreamingModel,
    ToolCall,
)
from agentor.testing import ScriptedModel, calls, says

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "How is London?"}]
AFTER_A_CALL: list[dict[str, Any]] = [
    *ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]


def complete(model: ScriptedModel, messages: Any = ASKED, **more: Any) -> ModelResponse:
    return asyncio.run(model.complete(messages, **more))


def stream(model: ScriptedModel, messages: Any = ASKED) -> list[StreamChunk]:
    async def collect(chunks: AsyncIterator[StreamChunk]) -> list[StreamChunk]:
        return [chunk async for chunk in chunks]

    return asyncio.run(collect(model.stream(messages)))


def test_it_is_a_streaming_model() -> None:
    assert isinstance(ScriptedModel(), Model)
    assert isinstance(ScriptedModel(), StreamingModel)


def test_replies_are_given_in_order() -> None:
    model = ScriptedModel(["one", says("two", reasoning="hm"), calls(("look", {"city": "Åbo"}))])
    assert complete(model).content == "one"
    assert complete(model).reasoning == "hm"
    asked = complete(model)
    assert asked.tool_calls == [ToolCall("call_1", "look", '{"city": "Åbo"}')]
    assert (asked.content, asked.finish_reason) == (None, "tool_calls")
    assert model.left == 0


def test_a_response_is_given_as_it_stands() -> None:
    reply = ModelResponse("hello", usage=Usage(1, 2, 3), extra={"refusal": None})
    model = ScriptedModel([reply, reply])
    assert complete(model) == reply
    assert stream(model) == [StreamChunk(delta="hello"), StreamChunk(final=reply)]


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 1000])
def test_streamed_pieces_add_up_to_the_reply(chunk_size: int | None) -> None:
    text, thought = "  Sunny,\n with  a\tbreeze. ", "Let me see "
    model = ScriptedModel([says(text, reasoning=thought, chunk_size=chunk_size)])
    *pieces, last = stream(model)
    assert "".join(piece.delta or "" for piece in pieces) == text
    assert "".join(piece.reasoning_delta or "" for piece in pieces) == thought
    assert last.final is not None
    assert (last.final.content, last.final.reasoning) == (text, thought)


def test_a_streamed_call_comes_whole_in_the_last_chunk() -> None:
    (last,) = stream(ScriptedModel([calls(("look", {}))]))
    assert last.final is not None
    assert last.final.tool_calls == [ToolCall("call_1", "look", "{}")]


def test_calls_get_ids_that_are_new_in_the_conversation() -> None:
    model = ScriptedModel([calls(("look", {}), ("look", {}, "mine"), ("look", {}))])
    made = complete(model, AFTER_A_CALL).tool_calls
    assert [call.id for call in made] == ["call_2", "mine", "call_3"]


def test_arguments_given_as_text_are_sent_as_they_stand() -> None:
    model = ScriptedModel([calls(("look", '{"city": '), ToolCall("", "look", "", {"x": 1}))])
    first, second = complete(model).tool_calls
    assert (first.arguments, second.arguments, second.extra) == ('{"city": ', "", {"x": 1})


def test_usage_and_finish_reason_may_be_set() -> None:
    model = ScriptedModel([says("a", finish_reason="length"), says("b", usage=None)])
    cut = complete(model)
    assert (cut.finish_reason, cut.usage) == ("length", Usage(10, 5, 15))
    assert complete(model).usage == Usage()
    assert complete(ScriptedModel(["a"], usage=Usage(1, 1, 2))).usage == Usage(1, 1, 2)


def test_provider_fields_travel_in_extra() -> None:
    model = ScriptedModel([says("a", reasoning_details=[{"text": "hm"}])])
    assert complete(model).extra == {"reasoning_details": [{"text": "hm"}]}


@pytest.mark.parametrize("error", [ConnectionError("down"), ConnectionError])
def test_an_exception_in_the_script_is_raised(error: Any) -> None:
    model = ScriptedModel([error, "up again"])
    with pytest.raises(ConnectionError):
        complete(model)
    assert complete(model).content == "up again"


def test_a_reply_may_be_computed_from_the_messages() -> None:
    async def later(messages: list[Any]) -> Any:
        return says(f"{len(messages)} later")

    model = ScriptedModel([lambda messages: messages[-1]["content"], later])
    assert complete(model).content == "How is London?"
    assert complete(model).content == "1 later"


def test_a_function_answers_every_request() -> None:
    model = ScriptedModel(
        lambda messages: "done" if messages[-1]["role"] == "tool" else calls(("look", {}))
    )
    assert complete(model).tool_calls
    assert complete(model, AFTER_A_CALL).content == "done"
    assert model.left == 0


def test_by_turn_reads_its_place_off_the_conversation() -> None:
    replies = [calls(("look", {})), lambda messages: f"so: {messages[-1]['content']}"]
    first, second = ScriptedModel.by_turn(replies), ScriptedModel.by_turn(replies)
    assert second.model == "scripted"
    assert complete(second, AFTER_A_CALL).content == "so: rain"
    assert complete(first).tool_calls == complete(first).tool_calls != []
    with pytest.raises(AssertionError, match="the script has 2 replies and this is turn 3"):
        complete(first, [*AFTER_A_CALL, {"role": "assistant", "content": "x"}, *ASKED])


def test_requests_are_kept_as_they_were() -> None:
    messages = [dict(ASKED[0])]
    model = ScriptedModel(["one"])
    complete(model, messages, tools=[{"type": "function"}], response_format={"type": "text"})
    messages[0]["content"] = "changed"
    messages.append({"role": "assistant", "content": "one"})
    (request,) = model.requests
    assert request.messages == ASKED
    assert (request.tools, request.response_format) == ([{"type": "function"}], {"type": "text"})


def test_a_function_cannot_change_the_conversation() -> None:
    messages = [dict(ASKED[0])]

    def meddle(asked: list[Any]) -> str:
        asked[0]["content"] = "changed"
        return "ok"

    complete(ScriptedModel(meddle), messages)
    assert messages == ASKED


def test_an_illegal_request_fails_the_test_and_names_the_breach() -> None:
    illegal = AFTER_A_CALL[:2]
    with pytest.raises(AssertionError, match=r"(?s)request 1 is not legal.*'call_1' is never"):
        complete(ScriptedModel(["one"]), illegal)
    with pytest.raises(AssertionError, match="not legal"):
        stream(ScriptedModel(["one"]), illegal)
    assert complete(ScriptedModel(["one"], check=False), illegal).content == "one"


def test_further_message_keys_may_be_allowed() -> None:
    signed = [ASKED[0] | {"signature": "x"}]
    with pytest.raises(AssertionError, match="unknown key 'signature'"):
        complete(ScriptedModel(["one"]), signed)
    assert complete(ScriptedModel(["one"], allow=["signature"]), signed).content == "one"


def test_a_request_beyond_the_script_is_told_clearly() -> None:
    model = ScriptedModel(["one"])
    complete(model)
    with pytest.raises(AssertionError, match="the script has 1 reply and this is request 2"):
        complete(model)


@pytest.mark.parametrize("reply", [7, None, {"role": "assistant"}, ["a"]])
def test_what_is_no_reply_is_told_clearly(reply: Any) -> None:
    with pytest.raises(TypeError, match="a scripted reply is a text"):
        complete(ScriptedModel([reply]))


def test_a_script_is_built_from_a_list_not_from_one_text() -> None:
    with pytest.raises(TypeError, match="goes in a list"):
        ScriptedModel("Sunny.")


def test_constructors_refuse_what_they_cannot_say() -> None:
    with pytest.raises(TypeError, match="at least one"):
        calls()
    with pytest.raises(TypeError, match=r"a call is \(name, arguments\)"):
        calls("look")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        says("a", chunk_size=0)


def test_every_public_name_is_there() -> None:
    for name in agentor.testing.__all__:
        assert getattr(agentor.testing, name) is not None
        assert name in dir(agentor.testing)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        agentor.testing.nothing  # noqa: B018
