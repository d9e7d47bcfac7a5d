"""Each fault reaches the client as it does in life: what the real package makes of it is written down here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from agentor.testing import FakeServer, Gate, Reply, calls, chunk, deltas, faults, says, sse

Connect = Callable[[FakeServer], Any]
TEXT = "Sunny, with a ☀ over London."


def streamed(client_of: Connect, reply: Any) -> str:
    with FakeServer([reply]) as server:
        return client_of(server).text()


def whole(client_of: Connect, reply: Any) -> Any:
    with FakeServer([reply]) as server:
        return client_of(server).whole()


def raw(client_of: Connect, reply: Any, stream: bool = False) -> tuple[int, dict[str, str], bytes]:
    messages = [{"role": "user", "content": "hello"}]
    body = json.dumps({"model": "test-model", "messages": messages, "stream": stream})
    with FakeServer([reply]) as server:
        return client_of(server).post(body)


HARMLESS: dict[str, Callable[[Any], Any]] = {
    "gzip": faults.gzipped,
    "CR LF": faults.crlf,
    "comments": faults.with_comments,
    "[DONE] missing": faults.without_done,
    "[DONE] twice": faults.done_twice,
    "until close": faults.until_close,
    "byte by byte": lambda reply: faults.sliced(reply, every=1),
    "gzip byte by byte": lambda reply: faults.sliced(faults.gzipped(reply), every=1),
    "CR LF byte by byte": lambda reply: faults.sliced(faults.crlf(reply), every=1),
    "wrong content type": lambda reply: faults.with_headers(reply, content_type="text/plain"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_fault_changes_no_streamed_text(client_of: Connect, name: str) -> None:
    assert streamed(client_of, HARMLESS[name](TEXT)) == TEXT


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_fault_changes_no_whole_text(client_of: Connect, name: str) -> None:
    assert whole(client_of, HARMLESS[name](TEXT)).choices[0].message.content == TEXT


def test_a_boundary_at_any_byte_changes_no_text(client_of: Connect) -> None:
    size = len(sse(chunk({"content": "é☀"})).content)
    replies = [faults.sliced(deltas({"content": "é☀"}), at=[n]) for n in range(1, size)]
    with FakeServer(replies) as server:
        texts = {client_of(server).text() for _ in replies}
    assert texts == {"é☀"}


def test_slices_are_where_they_were_asked_for() -> None:
    change = faults.sliced(None, at=[2, 5, 99]).change
    assert change(Reply(body=b"abcdefg")).parts == (b"ab", b"cde", b"fg")
    gate = Gate()
    assert change(Reply(chunks=[b"a", b"bcd", gate, b"efg"])).parts == (
        b"ab",
        b"cd",
        gate,
        b"e",
        b"fg",
    )


@pytest.mark.parametrize("after", [{}, {"after_bytes": 0}, {"after_bytes": 20}])
def test_a_cut_connection_is_an_error_of_the_transport(client_of: Connect, after: Any) -> None:
    for fault in (faults.cut, faults.reset):
        with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
            whole(client_of, fault(TEXT, **after))


@pytest.mark.parametrize("fault", [faults.cut, faults.reset])
def test_a_stream_cut_in_the_middle_gives_what_came_and_then_fails(
    client_of: Connect, fault: Any
) -> None:
    with FakeServer([fault(TEXT, after_chunks=3)]) as server:
        stream = iter(client_of(server).whole(stream=True))
        pieces = [next(stream).choices[0].delta.content for _ in range(3)]
        with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
            next(stream)
    assert pieces == ["", "Sunny,", " with"]


def test_a_truncated_stream_ends_for_the_client_without_any_error(client_of: Connect) -> None:
    assert streamed(client_of, faults.truncated(TEXT, after_chunks=3)) == "Sunny, with"


def test_a_truncated_body_is_no_json(client_of: Connect) -> None:
    with pytest.raises(json.JSONDecodeError):
        whole(client_of, faults.truncated(TEXT, after_bytes=50))


def test_a_stream_held_at_a_gate_goes_on_when_it_opens(client_of: Connect) -> None:
    gate = Gate()
    with FakeServer([faults.held(TEXT, gate, after_chunks=2)]) as server:
        stream = iter(client_of(server).whole(stream=True))
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "Sunny,"]
        gate.wait_until_reached()
        assert not server.requests[0].finished
        gate.open()
        rest = "".join(c.choices[0].delta.content or "" for c in stream)
    assert rest == TEXT.removeprefix("Sunny,")


def test_an_open_gate_holds_nobody(client_of: Connect) -> None:
    gate = Gate()
    gate.open()
    assert streamed(client_of, faults.held(TEXT, gate, after_bytes=7)) == TEXT
    assert gate.reached


def test_a_silent_server_is_a_timeout_for_the_client(client_of: Connect) -> None:
    with FakeServer([faults.held(TEXT, Gate())]) as server:
        with pytest.raises(openai.APITimeoutError):
            client_of(server).whole(timeout=httpx2.Timeout(30, read=0.05))
        server.wait_for(lambda server: server.requests[0].finished)
    assert server.requests[0].disconnected


def test_faults_nest(client_of: Connect) -> None:
    gate = Gate()
    gate.open()
    reply = faults.held(
        faults.sliced(faults.crlf(calls(("look", {}))), every=5), gate, after_bytes=11
    )
    with FakeServer([reply]) as server:
        chunks = client_of(server).chunks()
    assert chunks[1].choices[0].delta.tool_calls[0].function.name == "look"


@pytest.mark.parametrize("named", [True, False])
def test_an_error_event_in_a_stream_is_an_api_error(client_of: Connect, named: bool) -> None:
    with pytest.raises(openai.APIError, match="overloaded"):
        streamed(client_of, faults.error_event(TEXT, "overloaded", named=named))


def test_a_ping_event_reaches_the_client_as_a_chunk_without_choices(client_of: Connect) -> None:
    with FakeServer([faults.with_pings(TEXT)]) as server:
        chunks = client_of(server).chunks()
    assert chunks[0].choices is None
    assert chunks[1].choices[0].delta.content == ""


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (faults.rate_limited(), openai.RateLimitError),
        (faults.server_error(), openai.InternalServerError),
        (faults.server_error(503), openai.InternalServerError),
        (faults.unauthorized(), openai.AuthenticationError),
        (faults.html(502), openai.InternalServerError),
        (faults.with_status(TEXT, 404), openai.NotFoundError),
    ],
)
def test_a_status_is_an_error_of_its_kind(client_of: Connect, reply: Any, error: Any) -> None:
    with pytest.raises(error):
        whole(client_of, reply)


def test_the_client_retries_what_the_server_asks_it_to(client_of: Connect) -> None:
    with FakeServer([faults.rate_limited("0.001"), faults.rate_limited("0.002"), TEXT]) as server:
        client = client_of(server)
        client.api = client.api.with_options(max_retries=2)
        assert client.whole().choices[0].message.content == TEXT
    retries = [request.headers["x-stainless-retry-count"] for request in server.requests]
    assert retries == ["0", "1", "2"]


def test_html_with_200_is_a_string_to_the_client(client_of: Connect) -> None:
    assert whole(client_of, faults.html()).startswith("<!doctype html>")


def test_an_error_body_with_200_has_no_choices_for_the_client(client_of: Connect) -> None:
    assert whole(client_of, faults.error_with_200()).choices is None


def test_a_stream_written_delta_by_delta_is_sent_as_it_stands(client_of: Connect) -> None:
    odd = {"tool_calls": [{"function": {"name": "look", "arguments": {"a": 1}}}]}
    with FakeServer([deltas(odd, {}, finish_reason=None, done=False)]) as server:
        chunks = client_of(server).chunks()
    assert [c.choices[0].finish_reason for c in chunks] == [None, None]
    assert chunks[0].choices[0].delta.tool_calls[0].function.arguments == {"a": 1}


def test_the_bytes_are_what_the_fault_says(client_of: Connect) -> None:
    _, headers, body = raw(client_of, faults.gzipped(says("a")))
    assert headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["choices"][0]["message"]["content"] == "a"
    _, _, body = raw(client_of, faults.crlf(faults.with_comments(sse({"a": 1}), "hi")), stream=True)
    assert body == b': hi\r\n\r\ndata: {"a": 1}\r\n\r\n: hi\r\n\r\ndata: [DONE]\r\n\r\n'
    _, headers, _ = raw(client_of, faults.rate_limited("Wed, 01 Jan 2031 00:00:00 GMT"))
    assert headers["Retry-After"].startswith("Wed,")
    _, headers, body = raw(client_of, faults.until_close(sse("x")))
    assert (headers["Connection"], body) == ("close", b"data: x\n\ndata: [DONE]\n\n")


def test_a_reply_has_a_body_or_chunks() -> None:
    with pytest.raises(ValueError, match="not both"):
        Reply(body="a", chunks=["b"])
