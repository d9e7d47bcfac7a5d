"""Models that carry on when the one before is rate-limited or down."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, ModelError, ModelSettings, function_tool
from agentor.engine.models import ChatCompletionsModel
from agentor.testing import FakeServer, ScriptedModel, calls, error, faults, says

KEY = "sk-first-0123456789abcdef"
NO_RETRIES = ModelSettings(max_retries=0)


class Weather:
    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def tool(self) -> Any:
        @function_tool
        def get_weather(city: str) -> str:
            """Get the weather."""
            self.ran[city] += 1
            return f"sunny in {city}"

        return get_weather


def second(server: FakeServer) -> ChatCompletionsModel:
    return ChatCompletionsModel("second-model", api_key="second-key", base_url=server.base_url)


UNAVAILABLE: dict[str, Callable[[], Any]] = {
    "429": faults.rate_limited,
    "500": faults.server_error,
    "502": lambda: faults.server_error(502),
    "503": lambda: faults.server_error(503),
    "a dropped connection": lambda: faults.cut(says("x")),
    "a reset": faults.reset,
    "half a reply": lambda: faults.cut(says("a long answer"), after_bytes=30),
    "an error with status 200": faults.error_with_200,
}


@pytest.mark.parametrize("what", UNAVAILABLE)
def test_the_next_model_goes_on_and_no_tool_runs_again(store: Any, what: str) -> None:
    weather = Weather()
    ask = calls(("get_weather", {"city": "London"}))
    with FakeServer([ask, UNAVAILABLE[what]()]) as first, FakeServer([says("Sunny.")]) as other:
        agent = Agentor(
            "A", "Be kind.", "first-model", [weather.tool()],
            api_key=KEY, base_url=first.base_url, store=store, model_settings=NO_RETRIES,
        )  # fmt: skip
        result = agent.run("London?", fallback_models=[second(other)])
    assert (result.final_output, result.status) == ("Sunny.", "completed")
    assert weather.ran == {"London": 1}
    assert [e.model for e in result.events if e.type == "generation"] == [
        *("first-model", "second-model")
    ]
    assert [m["role"] for m in other.requests[0].messages] == [
        *("system", "user", "assistant", "tool")
    ]


@pytest.mark.parametrize("what", UNAVAILABLE)
def test_neither_key_nor_address_of_the_first_model_reaches_the_other_host(what: str) -> None:
    with FakeServer([UNAVAILABLE[what]()]) as first, FakeServer([says("Hi.")]) as other:
        agent = Agentor(
            "A", model="first-model", api_key=KEY, base_url=first.base_url,
            model_settings=ModelSettings(max_retries=0, extra_headers={"X-Team": "first-team-secret"}),
        )  # fmt: skip
        assert str(agent.run("hi", fallback_models=[second(other)])) == "Hi."
        [request] = other.requests
    sent = str(dict(request.headers)) + request.raw.decode()
    assert KEY not in sent
    assert "first-team-secret" not in sent
    assert first.base_url.split("/")[2] not in sent
    assert request.headers["authorization"] == "Bearer second-key"
    assert all("second-key" not in str(dict(r.headers)) for r in first.requests)


def test_a_fallback_by_name_asks_the_agents_own_server_with_its_key() -> None:
    with FakeServer([faults.rate_limited(), says("Hi.")], api_key=KEY) as server:
        agent = Agentor(
            "A", model="big", api_key=KEY, base_url=server.base_url, model_settings=NO_RETRIES
        )
        assert str(agent.run("hi", fallback_models=["small"])) == "Hi."
        assert [request.body["model"] for request in server.requests] == ["big", "small"]


def test_a_server_that_refuses_connections_is_fallen_back_from() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with FakeServer([says("Hi.")]) as other:
        agent = Agentor(
            "A", api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1", model_settings=NO_RETRIES
        )
        assert str(agent.run("hi", fallback_models=[second(other)])) == "Hi."


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_no_reason_to_fall_back(status: int) -> None:
    with FakeServer([error(status, "no")], strict=False) as first, FakeServer([]) as other:
        agent = Agentor("A", api_key=KEY, base_url=first.base_url, model_settings=NO_RETRIES)
        with pytest.raises(Exception, match="no") as caught:
            agent.run("hi", fallback_models=[second(other)])
        assert getattr(caught.value, "status_code", None) == status
        assert other.requests == []


def test_a_fallback_stays_for_the_rest_of_the_run() -> None:
    weather = Weather()
    first = ScriptedModel([ConnectionError("down")])
    other = ScriptedModel([calls(("get_weather", {"city": "Oslo"})), says("Sunny.")])
    agent = Agentor("A", model=first, tools=[weather.tool()])
    assert str(agent.run("Oslo?", fallback_models=[other])) == "Sunny."
    assert (len(first.requests), len(other.requests)) == (1, 2)


def test_the_next_run_begins_with_the_first_model_again() -> None:
    first = ScriptedModel([ConnectionError("down"), says("I am back.")])
    agent = Agentor("A", model=first)
    agent.run("hi", fallback_models=[ScriptedModel([says("Hi.")])])
    assert str(agent.run("hi")) == "I am back."


def test_fallbacks_are_asked_in_order_and_the_last_exception_reaches_the_caller(store: Any) -> None:
    models = [ScriptedModel([ConnectionError(name)], model=name) for name in ("a", "b", "c")]
    agent = Agentor("A", model=models[0], store=store)
    with pytest.raises(ConnectionError, match="c"):
        agent.run("hi", fallback_models=models[1:], run_id="r")
    assert [len(model.requests) for model in models] == [1, 1, 1]
    assert store.load("r")[-1].status == "failed"


def test_a_stream_falls_back_while_nothing_of_the_reply_was_shown() -> None:
    with FakeServer([faults.server_error()]) as first, FakeServer([says("Hi there.")]) as other:
        agent = Agentor("A", api_key=KEY, base_url=first.base_url, model_settings=NO_RETRIES)

        async def main() -> list[Any]:
            fallback = second(other)
            events = [e async for e in agent.astream("hi", fallback_models=[fallback])]
            await fallback.aclose()
            await agent.model.aclose()  # type: ignore[attr-defined]
            return events

        events = asyncio.run(main())
    assert "".join(e.text for e in events if e.type == "text_delta") == "Hi there."


def test_a_stream_that_breaks_after_text_was_shown_fails_and_can_be_resumed(store: Any) -> None:
    broken = faults.cut(says("one two three", chunk_size=3), after_chunks=3)
    with FakeServer([broken, says("whole")]) as first, FakeServer([]) as other:
        agent = Agentor(
            "A", api_key=KEY, base_url=first.base_url, model_settings=NO_RETRIES, store=store
        )

        async def main() -> list[Any]:
            seen: list[Any] = []
            fallback = second(other)

            async def read() -> None:
                async for event in agent.astream("hi", fallback_models=[fallback], run_id="r"):
                    seen.append(event)

            with pytest.raises(ModelError):
                await read()
            await agent.model.aclose()  # type: ignore[attr-defined]
            return seen

        seen = asyncio.run(main())
        assert any(event.type == "text_delta" for event in seen)
        assert other.requests == []
        assert store.load("r")[-1].status == "failed"
        assert agent.resume("r").final_output == "whole"


def test_what_only_the_first_provider_understands_is_not_sent_to_the_other() -> None:
    weather = Weather()
    ask = calls(
        ("get_weather", {"city": "Rome"}), reasoning="I think.", reasoning_details=[{"sig": "abc"}]
    )
    with (
        FakeServer([ask, faults.server_error()]) as first,
        FakeServer([says("Sunny.")]) as other,
    ):
        agent = Agentor(
            "A", tools=[weather.tool()], api_key=KEY, base_url=first.base_url,
            model_settings=NO_RETRIES,
        )  # fmt: skip
        agent.run("Rome?", fallback_models=[second(other)])
        [request] = other.requests
    assert "sig" not in request.raw.decode()


def test_fallbacks_also_serve_streams_and_batches() -> None:
    def down() -> ScriptedModel:
        return ScriptedModel(lambda messages: ConnectionError("down"))

    fallback = ScriptedModel(lambda messages: says(messages[-1]["content"]))
    agent = Agentor("A", model=down())
    results = agent.run(["one", "two"], fallback_models=[fallback])
    assert [str(result) for result in results] == ["one", "two"]
