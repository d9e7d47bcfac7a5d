"""Keys and headers reach the server and nothing else: no error, no log, no repr, whoever echoes them."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from model_asking import HELLO, asked

from agentor import Agentor
from agentor.engine.models import ChatCompletionsModel, ModelSettings
from agentor.engine.redact import SECRETS, hide_in_error
from agentor.engine.result_text import ERROR_LIMIT
from agentor.engine.store import MemoryStore
from agentor.errors import ConfigError, ModelError
from agentor.testing import FakeServer, Reply, error, faults, json_reply, says, sse

KEY = "sk-canary-3f9a7c1e5b"
HEADER = "canary-header-8d2e"
PASSWORD = "canary-password-77b0"
ECHO = f"Incorrect API key provided: {KEY}, header {HEADER}"
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def every_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All loggers at DEBUG, those of openai, httpx2 and httpcore2 included."""
    with caplog.at_level(logging.DEBUG):
        yield caplog


REPLIES: dict[str, Any] = {
    "an answer": says("Hello"),
    "401 with the key": error(401, ECHO),
    "400 with the key": error(400, ECHO),
    "500 in html with the key": Reply(500, {"Content-Type": "text/html"}, f"<h1>{ECHO}</h1>"),
    "429 with the key": error(429, ECHO),
    "200 with the key in an error": json_reply({"error": {"message": ECHO}}),
    "200 with the key in html": Reply(200, {"Content-Type": "text/html"}, f"<h1>{ECHO}</h1>"),
    "the key in an error event": faults.error_event(sse({"choices": []}), ECHO),
    "the key in response headers": faults.with_headers(says("Hello"), x_echo=ECHO, set_cookie=KEY),
    "a cut reply": faults.cut(says("Hello"), after_bytes=5),
    "a dropped connection": faults.cut(""),
    "the key across the end of what is shown": Reply(200, body="x" * 190 + KEY),
}


@both_ways
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_no_error_and_no_log_tells_the_key(
    reply: Any, stream: bool, every_log: pytest.LogCaptureFixture
) -> None:
    told = ""
    with FakeServer([reply]) as server:
        host = server.base_url.removeprefix("http://")
        model = ChatCompletionsModel(
            "m",
            api_key=KEY,
            base_url=f"http://someone:{PASSWORD}@{host}",
            extra_headers={"X-Secret": HEADER},
            max_retries=0,
        )
        try:
            told += repr(asyncio.run(asked(model, stream)))
        except (ModelError, openai.OpenAIError) as caught:
            told += "".join(traceback.format_exception(caught))
            told += f"{caught!r} {getattr(caught, 'body', '')} {getattr(caught, 'message', '')}"
        sent = server.requests[0].headers if server.requests else {"x-secret": HEADER}
    assert sent["x-secret"] == HEADER
    told += repr(model) + repr(model.settings) + repr(vars(model))
    told += every_log.text + "".join(repr(vars(record)) for record in every_log.records)
    assert "httpcore2" in every_log.text  # the logs that could tell were really on
    for secret in (KEY, HEADER, PASSWORD, KEY[:12]):
        assert secret not in told


def test_a_client_of_ones_own_keeps_its_key_to_itself(every_log: pytest.LogCaptureFixture) -> None:
    key = "sk-canary-of-a-client-of-ones-own"
    with FakeServer([error(400, f"{key} is wrong")]) as server:

        async def main() -> None:
            async with openai.AsyncOpenAI(
                api_key=key, base_url=server.base_url, max_retries=0
            ) as client:
                await ChatCompletionsModel("m", client=client).complete(HELLO)

        with pytest.raises(openai.BadRequestError) as caught:
            asyncio.run(main())
    assert key not in "".join(traceback.format_exception(caught.value)) + every_log.text
    assert "is wrong" in str(caught.value)


def test_what_a_model_chooses_to_say_is_not_touched() -> None:
    with FakeServer([says(f"The word is {KEY}")]) as server:
        model = ChatCompletionsModel("m", api_key=KEY, base_url=server.base_url)
        assert asyncio.run(asked(model, True)).content == f"The word is {KEY}"


def test_names_of_headers_may_be_told_and_values_may_not() -> None:
    settings = ModelSettings(extra_headers={"X-Secret": HEADER})
    assert "X-Secret" in repr(settings)
    assert HEADER not in repr(settings)
    with pytest.raises(ConfigError) as caught:
        ModelSettings(extra_headers={"X-Secret": HEADER, "bad name": HEADER})
    assert HEADER not in str(caught.value)


def test_short_placeholders_are_no_secrets() -> None:
    ChatCompletionsModel("m", api_key="ollama", base_url="http://localhost:1/v1")
    assert SECRETS.hide("asked ollama") == "asked ollama"


class OfHeadersError(Exception):
    def __init__(self, headers: Any) -> None:
        self.headers = headers

    def __str__(self) -> str:
        return f"401 for {self.headers}"


class OfNoFieldError(Exception):
    """Says what stands in none of its attributes."""

    def __str__(self) -> str:
        return "x" * (ERROR_LIMIT - 30) + KEY


class WithoutArgsError(OfHeadersError):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise AttributeError


Pair = namedtuple("Pair", "name value")  # what is tested is one without types
TELLING: dict[str, Callable[[], BaseException]] = {
    "its headers": lambda: OfHeadersError({"Authorization": f"Bearer {KEY}"}),
    "headers as bytes": lambda: OfHeadersError([(b"authorization", f"Bearer {KEY}".encode())]),
    "headers and no arguments": lambda: WithoutArgsError({KEY}),
    "a named tuple": lambda: RuntimeError(Pair("auth", KEY)),
    "bytes that are no text": lambda: RuntimeError(bytearray(b"\xff" + KEY.encode())),
    "a file name": lambda: OSError(5, "x", KEY, None, KEY),
    "an error in its arguments": lambda: RuntimeError(OfHeadersError(KEY)),
    "an error of a group": lambda: ExceptionGroup("all", [OfHeadersError(frozenset({KEY}))]),
}


def _failed_run(error: BaseException) -> tuple[str, str]:
    """What is recorded of a run whose model raises the error, and what its caller is told."""

    class Model(ChatCompletionsModel):
        async def complete(self, *_: Any, **__: Any) -> Any:
            raise error

    store = MemoryStore()
    model = Model("m", api_key=KEY, base_url="http://localhost:1/v1")
    with pytest.raises(type(error)) as caught:
        Agentor("a", model=model, store=store).run("Hello", run_id="r")
    told = "".join(traceback.format_exception(caught.value, chain=False))
    return "".join(event.to_json() for event in store.load("r")), told


@pytest.mark.parametrize("error", TELLING.values(), ids=TELLING)
def test_no_log_and_no_caller_is_told_the_key_by_an_error_of_somebody_elses_model(
    error: Callable[[], BaseException],
) -> None:
    recorded, told = _failed_run(error())
    assert '"status":"failed"' in recorded
    assert KEY not in recorded + told


def test_a_key_that_an_error_says_and_nowhere_holds_is_in_no_log_also_not_a_part_of_it() -> None:
    recorded, _ = _failed_run(OfNoFieldError())
    assert '"status":"failed"' in recorded
    assert KEY[:6] not in recorded


def test_an_error_without_a_secret_stays_as_it_is() -> None:
    named, held = Pair("auth", ["none"]), {"a": [b"\xff", bytearray(b"b"), {1}]}
    error = RuntimeError(named, held)
    hide_in_error(error)
    assert error.args[0] is named
    assert error.args[1] is held
