"""What a server refuses by name is left out or renamed once, and remembered; nothing that matters is dropped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import openai
import pytest
from model_asking import HELLO, ask, asked, model_for, streamed

from agentor.engine.models import ModelSettings
from agentor.testing import FakeServer, Reply, Request, error, faults, json_reply, says

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WANTED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does.",
        "parameters": {"type": "object", "properties": {}},
    },
}
SOON = {"retry_after_ms": "1"}


def keys(server: FakeServer) -> list[set[str]]:
    return [set(request.body) for request in server.requests]


def refusing(field: str, words: str | None = None, status: int = 400, **told: Any) -> Any:
    """A server that refuses requests with this field in their body."""

    def reply(request: Request) -> Any:
        if field in request.body:
            return error(status, words or f"Unsupported parameter: '{field}'", **told)
        return says("Hello")

    return reply


DROPPED: list[tuple[str, Any]] = [
    ("temperature", 0.5),
    ("top_p", 0.5),
    ("seed", 4),
    ("stop", ["x"]),
    ("reasoning_effort", "low"),
    ("verbosity", "low"),
    ("top_k", 4),
]


@both_ways
@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(("field", "value"), DROPPED)
def test_a_refused_setting_is_left_out_once_and_remembered(
    field: str, value: Any, status: int, stream: bool
) -> None:
    with FakeServer(refusing(field, status=status)) as server:
        model = model_for(server, **{field: value})
        assert ask(model, stream).content == "Hello"
        assert ask(model, stream).content == "Hello"
        assert [field in sent for sent in keys(server)] == [True, False, False]


def test_what_was_left_out_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with FakeServer(refusing("seed")) as server, caplog.at_level(logging.WARNING, "agentor"):
        ask(model_for(server, seed=4))
    assert "no seed" in caplog.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_tokens", "max_completion_tokens"),
        ("max_completion_tokens", "max_tokens"),
    ],
)
def test_the_limit_of_an_answer_is_renamed_and_never_dropped(old: str, new: str) -> None:
    words = f"Unsupported parameter: '{old}' is not supported with this model. Use '{new}' instead."
    with FakeServer(refusing(old, words)) as server:
        model = model_for(server, **{old: 7})
        assert ask(model).content == ask(model).content == "Hello"
        assert [request.body.get(new) for request in server.requests] == [None, 7, 7]
    with FakeServer(lambda request: error(400, f"{old} and {new} are too large")) as server:
        with pytest.raises(openai.BadRequestError):
            ask(model_for(server, **{old: 7}))
        assert all(sent & {old, new} for sent in keys(server))


def test_stream_options_are_left_out_and_the_stream_stays() -> None:
    with FakeServer(refusing("stream_options", "Extra inputs: stream_options", 422)) as server:
        model = model_for(server)
        assert ask(model, True).content == ask(model, True).content == "Hello"
        assert ["stream_options" in sent for sent in keys(server)] == [True, False, False]
        assert all(request.stream for request in server.requests)


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported value: 'stream' does not support true with this model.",
        "Streaming is not supported by this model",
    ],
)
def test_a_server_that_does_not_stream_answers_in_one_piece(words: str) -> None:
    with FakeServer(refusing("stream", words)) as server:
        model = model_for(server)
        chunks, whole = asyncio.run(_twice(model))
        assert [chunk.delta for chunk in chunks] == ["Hello"]
        assert whole.content == "Hello"
        assert [request.stream for request in server.requests] == [True, False, False]


async def _twice(model: Any) -> Any:
    await streamed(model)
    return await streamed(model)


def test_the_blamed_parameter_of_an_error_decides_over_its_words() -> None:
    words = "stop: this model has no seed"
    with FakeServer(refusing("seed", words, param="seed")) as server:
        assert ask(model_for(server, seed=1, stop="x")).content == "Hello"
        assert keys(server)[-1] >= {"stop"}


@pytest.mark.parametrize("param", ["None", "null", ""])
def test_a_blamed_parameter_that_says_nothing_does_not_count(param: str) -> None:
    with FakeServer(refusing("seed", "seed is unknown", param=param)) as server:
        assert ask(model_for(server, seed=1)).content == "Hello"


def test_several_refusals_in_a_row_are_each_answered() -> None:
    def reply(request: Request) -> Any:
        for field in ("seed", "top_p", "stream_options", "temperature"):
            if field in request.body:
                return error(400, f"unknown field {field}")
        return says("Hello")

    with FakeServer(reply) as server:
        model = model_for(server, seed=1, top_p=1, temperature=1)
        assert ask(model, True).content == "Hello"
        assert len(server.requests) == 5
        assert ask(model, True).content == "Hello"
        assert len(server.requests) == 6


def test_a_server_that_refuses_whatever_comes_is_not_asked_for_ever() -> None:
    words = "temperature seed stop top_p stream stream_options max_tokens response_format no"
    with FakeServer(lambda request: error(400, words)) as server:
        model = model_for(server, seed=1, stop="x", temperature=1, max_tokens=4)
        with pytest.raises(openai.BadRequestError):
            ask(model, True, HELLO, None, WANTED)
        assert len(server.requests) < 12


def test_what_did_not_help_is_not_remembered() -> None:
    answers = [error(400, "too long: max_tokens"), error(400, "too long"), says("Hello")]
    with FakeServer(answers) as server:
        model = model_for(server, max_tokens=7)
        with pytest.raises(openai.BadRequestError):
            ask(model)
        assert ask(model).content == "Hello"
        assert keys(server)[-1] >= {"max_tokens"}


def test_an_error_that_names_nothing_we_sent_is_the_callers() -> None:
    with FakeServer([error(400, "temperature: no such model")]) as server:
        with pytest.raises(openai.BadRequestError, match="no such model"):
            ask(model_for(server))
        assert len(server.requests) == 1


def test_an_error_body_with_200_is_a_refusal_too() -> None:
    told = {"error": {"code": 400, "message": "seed is not supported"}}
    with FakeServer(lambda r: json_reply(told) if "seed" in r.body else says("Hello")) as server:
        assert ask(model_for(server, seed=1)).content == "Hello"


# -- response_format


def formats(server: FakeServer) -> list[str | None]:
    return [(request.body.get("response_format") or {}).get("type") for request in server.requests]


@both_ways
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "This response_format type is unavailable now"),
        (422, "json_schema is not supported"),
        (500, "failed to compile the grammar of response_format"),
    ],
)
def test_a_refused_schema_is_told_in_the_instructions_with_json_object(
    status: int, words: str, stream: bool
) -> None:
    def reply(request: Request) -> Any:
        if "json_schema" in str(request.body.get("response_format")):
            return faults.with_headers(error(status, words), **SOON)
        return says('{"city": "London"}')

    system = {"role": "system", "content": "Be brief."}
    with FakeServer(reply) as server:
        model = model_for(server)
        for _ in range(2):
            ask(model, stream, [system, *HELLO], None, WANTED)
        assert formats(server) == ["json_schema", "json_object", "json_object"]
        told = server.requests[-1].messages[0]["content"]
        assert told.startswith("Be brief.")
        assert '"required":["city"]' in told
        assert system["content"] == "Be brief."


def test_a_server_without_any_response_format_gets_the_schema_in_the_instructions() -> None:
    with FakeServer(refusing("response_format", "response_format is unknown")) as server:
        model = model_for(server)
        for _ in range(2):
            ask(model, False, HELLO, None, WANTED)
        assert formats(server) == ["json_schema", "json_object", None, None]
        assert '"required":["city"]' in server.requests[-1].messages[0]["content"]
        ask(model)
        assert server.requests[-1].messages == HELLO  # nothing is told where nothing was asked


def test_a_500_that_does_not_name_the_format_is_a_server_error() -> None:
    with FakeServer([faults.server_error(500)]) as server:
        with pytest.raises(openai.InternalServerError):
            ask(model_for(server), False, HELLO, None, WANTED)
        assert len(server.requests) == 1


# -- fields in messages


LOOP = [
    *HELLO,
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": "{}"},
                "extra_content": {"google": {"thought_signature": "c2ln"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "done"},
]


@pytest.mark.parametrize("field", ["reasoning_content", "extra_content"])
@pytest.mark.parametrize("blamed", [True, False])
def test_a_field_of_messages_that_is_refused_is_left_out_of_all_of_them(
    field: str, blamed: bool
) -> None:
    def reply(request: Request) -> Any:
        if field.encode() not in request.raw:
            return says("Hello")
        path = f"messages.1.{field}"
        return (
            error(400, "unsupported", param=path)
            if blamed
            else error(400, f"'{path}' is unsupported")
        )

    with FakeServer(reply) as server:
        model = model_for(server)
        for _ in range(2):
            assert ask(model, False, LOOP, [TOOL]).content == "Hello"
        assert [field.encode() in request.raw for request in server.requests] == [
            True,
            False,
            False,
        ]
        other = {"reasoning_content", "extra_content"} - {field}
        assert other.pop().encode() in server.requests[-1].raw


def test_a_server_that_knows_no_developer_gets_the_instructions_as_system() -> None:
    def reply(request: Request) -> Any:
        if request.messages[0]["role"] == "developer":
            return error(400, "'developer' is not one of ['system', 'assistant', 'user', 'tool']")
        return says("Hello")

    with FakeServer(reply) as server:
        model = model_for(server, instructions_role="developer")
        assert ask(model, False, [{"role": "system", "content": "x"}, *HELLO]).content == "Hello"
        roles = [request.messages[0]["role"] for request in server.requests]
        assert roles == ["developer", "system"]


# -- tools


@pytest.mark.parametrize(
    ("status", "words", "about_tools"),
    [
        (400, "registry.ollama.ai/library/llama2 does not support tools", True),
        (404, "No endpoints found that support tool use", True),
        (400, "tools: tool calling is not supported with this model", True),
        (400, "messages with role 'tool' must follow a message with 'tool_calls'", False),
        (400, "the prompt is too long", False),
    ],
)
def test_tools_are_never_dropped_and_the_error_says_what_to_do(
    status: int, words: str, about_tools: bool
) -> None:
    with FakeServer([error(status, words)]) as server:
        with pytest.raises(openai.APIStatusError) as caught:
            ask(model_for(server), False, HELLO, [TOOL])
        assert len(server.requests) == 1
    assert ("without them" in "".join(getattr(caught.value, "__notes__", []))) is about_tools


@pytest.mark.parametrize("field", ["parallel_tool_calls", "tool_choice"])
def test_settings_about_tools_are_left_out_and_the_tools_stay(field: str) -> None:
    value = {"parallel_tool_calls": False, "tool_choice": "auto"}[field]
    with FakeServer(refusing(field)) as server:
        model = model_for(server, settings=ModelSettings(**{field: value}))
        assert ask(model, False, HELLO, [TOOL]).content == "Hello"
        assert [field in sent for sent in keys(server)] == [True, False]
        assert all("tools" in sent for sent in keys(server))


def test_a_forced_choice_ends_when_tools_have_answered() -> None:
    with FakeServer([says("a"), says("b"), says("c")]) as server:
        model = model_for(server, tool_choice="required")
        ask(model, False, HELLO, [TOOL])
        ask(model, False, LOOP, [TOOL])
        ask(model, False, HELLO)
        chosen = [request.body.get("tool_choice") for request in server.requests]
        assert chosen == ["required", "auto", None]


def test_calls_side_by_side_adapt_each_for_itself_and_remember_once() -> None:
    with FakeServer(refusing("seed")) as server:
        model = model_for(server, seed=1)

        async def main() -> None:
            answers = await asyncio.gather(*(model.complete(HELLO) for _ in range(8)))
            assert {answer.content for answer in answers} == {"Hello"}
            before = len(server.requests)
            await asked(model, False)
            assert len(server.requests) == before + 1

        asyncio.run(main())


def test_the_body_of_a_plain_text_error_is_read_too() -> None:
    def reply(request: Request) -> Any:
        return (
            Reply(400, {"Content-Type": "text/plain"}, "bad field: seed")
            if "seed" in request.body
            else "Hello"
        )

    with FakeServer(reply) as server:
        assert ask(model_for(server, seed=1)).content == "Hello"
