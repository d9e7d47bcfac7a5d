"""A reply that was cut or garbled is never taken for one: asked for again, or an error that says what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import openai
import pytest
from model_asking import HELLO, InstantClock, ask, asked, model_for, streamed

from agentor.engine import exchange
from agentor.engine.models import ChatCompletionsModel, ModelResponse, is_unavailable
from agentor.engine.responses import ToolCall
from agentor.errors import ModelError
from agentor.testing import FakeServer, Gate, Reply, calls, faults, json_reply, says, sse

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SOON = {"retry_after_ms": "1"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def small(finish: str | None = "stop", **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def failure(model: ChatCompletionsModel, stream: bool) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(model, stream)
    return caught.value


# -- what is as good as it should be


FINE: dict[str, Any] = {
    "crlf": faults.crlf,
    "comments": faults.with_comments,
    "pings": faults.with_pings,
    "no DONE": faults.without_done,
    "DONE twice": faults.done_twice,
    "gzip": faults.gzipped,
    "until close": faults.until_close,
    "byte by byte": lambda reply: faults.sliced(reply, every=1),
    "text/plain": lambda reply: faults.with_headers(reply, content_type="text/plain"),
    "html type": lambda reply: faults.with_headers(reply, content_type="text/html"),
    "no type": lambda reply: faults.with_headers(reply, content_type=None),
    "gzip in crlf": lambda reply: faults.gzipped(faults.crlf(reply)),
}


@both_ways
@pytest.mark.parametrize("change", FINE.values(), ids=FINE)
def test_odd_but_whole_replies_are_read_as_they_are(change: Any, stream: bool) -> None:
    answer = calls(("get_weather", {"city": "Zürich 🌞"}, "a"), text="Let me see.", reasoning="Hm.")
    with FakeServer([change(answer)]) as server:
        response = ask(model_for(server), stream, HELLO, [TOOL])
    assert response.content == "Let me see."
    assert [(c.id, c.name, json.loads(c.arguments)) for c in response.tool_calls] == [
        ("a", "get_weather", {"city": "Zürich 🌞"})
    ]
    assert response.reasoning == "Hm."
    assert response.finish_reason == "tool_calls"
    assert response.usage.total_tokens == 15


def test_a_stream_is_read_where_a_whole_reply_was_asked_for() -> None:
    with FakeServer([sse(small(None, content="Hello"), small())]) as server:
        assert ask(model_for(server)).content == "Hello"


def test_a_whole_reply_is_read_where_a_stream_was_asked_for_and_comes_as_one_chunk() -> None:
    body = {"choices": [{"message": {"content": "Hello"}}]}
    with FakeServer([json_reply(body)]) as server:
        chunks, whole = asyncio.run(streamed(model_for(server)))
    assert [piece.delta for piece in chunks] == ["Hello"]
    assert (whole.content, whole.finish_reason) == ("Hello", None)


def test_events_without_blank_lines_between_them_are_read() -> None:
    lines = [json.dumps(small(None, content="He")), json.dumps(small(content="llo")), "[DONE]"]
    body = "".join(f"data: {line}\n" for line in lines)
    with FakeServer(
        [Reply(headers={"Content-Type": "text/event-stream"}, chunks=[body])]
    ) as server:
        assert ask(model_for(server), True).content == "Hello"


def test_an_unstreamed_reply_is_whole_without_a_finish_reason() -> None:
    made = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    body = {
        "choices": [{"message": {"content": None, "tool_calls": [made]}, "finish_reason": None}]
    }
    with FakeServer([json_reply(body)]) as server:
        response = ask(model_for(server), False, HELLO, [TOOL])
    assert response.tool_calls == [ToolCall("a", "get_weather", "{}")]
    assert response.finish_reason is None


@pytest.mark.parametrize("reason", ["length", "content_filter", "stop", "eos"])
@both_ways
def test_a_finish_reason_is_reported_as_it_came(reason: str, stream: bool) -> None:
    with FakeServer([says("Hel", finish_reason=reason)]) as server:
        response = ask(model_for(server), stream)
    assert (response.content, response.finish_reason) == ("Hel", reason)


def test_a_connection_that_breaks_after_the_finish_has_lost_nothing_but_the_rest() -> None:
    reply = faults.cut(sse(small(None, content="Hello"), small(), {"usage": {}}), after_chunks=2)
    with FakeServer([reply]) as server:
        assert ask(model_for(server), True).content == "Hello"


# -- what is broken


def error_chunk(status: int | None) -> dict[str, Any]:
    return {"error": {"message": "overloaded", "code": status}}


BROKEN: dict[str, Any] = {
    "html with 200": faults.html(),
    "an error body with 200": faults.error_with_200(),
    "an empty body": Reply(body=b""),
    "white space": Reply(body=b"\n \n"),
    "half an object": Reply(body=b'{"choices": [{"message": {"content": "Hel'),
    "a list": json_reply([{"choices": []}]),
    "choices null": json_reply({"choices": None}),
    "choices empty": json_reply({"choices": []}),
    "choices missing": json_reply({"id": "x", "object": "chat.completion"}),
    "no message": json_reply({"choices": [{"finish_reason": "stop"}]}),
    "choices a string": json_reply({"choices": "none"}),
    "too deep": Reply(body=b'{"choices":' * 100_000),
    "finished with an error": says("Hel", finish_reason="error"),
    "an error in the choice": json_reply(
        {"choices": [{"error": {"code": 502}, "message": {"content": ""}}]}
    ),
    "an object that is an error": json_reply({"object": "error", "message": "no", "code": 500}),
    "only DONE": sse(),
    "no finish before DONE": sse(small(None, content="Hello")),
    "no finish": sse(small(None, content="Hello"), done=False),
    "a line that is not JSON": sse('{"choices": [', small()),
    "an error in a chunk": sse(small(None, content="Hello"), error_chunk(None)),
    "an error event": faults.error_event(sse(small(None, content="Hello"), small())),
    "an error event in plain words": Reply(chunks=["event: error\ndata: out of memory\n\n"]),
    "gzip that is none": faults.with_headers(says("Hello"), content_encoding="gzip"),
}


@both_ways
@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_what_is_no_reply_is_a_retryable_error(reply: Any, stream: bool) -> None:
    with FakeServer([reply]) as server:
        error = failure(model_for(server), stream)
    assert error.retryable
    assert is_unavailable(error)
    assert "test-model" in str(error)
    assert server.base_url.split("/")[2] in str(error)


@both_ways
@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_what_is_no_reply_is_asked_for_again(
    reply: Any, stream: bool, instant_clock: InstantClock
) -> None:
    with FakeServer([reply, says("Hello")]) as server:
        model = model_for(server, max_retries=1)
        response = asyncio.run(_until_shown(model, stream))
        if response is not None:
            assert response.content == "Hello"
            assert len(server.requests) == 2
            assert instant_clock.slept == [0.5]
        else:
            assert len(server.requests) == 1


async def _until_shown(model: ChatCompletionsModel, stream: bool) -> ModelResponse | None:
    """The reply; None if it broke after a part of it had been shown, which is the end of it."""
    if not stream:
        return await asked(model, False)
    shown = ""
    try:
        async for piece in model.stream(HELLO):
            if piece.final is not None:
                return piece.final
            shown += piece.delta or ""
    except ModelError:
        assert shown in ("Hello", "Hel")
        return None
    finally:
        await model.aclose()
    raise AssertionError("a stream ends with the whole reply or an error")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404])
@both_ways
def test_an_error_in_a_body_that_asking_again_cannot_change_is_final(
    status: int, stream: bool
) -> None:
    with FakeServer([json_reply(error_chunk(status))]) as server:
        error = failure(model_for(server, max_retries=2), stream)
    assert not error.retryable
    assert "overloaded" in str(error)


def test_the_error_tells_the_first_200_characters_that_were_seen() -> None:
    page = "<html>" + "x" * 1000
    with FakeServer([Reply(200, {"Content-Type": "text/html"}, page)]) as server:
        told = str(failure(model_for(server), False))
    assert "<html>" in told
    assert "1006 bytes" in told
    assert 100 < told.count("x") < 200


@both_ways
def test_the_retries_of_a_call_are_bounded_whatever_breaks(
    stream: bool, instant_clock: InstantClock
) -> None:
    busy = faults.with_headers(faults.server_error(503), **SOON)
    with FakeServer([faults.html(), busy, Reply(body=b""), says("never asked for")]) as server:
        failure(model_for(server, max_retries=2), stream)
        assert len(server.requests) == 3
        assert server.left == 1


def test_waits_between_attempts_grow_and_are_bounded(instant_clock: InstantClock) -> None:
    with FakeServer([faults.html()] * 8) as server:
        failure(model_for(server, max_retries=7), False)
    assert instant_clock.slept == [0.5, 1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("after", "slept"),
    [("7", [7.0]), ("0", [0.0]), ("soon", [0.5]), ("Wed, 21 Oct 2015 07:28:00 GMT", [0.0])],
)
def test_a_broken_reply_is_asked_for_again_when_the_server_says(
    after: str, slept: list[float], instant_clock: InstantClock
) -> None:
    broken = faults.with_headers(faults.error_with_200(), retry_after=after)
    with FakeServer([broken, says("Hello")]) as server:
        assert ask(model_for(server, max_retries=1)).content == "Hello"
    assert instant_clock.slept == slept


def test_nobody_waits_for_an_hour(instant_clock: InstantClock) -> None:
    broken = faults.with_headers(faults.error_with_200(), retry_after="3600")
    with FakeServer([broken]) as server:
        failure(model_for(server, max_retries=1), False)
    assert instant_clock.slept == []


# -- HTTP errors: the openai package's own exceptions


@both_ways
@pytest.mark.parametrize(
    "reply", [faults.rate_limited(None), faults.server_error(500), faults.server_error(503)]
)
def test_a_busy_server_is_asked_again(reply: Any, stream: bool) -> None:
    with FakeServer([faults.with_headers(reply, **SOON), says("Hello")]) as server:
        assert ask(model_for(server, max_retries=1), stream).content == "Hello"
        assert len(server.requests) == 2


HTTP_ERRORS: list[tuple[Any, type[Exception], bool]] = [
    (faults.unauthorized(), openai.AuthenticationError, False),
    (faults.rate_limited(), openai.RateLimitError, True),
    (faults.server_error(500), openai.InternalServerError, True),
    (faults.html(502), openai.InternalServerError, True),
    (Reply(404, body=b"nothing here"), openai.NotFoundError, False),
    (faults.cut(""), openai.APIConnectionError, True),
    (faults.reset(""), openai.APIConnectionError, True),
]


@both_ways
@pytest.mark.parametrize(("reply", "kind", "unavailable"), HTTP_ERRORS)
def test_exceptions_of_the_openai_package_reach_the_caller_as_they_are(
    reply: Any, kind: type[Exception], unavailable: bool, stream: bool
) -> None:
    with FakeServer([reply]) as server, pytest.raises(kind) as caught:
        ask(model_for(server), stream)
    assert is_unavailable(caught.value) is unavailable


def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    with FakeServer() as server:
        model = model_for(server)
    with pytest.raises(openai.APIConnectionError) as caught:
        ask(model)
    assert is_unavailable(caught.value)
    assert caught.value.__notes__ == [f"The server is {model.source}."]


# -- cut anywhere


TINY = (
    small(None, role="assistant", content="Grüße"),
    small(
        None, tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}]
    ),
    small("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": " 1}"}}]),
)


def tiny_whole() -> Reply:
    made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "Grüße", "tool_calls": [made]}
    return json_reply({"choices": [{"message": message, "finish_reason": "tool_calls"}]})


ENDINGS = {"cut": faults.cut, "reset": faults.reset, "truncated": faults.truncated}


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_reply_cut_after_any_byte_is_whole_or_an_error(ending: str, stream: bool) -> None:
    whole = sse(*TINY) if stream else tiny_whole()
    size = len(whole.content)
    replies = [ENDINGS[ending](whole, after_bytes=n) for n in range(size + 1)]
    with FakeServer(replies) as server:
        outcomes = asyncio.run(_outcomes(model_for(server), stream, size + 1))
    complete = [isinstance(outcome, ModelResponse) for outcome in outcomes]
    assert complete[-1]
    assert complete == sorted(complete)  # errors first: once it is whole, it stays whole
    assert complete.count(True) < size / 4
    for outcome in outcomes:
        if isinstance(outcome, ModelResponse):
            assert outcome.content == "Grüße"
            assert outcome.tool_calls == [ToolCall("a", "f", '{"a": 1}')]
        else:
            assert is_unavailable(outcome)


async def _outcomes(model: ChatCompletionsModel, stream: bool, count: int) -> list[Any]:
    outcomes: list[Any] = []
    for _ in range(count):
        try:
            if stream:
                outcomes.append((await streamed(model))[1])
            else:
                outcomes.append(await model.complete(HELLO))
        except (ModelError, openai.APIConnectionError) as error:
            outcomes.append(error)
    await model.aclose()
    return outcomes


def test_a_reply_that_breaks_before_anything_was_shown_is_streamed_from_the_start() -> None:
    broken = faults.cut(sse(small(None, role="assistant"), small()), after_chunks=1)
    with FakeServer([broken, says("Hello there")]) as server:
        chunks, whole = asyncio.run(streamed(model_for(server, max_retries=1)))
    assert "".join(piece.delta or "" for piece in chunks) == whole.content == "Hello there"


# -- time


@both_ways
def test_silence_before_the_first_byte_ends_with_the_read_timeout(stream: bool) -> None:
    silent = FakeServer([faults.held(says("Hello"), Gate())])
    with silent as server, pytest.raises(openai.APITimeoutError) as caught:
        ask(model_for(server, read_timeout=0.05), stream)
    assert is_unavailable(caught.value)


@both_ways
def test_silence_in_the_middle_ends_with_the_read_timeout(stream: bool) -> None:
    with FakeServer([faults.held(says("Hello"), Gate(), after_bytes=9)]) as server:
        error = failure(model_for(server, read_timeout=0.05), stream)
    assert error.retryable
    assert "ReadTimeout" in str(error)


@both_ways
@pytest.mark.parametrize("place", [None, 9])
def test_a_call_ends_with_its_timeout_whatever_the_server_does(
    stream: bool, place: int | None
) -> None:
    with FakeServer([faults.held(says("Hello"), Gate(), after_bytes=place)]) as server:
        begin = time.monotonic()
        error = failure(model_for(server, timeout=0.1, read_timeout=30, max_retries=5), stream)
    assert time.monotonic() - begin < 5
    assert error.retryable
    assert "longer than 0.1 s" in str(error) or "ReadTimeout" in str(error)


def test_a_finished_reply_does_not_wait_for_a_server_that_keeps_the_line_open() -> None:
    gate = Gate()
    reply = faults.held(sse(small(content="Hello")), gate, after_chunks=2)  # after the [DONE]
    with FakeServer([reply]) as server:
        assert ask(model_for(server), True).content == "Hello"
        gate.wait_until_reached()


def test_a_finished_reply_waits_only_a_moment_for_its_usage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "_LINGER_S", 0.05)
    reply = faults.held(sse(small(content="Hello")), Gate(), after_chunks=1)  # before the [DONE]
    with FakeServer([reply]) as server:
        assert ask(model_for(server), True).content == "Hello"


async def _break_off(model: ChatCompletionsModel, how: str) -> None:
    stream = model.stream(HELLO)
    async with contextlib.aclosing(stream):
        async for piece in stream:
            assert piece.delta == "Hello"
            if how == "break":
                break
            if how == "cancel":
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                break
            raise KeyError("the reader failed")


@pytest.mark.parametrize("how", ["break", "cancel", "raise"])
def test_leaving_a_stream_closes_its_connection_at_once(how: str) -> None:
    reply = faults.held(says("Hello there"), Gate(), after_chunks=2)
    with FakeServer([reply]) as server:

        async def main() -> None:
            model = model_for(server)
            tasks = asyncio.all_tasks()
            with contextlib.suppress(KeyError):
                await _break_off(model, how)
            left = asyncio.to_thread(
                server.wait_for, lambda server: server.requests[0].disconnected, 10
            )
            await left
            for _ in range(5):  # httpx2 leaves a generator of its own to the event loop for a turn
                await asyncio.sleep(0)
            assert asyncio.all_tasks() == tasks

        asyncio.run(main())


def test_cancelling_a_call_wins_and_closes_the_connection() -> None:
    gate = Gate()
    with FakeServer([faults.held(says("Hello"), gate)]) as server:

        async def main() -> None:
            model = model_for(server, max_retries=3)
            call = asyncio.ensure_future(model.complete(HELLO))
            await asyncio.to_thread(gate.wait_until_reached)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(
                server.wait_for, lambda server: server.requests[0].disconnected, 10
            )
            assert len(server.requests) == 1

        asyncio.run(main())
