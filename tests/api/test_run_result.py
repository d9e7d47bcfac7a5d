"""RunResult, Event and Usage: what a caller reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentor import Agentor, MemoryStore
from agentor.engine.events import Event, RunResult, Usage
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ANSWER, ThreeMethods, agent, types


def whole(store: Any = None) -> RunResult:
    return agent(store).run("What is the weather?")


def test_the_text_of_a_result_is_its_output() -> None:
    assert str(whole()) == ANSWER


def test_usage_is_summed_over_every_model_call_and_per_call_on_the_generations() -> None:
    result = whole()
    generations = [event for event in result.events if event.type == "generation"]
    assert [event.usage for event in generations] == [Usage(10, 5, 15)] * 3
    assert result.usage == Usage(30, 15, 45)
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.total_tokens) == (
        *(30, 15, 45),
    )


def test_usages_add_up() -> None:
    assert Usage(1, 2, 3) + Usage(10, 20, 30) == Usage(11, 22, 33)
    assert sum([Usage(1, 2, 3)] * 2, Usage()) == Usage(2, 4, 6)


def test_tool_calls_are_the_calls_the_model_asked_for_with_their_arguments() -> None:
    asked = whole().tool_calls
    assert [(call.type, call.name, call.args) for call in asked] == [
        ("tool_call", "get_weather", {"city": "London"}),
        ("tool_call", "get_weather", {"city": "Paris"}),
        ("tool_call", "pay", {"amount": 3}),
    ]


def test_a_failing_tool_gives_a_result_with_its_error_and_the_run_goes_on() -> None:
    result = whole()
    [failed] = [e for e in result.events if e.type == "tool_result" and e.error]
    assert (failed.name, failed.error) == ("pay", "RuntimeError: database unavailable")
    assert "RuntimeError: database unavailable" in (failed.result or "")
    assert result.status == "completed"
    assert result.error is None


def test_calls_of_a_generation_have_the_chat_completions_form() -> None:
    first = whole().events[1]
    [call] = first.calls or []
    assert set(call) == {"id", "type", "function"}
    assert call["type"] == "function"
    assert json.loads(call["function"]["arguments"]) == {"city": "London"}
    assert call["function"]["name"] == "get_weather"


def test_each_generation_shows_exactly_what_was_sent() -> None:
    model = ScriptedModel.by_turn(
        [calls(("get_weather", {"city": "Rome"})), says("x", reasoning="hm")]
    )
    for store in (None, MemoryStore(), ThreeMethods()):
        model.requests.clear()
        result = agent(store, model).run("hi")
        shown = [e.messages for e in result.events if e.type == "generation"]
        assert shown == [request.messages for request in model.requests]


def test_messages_hold_user_assistant_and_tool_messages_in_order() -> None:
    roles = [message["role"] for message in whole().messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


def test_tool_results_are_in_the_order_asked_in_the_messages() -> None:
    messages = whole().messages
    asked = [call["id"] for call in messages[4]["tool_calls"]]
    assert [message["tool_call_id"] for message in messages[5:7]] == asked


def test_events_carry_times_for_tools_and_generations() -> None:
    for event in whole().events:
        if event.type in ("generation", "tool_result"):
            assert event.started_at is not None
            assert event.ended_at is not None
            assert event.started_at <= event.ended_at


def test_event_types_are_the_promised_words() -> None:
    assert set(types(whole().events)) == {
        *("run_start", "generation", "tool_call", "tool_result", "message", "run_end")
    }


def test_the_log_opens_with_agent_model_and_messages_and_ends_with_status_text_and_usage() -> None:
    events = whole().events
    first, last = events[0].to_dict(), events[-1].to_dict()
    assert (first["type"], first["agent"], first["model"]) == (
        *("run_start", "Weather Agent", "scripted"),
    )
    assert first["messages"] == [
        {"role": "system", "content": "You are kind."},
        {"role": "user", "content": "What is the weather?"},
    ]
    assert (last["type"], last["status"], last["text"]) == ("run_end", "completed", ANSWER)
    assert last["usage"] == {"input_tokens": 30, "output_tokens": 15, "total_tokens": 45}


def test_the_last_generations_tokens_are_in_the_log_once_each() -> None:
    store = MemoryStore()
    result = whole(store)
    bodies = [json.loads(event.to_json()) for event in store.load(str(result.run_id))]
    assert sum(b["usage"]["total_tokens"] for b in bodies if b["type"] == "generation") == 45


def test_a_generation_does_not_store_the_messages_it_was_sent() -> None:
    store = MemoryStore()
    result = whole(store)
    bodies = [json.loads(event.to_json()) for event in store.load(str(result.run_id))]
    assert all("messages" not in body for body in bodies if body["type"] == "generation")


@pytest.mark.parametrize(
    "body",
    [
        {"type": "tool_call", "name": "f", "args": {}, "call_id": "c", "turn": 1, "x": {"y": [1]}},
        {"type": "from_the_future", "seq": 3, "what": None, "deep": {"a": None}},
        {"type": "run_end", "status": "completed", "text": "", "usage": {"input_tokens": 1,
         "output_tokens": 1, "total_tokens": 2}},
        {"type": "generation", "calls": [{"id": "c", "type": "function", "index": 0,
         "function": {"name": "f", "arguments": "{}", "extra": 1}}], "turn": 1},
    ],
)  # fmt: skip
def test_unknown_keys_survive_a_round_trip(body: dict[str, Any]) -> None:
    event = Event.from_dict(body)
    assert json.loads(event.to_json()) == body
    assert Event.from_dict(event.to_dict()) == event


def test_unknown_fields_survive_store_and_fork(store: Any) -> None:
    for number, event in enumerate(whole().events, 1):
        store.append("r", Event.from_dict(event.to_dict() | {"x_vendor": {"n": number}}))
    agent(store).fork("r", fork_id="child")
    for run_id in ("r", "child"):
        shown = [e.to_dict().get("x_vendor") for e in store.load(run_id)[:12]]
        assert shown == [{"n": number} for number in range(1, 13)]


@pytest.mark.parametrize("bad", [None, 7, "x", [], {}, {"type": None}, {"type": 7}])
def test_what_is_no_event_is_a_value_error(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"event|type"):
        Event.from_dict(bad)


def test_unknown_usage_counts_do_no_harm() -> None:
    event = Event.from_dict(
        {"type": "generation", "usage": {"input_tokens": 2, "audio_tokens": 9, "total_tokens": 3}}
    )
    assert event.usage == Usage(2, 0, 3)


def test_unsaved_is_a_number_and_zero_when_all_is_saved(store: Any) -> None:
    assert whole(store).unsaved == 0
    assert whole().unsaved == 0


def test_what_could_not_be_saved_is_counted_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(ThreeMethods):
        def append(self, run_id: str, event: Event) -> None:
            if event.seq is not None and event.seq > 3:
                raise OSError("No space left on device")
            super().append(run_id, event)

    store = Full()
    result = whole(store)
    assert (result.final_output, result.unsaved) == (ANSWER, 9)
    assert len(store.load(str(result.run_id))) == 3
    assert "No space left on device" in caplog.text
    assert str(result.run_id) in caplog.text


def test_a_save_that_fails_for_a_while_is_caught_up_in_order_without_holes() -> None:
    class Flaky(ThreeMethods):
        tried = 0

        def append(self, run_id: str, event: Event) -> None:
            self.tried += 1
            if self.tried in (2, 3, 5, 6):
                raise OSError("busy")
            super().append(run_id, event)

    store = Flaky()
    result = whole(store)
    assert result.unsaved == 0
    assert [event.seq for event in store.load(str(result.run_id))] == list(range(1, 13))


def test_strict_durability_ends_the_run_instead() -> None:
    from agentor import StoreError

    class Full(ThreeMethods):
        def append(self, run_id: str, event: Event) -> None:
            if event.seq == 3:
                raise OSError("No space left on device")
            super().append(run_id, event)

    model = ScriptedModel.by_turn([calls(("get_weather", {"city": "London"})), says("x")])
    with pytest.raises(StoreError, match="No space left"):
        agent(Full(), model, durability="strict").run("hi")
    assert len(model.requests) == 1


def test_append_is_called_on_a_worker_thread_once_for_each_event() -> None:
    import threading

    seen: list[tuple[str, bool]] = []
    main = threading.get_ident()

    class Watched(ThreeMethods):
        def append(self, run_id: str, event: Event) -> None:
            seen.append((event.type, threading.current_thread().name == "agentor-loop"))
            assert threading.get_ident() != main
            super().append(run_id, event)

    import asyncio

    result = asyncio.run(agent(Watched()).arun("What is the weather?"))
    assert seen == [(event.type, False) for event in result.events]


def test_the_events_of_a_fork_include_the_inherited_part(store: Any) -> None:
    parent = whole(store)
    copy = agent(store, ScriptedModel([])).fork(str(parent.run_id))
    assert types(copy.events) == [*types(parent.events), "fork"]


def test_a_reply_that_asks_for_an_unknown_tool_is_an_error_to_the_model_not_to_the_caller() -> None:
    model = ScriptedModel([calls(("no_such_tool", {})), says("sorry")])
    result = Agentor("A", model=model).run("hi")
    [told] = [event for event in result.events if event.type == "tool_result"]
    assert "no_such_tool" in (told.error or "")
    assert result.final_output == "sorry"


def test_reasoning_is_kept_on_the_generation() -> None:
    model = ScriptedModel([says("x", reasoning="I think.")])
    [generation] = [e for e in agent(model=model).run("hi").events if e.type == "generation"]
    assert generation.reasoning == "I think."
