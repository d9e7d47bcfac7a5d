"""The model itself: how it is made, what it sends, and how it lives with event loops."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
import threading
import types
from typing import Any

import openai
import pytest
from model_asking import HELLO, InstantClock, ask, asked, model_for, streamed

from agentor.engine.models import (
    ChatCompletionsModel,
    Model,
    ModelSettings,
    StreamingModel,
    as_model,
    is_unavailable,
)
from agentor.engine.responses import ModelResponse, StreamChunk, ToolCall
from agentor.errors import ConfigError, ModelError
from agentor.testing import FakeServer, Gate, ScriptedModel, calls, error, faults, says

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does.",
        "parameters": {"type": "object", "properties": {}},
    },
}


# -- making one


def test_a_chat_completions_model_is_a_model_that_streams() -> None:
    model = ChatCompletionsModel("m")
    assert isinstance(model, Model)
    assert isinstance(model, StreamingModel)
    assert model.model == "m"


@pytest.mark.parametrize(
    ("base_url", "source"),
    [
        (None, "api.openai.com"),
        ("http://localhost:11434/v1", "localhost:11434"),
        ("https://user:pass-word-1@Example.com/openai/v1?key=abc", "example.com"),
        ("http://[::1]:8080/v1", "[::1]:8080"),
    ],
)
def test_the_source_is_the_server_and_never_credentials(base_url: str | None, source: str) -> None:
    model = ChatCompletionsModel("m", base_url=base_url)
    assert model.source == source
    assert repr(model) == f"ChatCompletionsModel('m', source={source!r})"


def test_the_environment_names_server_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(["Hello"], api_key="key-from-the-environment") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key-from-the-environment")
        model = ChatCompletionsModel("m")
        assert model.source == server.base_url.split("/")[2]
        assert ask(model).content == "Hello"


def test_a_server_of_ones_own_needs_no_key() -> None:
    with FakeServer(["Hello"]) as server:
        assert ask(ChatCompletionsModel("m", base_url=server.base_url)).content == "Hello"


@both_ways
def test_openai_without_a_key_is_an_error_that_says_what_to_set(stream: bool) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        ask(ChatCompletionsModel("gpt-5-nano"), stream)


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_model_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        ChatCompletionsModel(name)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x/v1", "http://", "http://user:pass-word-2@host:port/v1"]
)
def test_a_url_that_leads_nowhere_is_refused_and_its_password_not_told(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        ChatCompletionsModel("m", base_url=url)
    assert "pass-word" not in str(caught.value)


def test_a_key_with_a_line_end_is_a_key_and_one_that_no_header_takes_is_refused() -> None:
    with FakeServer(["Hello"], api_key="key-from-a-file") as server:
        url = server.base_url
        assert ask(ChatCompletionsModel("m", "key-from-a-file\n", url)).content == "Hello"
        for key in ("kéy-with-accents", "key\nin-two-lines"):
            with pytest.raises(ConfigError, match="API key") as caught:
                ask(ChatCompletionsModel("m", key, url))
            assert key not in str(caught.value)


def test_a_key_can_be_fetched_for_each_request_and_stays_secret() -> None:
    async def fetch() -> str:
        return "sk-fetched-key-51c7"

    with FakeServer([error(401, "wrong key sk-fetched-key-51c7")]) as server:
        model = ChatCompletionsModel("m", api_key=fetch, base_url=server.base_url)
        with pytest.raises(openai.AuthenticationError) as caught:
            ask(model)
        assert server.requests[0].headers["authorization"] == "Bearer sk-fetched-key-51c7"
    assert "51c7" not in str(caught.value)


def test_parameters_are_settings_and_win_over_the_settings_given() -> None:
    settings = ModelSettings(temperature=0.1, seed=1)
    model = ChatCompletionsModel("m", settings=settings, temperature=0.2, top_k=4, timeout=3)
    assert model.settings.to_params() == {"temperature": 0.2, "seed": 1, "top_k": 4}
    assert model.settings.timeout == 3
    assert settings.temperature == 0.1
    with pytest.raises(ConfigError, match="temperature"):
        ChatCompletionsModel("m", temperature="hot")
    with pytest.raises(ConfigError, match="settings"):
        ChatCompletionsModel("m", settings={"seed": 1})  # type: ignore[arg-type]


def test_making_a_model_does_not_load_the_openai_package() -> None:
    code = (
        "import sys; from agentor.engine.models import ChatCompletionsModel, is_unavailable;"
        "ChatCompletionsModel('m', api_key='k'); assert is_unavailable(TimeoutError());"
        "assert not is_unavailable(ValueError());"
        "assert not {'openai', 'httpx2', 'httpx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_as_model_makes_a_model_of_a_name_and_takes_models_as_they_are() -> None:
    made = as_model(
        "m", api_key="k", base_url="http://localhost:1/v1", settings=ModelSettings(seed=3)
    )
    assert isinstance(made, ChatCompletionsModel)
    assert (made.model, made.source, made.settings.seed) == ("m", "localhost:1", 3)
    scripted = ScriptedModel(["Hello"])
    assert as_model(scripted) is scripted


@pytest.mark.parametrize("nothing", [None, 3, object(), ScriptedModel, ""])
def test_as_model_refuses_what_is_no_model(nothing: Any) -> None:
    with pytest.raises(ConfigError, match="model"):
        as_model(nothing)


@pytest.mark.parametrize(
    ("problem", "unavailable"),
    [
        (ModelError("x", retryable=True), True),
        (ModelError("x"), False),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (ValueError(), False),
        (KeyboardInterrupt(), False),
        (types.SimpleNamespace(status_code=429), True),
        (types.SimpleNamespace(status_code=404), False),
    ],
)
def test_what_counts_as_unavailable(problem: Any, unavailable: bool) -> None:
    assert is_unavailable(problem) is unavailable


# -- what is sent


@both_ways
def test_messages_tools_format_and_settings_are_sent_as_they_are(stream: bool) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    before = copy.deepcopy(messages)
    with FakeServer(["Hello"]) as server:
        ask(model_for(server, temperature=0.1, top_k=4), stream, messages, [TOOL], wanted)
        body = dict(server.requests[0].body)
    if stream:
        assert (body.pop("stream"), body.pop("stream_options")) == (True, {"include_usage": True})
    assert body == {
        "model": "test-model",
        "messages": messages,
        "tools": [TOOL],
        "response_format": wanted,
        "temperature": 0.1,
        "top_k": 4,
    }
    assert messages == before


def test_headers_are_sent() -> None:
    with FakeServer(["Hello"]) as server:
        ask(model_for(server, extra_headers={"X-Team": "blue"}))
        assert server.requests[0].headers["x-team"] == "blue"
        assert server.requests[0].headers["authorization"] == "Bearer a-key-for-tests"


def test_text_that_is_no_valid_unicode_is_sent_in_valid_unicode() -> None:
    messages = [{"role": "user", "content": "a\ud83c\udf1eb\ud83cc"}]
    with FakeServer(["Hello"]) as server:
        ask(model_for(server), False, messages)
        assert server.requests[0].messages[0]["content"] == "a\U0001f31eb\ufffdc"


def test_what_is_no_json_is_refused_before_anything_is_sent() -> None:
    with FakeServer() as server:
        with pytest.raises((TypeError, ValueError)):
            ask(model_for(server), False, [{"role": "user", "content": {1, 2}}])
        assert not server.requests


@both_ways
def test_provider_fields_are_given_to_the_caller(stream: bool) -> None:
    made = ToolCall("a", "f", "{}", {"extra_content": {"google": {"thought_signature": "c2ln"}}})
    details = [{"type": "reasoning.text", "text": "Hm.", "index": 0}]
    answer = calls(made, reasoning="Hm.", reasoning_details=details)
    with FakeServer([answer]) as server:
        response = ask(model_for(server), stream, HELLO, [TOOL])
    assert response.tool_calls == [made]
    assert response.reasoning == "Hm."
    assert response.extra == {"reasoning_content": "Hm.", "reasoning_details": details}


@both_ways
def test_ten_megabytes_of_arguments_come_through(stream: bool) -> None:
    arguments = '{"text": "' + "x" * 10_000_000 + '"}'
    with FakeServer([calls(("f", arguments, "a"), chunk_size=100_000)]) as server:
        (made,) = ask(model_for(server), stream, HELLO, [TOOL]).tool_calls
    assert made.arguments == arguments


# -- event loops and clients


def test_one_model_serves_many_event_loops_one_after_the_other() -> None:
    with FakeServer(lambda request: says("Hello")) as server:
        model = model_for(server)
        for _ in range(4):
            assert asyncio.run(model.complete(HELLO)).content == "Hello"
            _, whole = asyncio.run(streamed(model))
            assert whole.content == "Hello"
    gc.collect()  # a connection left open would warn here


def test_one_model_serves_threads_with_event_loops_of_their_own() -> None:
    with FakeServer(lambda request: says("Hello")) as server:
        model = model_for(server)
        answers: list[str | None] = []

        def talk() -> None:
            answers.append(asyncio.run(model.complete(HELLO)).content)

        threads = [threading.Thread(target=talk) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["Hello"] * 8


def test_a_connection_is_used_again_within_an_event_loop() -> None:
    with FakeServer(lambda request: says("Hello")) as server:
        model = model_for(server)

        async def main() -> int:
            for _ in range(3):
                await streamed(model)
                await model.complete(HELLO)
            return len(server._connections)

        assert asyncio.run(main()) == 1


def test_closing_closes_the_connections_and_the_model_can_be_used_again() -> None:
    with FakeServer(lambda request: says("Hello")) as server:
        model = model_for(server)

        async def main() -> None:
            for _ in range(2):
                assert (await asked(model, False)).content == "Hello"
            await model.aclose()

        asyncio.run(main())


def test_a_model_that_is_forgotten_leaves_nothing_open() -> None:
    with FakeServer(lambda request: says("Hello")) as server:

        async def main() -> None:
            model = model_for(server)
            await model.complete(HELLO)
            del model
            gc.collect()
            for _ in range(5):
                await asyncio.sleep(0)

        asyncio.run(main())
        gc.collect()


def test_a_stream_that_is_dropped_is_closed_by_its_event_loop() -> None:
    with FakeServer([faults.held(says("Hello there"), Gate(), after_chunks=2)]) as server:

        async def main() -> None:
            model = model_for(server)
            async for _ in model.stream(HELLO):
                break
            await asyncio.to_thread(
                server.wait_for, lambda server: server.requests[0].disconnected, 10
            )

        asyncio.run(main())


@both_ways
def test_a_client_of_ones_own_is_used_with_its_settings_and_stays_open(stream: bool) -> None:
    with FakeServer(lambda request: says("Hello")) as server:

        async def main() -> None:
            async with openai.AsyncOpenAI(
                api_key="another-key", base_url=server.base_url, max_retries=0
            ) as client:
                model = ChatCompletionsModel("m", client=client)
                assert model.source == server.base_url.split("/")[2]
                assert (await asked(model, stream)).content == "Hello"
                assert (await asked(model, stream)).content == "Hello"
                assert not client.is_closed()

        asyncio.run(main())
        assert server.requests[0].headers["authorization"] == "Bearer another-key"


def test_azures_client_works_too() -> None:
    with FakeServer(check=False) as server:

        async def main() -> None:
            async with openai.AsyncAzureOpenAI(
                api_key="another-key",
                api_version="2026-01-01",
                azure_endpoint=server.base_url.removesuffix("/v1"),
                max_retries=0,
            ) as client:
                await ChatCompletionsModel("my-deployment", client=client).complete(HELLO)

        with pytest.raises(openai.NotFoundError, match="/openai/deployments/my-deployment/"):
            asyncio.run(main())  # the fake server has no such path, and says which it was


class LookAlike:
    """A client that gives objects in place of bytes, as tests and wrappers have them."""

    def __init__(self, whole: Any, pieces: list[Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self.create))
        self._whole, self._pieces = whole, pieces

    async def create(self, **request: Any) -> Any:
        self.asked.append(request)
        return self._stream() if request.get("stream") else self._whole

    async def _stream(self) -> Any:
        for piece in self._pieces:
            yield piece


def test_a_client_that_only_looks_like_openais_is_good_enough() -> None:
    whole = openai.types.chat.ChatCompletion.model_validate(
        {
            "id": "x",
            "created": 1,
            "model": "m",
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "Hello"},
                }
            ],
        }
    )
    pieces = [
        {"choices": [{"delta": {"content": "Hel"}}]},
        {"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]},
    ]
    model = ChatCompletionsModel("m", client=LookAlike(whole, pieces))
    assert ask(model).content == "Hello"
    chunks, response = asyncio.run(streamed(model))
    assert [chunk.delta for chunk in chunks] == ["Hel", "lo"]
    assert response.content == "Hello"
    with pytest.raises(ModelError, match="finish_reason"):
        ask(ChatCompletionsModel("m", client=LookAlike(whole, pieces[:1]), max_retries=0), True)


def test_errors_of_such_a_client_are_its_own() -> None:
    class Failing(LookAlike):
        async def _stream(self) -> Any:
            yield self._pieces[0]
            raise LookupError("the wrapper failed")

    with pytest.raises(LookupError, match="the wrapper failed"):
        ask(ChatCompletionsModel("m", client=Failing(None, [{"choices": []}])), True)


def test_a_model_of_ones_own_needs_one_method(instant_clock: InstantClock) -> None:
    class Echo:
        async def complete(
            self, messages: Any, tools: Any = None, response_format: Any = None
        ) -> ModelResponse:
            return ModelResponse(content=messages[-1]["content"])

    assert isinstance(Echo(), Model)
    assert not isinstance(Echo(), StreamingModel)
    assert asyncio.run(as_model(Echo()).complete(HELLO)).content == "Hello"
    assert StreamChunk() == StreamChunk(None, None, None)
