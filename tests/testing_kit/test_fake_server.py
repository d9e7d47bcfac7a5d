"""The fake server speaks the dialect to the real client, and lets no illegal request pass."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from agentor.engine.events import Usage
from agentor.testing import FakeServer, Gate, Reply, calls, faults, says

Connect = Callable[[FakeServer], Any]

ASKED: list[Any] = [{"role": "user", "content": "How is London?"}]
NO_CONTENT: list[Any] = [{"role": "user", "content": None}]
LEGAL = json.dumps({"model": "test-model", "messages": ASKED})


def address(server: FakeServer) -> tuple[str, int]:
    parts = urlsplit(server.base_url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def test_an_unstreamed_text_is_read_as_scripted(client_of: Connect) -> None:
    with FakeServer([says("Sunny. ☀", reasoning="hm", usage=Usage(3, 2, 5, 1, 1))]) as server:
        got = client_of(server).whole()
    (choice,) = got.choices
    assert (choice.message.content, choice.finish_reason) == ("Sunny. ☀", "stop")
    assert choice.message.reasoning_content == "hm"
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (
        3,
        2,
        5,
    )
    assert got.usage.prompt_tokens_details.cached_tokens == 1
    assert got.usage.completion_tokens_details.reasoning_tokens == 1


def test_an_unstreamed_call_is_read_as_scripted(client_of: Connect) -> None:
    with FakeServer(
        [calls(("look", {"city": "Åbo"}), ("now", {}, "mine"), text="Wait.")]
    ) as server:
        (choice,) = client_of(server).whole().choices
    made = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    assert made == [("call_1", "look", '{"city": "Åbo"}'), ("mine", "now", "{}")]
    assert (choice.message.content, choice.finish_reason) == ("Wait.", "tool_calls")


@pytest.mark.parametrize("chunk_size", [None, 1, 4, 1000])
def test_a_streamed_text_is_read_as_scripted(client_of: Connect, chunk_size: int | None) -> None:
    reply = says("Sunny, with a ☀.", reasoning="Let me see", chunk_size=chunk_size)
    with FakeServer([reply]) as server:
        *chunks, last = client_of(server).chunks()
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Sunny, with a ☀."
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "Let me see"
    assert [c.choices[0].finish_reason for c in chunks][-2:] == [None, "stop"]
    assert (last.choices, last.usage.total_tokens) == ([], 15)


def test_a_streamed_call_is_read_as_scripted(client_of: Connect) -> None:
    reply = calls(("look", {"city": "London"}), ("now", {}), chunk_size=3)
    with FakeServer([reply]) as server:
        chunks = client_of(server).chunks()
    pieces = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or ()]
    assert [(p.index, p.id, p.function.name) for p in pieces if p.id] == [
        (0, "call_1", "look"),
        (1, "call_2", "now"),
    ]
    arguments = ["".join(p.function.arguments for p in pieces if p.index == i) for i in (0, 1)]
    assert arguments == ['{"city": "London"}', "{}"]
    assert len(pieces) > 4


def test_usage_is_streamed_only_to_those_who_ask_for_it(client_of: Connect) -> None:
    with FakeServer(["one"]) as server:
        chunks = list(client_of(server).whole(stream=True))
    assert [chunk.usage for chunk in chunks if chunk.usage] == []


def test_a_provider_that_does_not_count_sends_no_usage(client_of: Connect) -> None:
    with FakeServer([says("one", usage=None)] * 2) as server:
        assert client_of(server).whole().usage is None
        assert not [chunk.usage for chunk in client_of(server).chunks() if chunk.usage]


def test_provider_fields_are_part_of_the_message(client_of: Connect) -> None:
    with FakeServer([says("a", reasoning_details=[1])] * 2) as server:
        whole = client_of(server).whole().choices[0].message
        first = client_of(server).chunks()[0].choices[0].delta
    assert whole.reasoning_details == first.reasoning_details == [1]


def test_the_models_are_listed(client_of: Connect) -> None:
    with FakeServer(models=["small", "large"]) as server:
        assert [model.id for model in client_of(server).api.models.list()] == ["small", "large"]


def test_one_connection_serves_many_requests() -> None:
    with FakeServer(lambda request: str(request.number)) as server:
        connection = http.client.HTTPConnection(*address(server))
        for number in ("1", "2", "3"):
            connection.request("POST", "/v1/chat/completions", LEGAL)
            sock = connection.sock
            answer = json.loads(connection.getresponse().read())
            assert answer["choices"][0]["message"]["content"] == number
            assert connection.sock is sock
        connection.close()


def test_requests_are_recorded_with_their_headers(client_of: Connect) -> None:
    with FakeServer(["one"]) as server:
        client_of(server).whole(extra_headers={"X-Team": "blue"})
    (request,) = server.requests
    assert (request.messages, request.turn, request.stream) == (ASKED, 0, False)
    assert request.headers["x-team"] == "blue"
    assert request.headers["authorization"] == "Bearer test"
    assert json.loads(request.raw) == request.body
    assert (request.finished, request.disconnected, request.tools) == (True, False, None)


def test_a_function_of_the_request_answers_all(client_of: Connect) -> None:
    with FakeServer(lambda request: f"You said {request.messages[-1]['content']}") as server:
        text = client_of(server).whole().choices[0].message.content
    assert text == "You said How is London?"


def test_by_turn_reads_its_place_off_the_request(client_of: Connect) -> None:
    later = [*ASKED, {"role": "assistant", "content": "one"}, *ASKED]
    with FakeServer.by_turn(["one", lambda request: f"turn {request.turn}"]) as server:
        client = client_of(server)
        texts = [client.whole(m).choices[0].message.content for m in (later, ASKED, ASKED)]
    assert texts == ["turn 1", "one", "one"]


def test_replies_may_be_added_while_it_runs(client_of: Connect) -> None:
    with FakeServer(["one"]) as server:
        server.add("two", lambda request: "three")
        assert server.left == 3
        texts = [client_of(server).whole().choices[0].message.content for _ in range(3)]
    assert (texts, server.left) == (["one", "two", "three"], 0)
    with pytest.raises(TypeError, match="no list to add to"):
        FakeServer(lambda request: "x").add("one")


# -- strictness


def test_a_breach_is_answered_400_and_fails_the_block(client_of: Connect) -> None:
    server = FakeServer(["one"])
    with pytest.raises(AssertionError, match=r"request 1: messages\[0\].content: null"):
        refused(client_of, server, NO_CONTENT, r"messages\[0\].content: null")
    assert (server.left, len(server.breaches)) == (1, 1)


def refused(connect: Connect, server: FakeServer, messages: list[Any], told: str) -> None:
    """Ask once and survive the 400, as an application might that swallows errors."""
    with server, pytest.raises(openai.BadRequestError, match=told):
        connect(server).whole(messages)


def test_a_breach_is_noted_on_the_exception_that_came_of_it(client_of: Connect) -> None:
    with pytest.raises(openai.BadRequestError) as caught, FakeServer(["one"]) as server:
        client_of(server).whole(NO_CONTENT)
    assert "messages[0].content: null" in caught.value.__notes__[0]


def test_a_lenient_server_records_breaches_and_goes_on(client_of: Connect) -> None:
    with FakeServer(["one"], strict=False) as server:
        with pytest.raises(openai.BadRequestError):
            client_of(server).whole([])
        assert client_of(server).whole().choices[0].message.content == "one"
    assert server.breaches == ["request 1: messages: missing or empty"]
    assert server.requests[0].breaches == ["messages: missing or empty"]


def test_a_server_that_does_not_check_answers_anything(client_of: Connect) -> None:
    with FakeServer(["one"], check=False) as server:
        assert client_of(server).whole([]).choices[0].message.content == "one"
    assert server.breaches == []


@pytest.mark.parametrize("raw", ["7", "[1]", "{}", '{"messages": 1}', '{"messages": [1, null]}'])
def test_a_server_that_does_not_check_survives_junk(client_of: Connect, raw: str) -> None:
    with FakeServer(["one"], check=False) as server:
        status, _, body = client_of(server).post(raw)
    assert (status, server.requests[0].tools) == (200, None)
    assert json.loads(body)["choices"][0]["message"]["content"] == "one"


def test_further_keys_may_be_allowed(client_of: Connect) -> None:
    with FakeServer(["one"], allow=["draft"]) as server:
        assert client_of(server).whole(extra_body={"draft": 1}).choices[0].message.content == "one"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "not strict JSON"),
        (b"{'model': 1}", "not strict JSON"),
        (b'{"model": "a", "model": "b", "messages": []}', "key 'model' given twice"),
        (b'{"model": NaN}', "NaN is not JSON"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (b'{"model": "\\ud800"}', "lone surrogate"),
        (b"[" * 100_000, "nested deeper"),
        (b"[]", "list, not an object"),
    ],
)
def test_a_body_that_is_not_strict_json_is_a_breach(
    client_of: Connect, raw: bytes, told: str
) -> None:
    with FakeServer(["one"], strict=False) as server:
        status, _, body = client_of(server).post(raw)
    assert status == 400
    assert told in server.breaches[0]
    assert told in json.loads(body)["error"]["message"]


def test_the_end_of_the_script_is_told_and_fails_the_block(client_of: Connect) -> None:
    with pytest.raises(AssertionError, match="the script has 0 replies and this is request 1"):
        refused(client_of, FakeServer([]), ASKED, "the script has 0 replies")


@pytest.mark.parametrize("reply", [7, None, {"a": 1}, lambda request: 1 / 0])
def test_a_reply_that_cannot_be_sent_is_told_and_fails_the_block(
    client_of: Connect, reply: Any
) -> None:
    with pytest.raises(AssertionError, match=r"request 1: (TypeError|ZeroDivisionError)"):
        refused(client_of, FakeServer([reply]), ASKED, "the script of the fake server")


def test_a_server_may_refuse_what_is_legal(client_of: Connect) -> None:
    thoughtful = [
        *ASKED,
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        *ASKED,
    ]
    with FakeServer(["one"], refuses=["stream_options", "reasoning_content"]) as server:
        client = client_of(server)
        with pytest.raises(openai.BadRequestError, match="stream_options") as caught:
            client.chunks()
        assert caught.value.param == "stream_options"
        with pytest.raises(openai.BadRequestError, match="reasoning_content"):
            client.whole(thoughtful)
        assert client.whole().choices[0].message.content == "one"


def test_a_wrong_key_is_a_401(client_of: Connect) -> None:
    with FakeServer(["one"], api_key="right") as server:
        client = client_of(server)
        with pytest.raises(openai.AuthenticationError):
            client.whole()
        client.api = client.api.with_options(api_key="right")
        assert client.whole().choices[0].message.content == "one"


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 405), ("/v1/embeddings", 404), ("/", 404)]
)
def test_other_paths_are_refused(client_of: Connect, path: str, status: int) -> None:
    with FakeServer() as server:
        assert client_of(server).post("{}", path)[0] == status


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"X" * 70_000,
    ],
)
def test_what_is_not_http_is_answered_400(sent: bytes) -> None:
    with FakeServer() as server, socket.create_connection(address(server), 30) as sock:
        sock.sendall(sent)
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")


# -- life


def test_requests_side_by_side_are_answered_side_by_side(client_of: Connect) -> None:
    gate = Gate()
    with FakeServer([faults.held("first", gate), "second"]) as server:
        client, texts = client_of(server), []

        def ask() -> None:
            texts.append(client.whole().choices[0].message.content)

        waiting = threading.Thread(target=ask)
        waiting.start()
        gate.wait_until_reached()
        ask()
        gate.open()
        waiting.join()
    assert texts == ["second", "first"]


def test_a_client_that_leaves_is_noticed(client_of: Connect) -> None:
    gate = Gate()
    with FakeServer([faults.held("one two", gate, after_chunks=2)]) as server:
        stream = client_of(server).whole(stream=True)
        next(iter(stream))
        gate.wait_until_reached()
        stream.close()
        server.wait_for(lambda server: server.requests[0].finished)
    assert server.requests[0].disconnected


def test_closing_lets_go_of_whoever_waits(client_of: Connect) -> None:
    gate = Gate()
    server = FakeServer([faults.held("one", gate)]).start()
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client_of(server).whole()
        except openai.APIConnectionError as error:
            errors.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    gate.wait_until_reached()
    server.close()
    waiting.join(30)
    assert len(errors) == 1
    server.close()
    gate.open()
    assert "fake-server" not in [thread.name for thread in threading.enumerate()]


def test_waiting_for_what_does_not_happen_is_told() -> None:
    with FakeServer() as server, pytest.raises(TimeoutError, match="0 requests have come"):
        server.wait_for(lambda server: len(server.requests) == 1, timeout_s=0)
    with pytest.raises(TimeoutError, match="no reply came to this gate"):
        Gate().wait_until_reached(timeout_s=0)


def test_two_servers_have_two_addresses(client_of: Connect) -> None:
    with FakeServer(["one"]) as first, FakeServer(["two"]) as second:
        texts = [client_of(s).whole().choices[0].message.content for s in (first, second)]
    assert texts == ["one", "two"]


def test_a_raw_reply_is_sent_as_it_stands(client_of: Connect) -> None:
    with FakeServer([Reply(418, {"X-Pot": "tea", "Content-Type": None}, b"short\0")]) as server:
        status, headers, body = client_of(server).post(LEGAL)
    assert (status, body, headers) == (418, b"short\0", {"X-Pot": "tea", "Content-Length": "6"})


def test_the_module_runs_as_a_stand_in_that_tells_the_weather(
    api: openai.OpenAI,
) -> None:
    command = [sys.executable, "-m", "agentor.testing.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", base_url)
        client = api.with_options(base_url=base_url).chat.completions
        messages: list[Any] = [{"role": "user", "content": "How is the weather in New York?"}]
        untold = client.create(model="m", messages=messages).choices[0].message
        assert not untold.tool_calls  # none was offered
        assert "get_weather" in str(untold.content)
        city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        tool: Any = {"name": "get_weather", "parameters": city}
        asked = (
            client.create(
                model="m", messages=messages, tools=[{"type": "function", "function": tool}]
            )
            .choices[0]
            .message
        )
        (call,) = asked.tool_calls or ()
        assert json.loads(call.function.arguments) == {"city": "New York"}  # type: ignore[union-attr]
        messages += [
            asked.to_dict() | {"content": ""},
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        told = client.create(model="m", messages=messages).choices[0].message.content
        assert told == "Here is the weather: rain"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
