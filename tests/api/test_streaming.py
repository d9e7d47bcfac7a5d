"""Streams: events and items of a live run, saved like any other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest

from agentor import Agentor, ConfigError
from agentor.engine.store import is_complete
from agentor.testing import FakeServer, ScriptedModel, calls, says
from tests.engine.agents import ANSWER, agent, scripted, types, without_times


def read(stream: Any) -> list[Any]:
    async def main() -> list[Any]:
        return [item async for item in stream]

    return asyncio.run(main())


def test_items_are_json_text_by_default_and_objects_on_request(store: Any) -> None:
    texts = read(agent(store).stream_chat("hi"))
    items = read(agent(store).stream_chat("hi", serialize=False))
    assert all(isinstance(text, str) for text in texts)
    bodies = [json.loads(text) for text in texts]
    assert len(bodies) == len(items)
    for body, item in zip(bodies, items, strict=True):
        assert body["type"] == item.type == "run_item_stream_event"
        for name in ("message", "chunk", "reasoning", "seq"):
            assert body[name] == getattr(item, name)
        action = item.tool_action
        assert body["tool_action"] == (
            None if action is None else {"name": action.name, "type": action.type}
        )


def test_the_chunks_of_the_answer_join_to_the_answer(store: Any) -> None:
    items = read(agent(store).stream_chat("hi", serialize=False))
    last = [item.chunk for item in items if item.chunk is not None]
    assert "".join(last).endswith(ANSWER)
    [message] = [i.message for i in items if i.message is not None and i.tool_action is None]
    assert message == ANSWER


def test_tool_calls_and_outputs_are_shown_by_name(store: Any) -> None:
    items = read(agent(store).stream_chat("hi", serialize=False))
    actions = [(i.tool_action.name, i.tool_action.type) for i in items if i.tool_action]
    assert actions[:2] == [("get_weather", "tool_called"), ("get_weather", "tool_output")]
    assert sorted(actions[2:]) == [
        *(("get_weather", "tool_called"), ("get_weather", "tool_output")),
        *(("pay", "tool_called"), ("pay", "tool_output")),
    ]


def test_the_output_of_a_tool_is_in_its_item() -> None:
    items = read(agent().stream_chat("hi", serialize=False))
    outputs = [i for i in items if i.tool_action and i.tool_action.type == "tool_output"]
    assert outputs[0].message == "sunny in London"


def test_reasoning_is_shown() -> None:
    items = read(
        agent(model=ScriptedModel([says("x", reasoning="I think.")])).stream_chat("hi", False)
    )
    assert [item.reasoning for item in items if item.reasoning] == ["I think."]


def test_every_item_names_the_run_and_recorded_ones_their_seq(store: Any) -> None:
    items = read(agent(store).stream_chat("hi", serialize=False))
    [run_id] = store.list_runs()
    assert {item.run_id for item in items} == {run_id}
    assert all((item.seq is None) == (item.chunk is not None) for item in items)
    by_seq = {event.seq: event for event in store.load(run_id)}
    for item in items:
        if item.tool_action is not None:
            assert by_seq[item.seq].name == item.tool_action.name


def test_without_a_store_items_name_no_run() -> None:
    items = read(agent().stream_chat("hi", serialize=False))
    assert {item.run_id for item in items} == {None}


def test_a_streamed_run_is_saved_like_any_run(store: Any) -> None:
    read(agent(store).stream_chat("hi", run_id="streamed"))
    agent(store).run("hi", run_id="plain")
    streamed, plain = (
        sorted(
            (e.turn or 0, e.type, e.call_id or "", without_times(e.with_(seq=None))) for e in log
        )
        for log in (store.load("streamed"), store.load("plain"))
    )  # two tools of one turn may end in either order
    assert streamed == plain


def test_events_are_durable_before_they_are_shown(store: Any) -> None:
    async def main() -> None:
        async for event in agent(store).astream("hi", run_id="r"):
            if event.type != "text_delta":
                assert store.load("r")[event.seq - 1].to_json() == event.to_json()

    asyncio.run(main())


def test_a_stream_of_events_has_each_recorded_event_once_and_text_in_between(store: Any) -> None:
    events = read(agent(store).astream("hi", run_id="r"))
    recorded = [event for event in events if event.type != "text_delta"]
    assert recorded == store.load("r")
    texts = [event.text for event in events if event.type == "text_delta"]
    assert "".join(texts) == "Now both." + ANSWER


def test_text_pieces_are_never_stored(store: Any) -> None:
    read(agent(store).astream("hi", run_id="r"))
    assert "text_delta" not in types(store.load("r"))


def test_a_stream_takes_messages_and_budgets_like_a_run(store: Any) -> None:
    events = read(agent(store).astream([{"role": "user", "content": "hi"}], max_turns=1))
    assert events[-1].status == "max_turns"
    events = read(agent(store).stream_chat("hi", serialize=False, max_turns=1, run_id="x"))
    assert store.load("x")[-1].status == "max_turns"


@pytest.mark.parametrize("kind", ["astream", "stream_chat"])
def test_the_models_exception_ends_the_stream_after_what_was_recorded(
    store: Any, kind: str
) -> None:
    made = agent(store, ScriptedModel([calls(("pay", {"amount": 1})), ConnectionError("x")]))
    seen: list[Any] = []

    async def main() -> None:
        async for item in getattr(made, kind)("hi", run_id="r"):
            seen.append(item)

    with pytest.raises(ConnectionError) as caught:
        asyncio.run(main())
    assert any("r" in note for note in caught.value.__notes__)
    assert store.load("r")[-1].status == "failed"
    assert seen
    if kind == "astream":
        assert seen[-1].type == "run_end"


@pytest.mark.parametrize("bad", ["", [], None])
def test_input_that_says_nothing_is_refused_by_a_stream(bad: Any) -> None:
    with pytest.raises(ConfigError):
        read(agent().astream(bad))


def test_a_taken_run_id_is_refused_by_a_stream(store: Any) -> None:
    agent(store).run("hi", run_id="r")
    with pytest.raises(ValueError, match="'r'"):
        read(agent(store).stream_chat("hi", run_id="r"))


def test_text_streams_over_http_as_it_arrives() -> None:
    with FakeServer([says("one two three", chunk_size=4)]) as server:
        made = Agentor("A", base_url=server.base_url, api_key="test")

        async def main() -> list[str]:
            chunks = []
            async for item in made.stream_chat("hi", serialize=False):
                if item.chunk:  # type: ignore[union-attr]
                    chunks.append(item.chunk)  # type: ignore[union-attr]
            await made.aclose()
            return chunks

        assert asyncio.run(main()) == ["one ", "two ", "thre", "e"]
        assert server.requests[0].stream


def test_two_streams_side_by_side_do_not_mix(store: Any) -> None:
    model = ScriptedModel(lambda m: says(f"You said: {m[-1]['content']}", chunk_size=2))
    made = agent(store, model)

    async def one(text: str) -> str:
        parts = [i.chunk async for i in made.stream_chat(text, serialize=False) if i.chunk]  # type: ignore[union-attr]
        return "".join(parts)

    async def main() -> list[str]:
        return await asyncio.gather(*(one(f"text {n}") for n in range(8)))

    assert asyncio.run(main()) == [f"You said: text {n}" for n in range(8)]


def test_a_stream_read_from_its_start_to_its_end_leaves_a_complete_run(store: Any) -> None:
    read(agent(store, scripted()).stream_chat("hi", run_id="r"))
    assert is_complete(store.load("r"))


@pytest.mark.parametrize("serialize", [True, False])
def test_a_stream_that_ends_without_an_answer_ends_with_an_item_that_says_why(
    store: Any, serialize: bool
) -> None:
    made = agent(store, ScriptedModel([calls(("pay", {"amount": 1}))]))
    items = read(made.stream_chat("hi", serialize=serialize, max_turns=1, run_id="r"))
    *others, last = [json.loads(item) if serialize else asdict(item) for item in items]
    assert (last["status"], last["seq"]) == ("max_turns", store.load("r")[-1].seq)
    assert last["error"] == "Reached max_turns (1) without a final answer."
    assert (last["message"], last["chunk"], last["tool_action"]) == (None, None, None)
    assert not any(other.get("status") for other in others)


def test_a_stream_that_completes_ends_with_the_answer(store: Any) -> None:
    *_, last = read(agent(store).stream_chat("hi"))
    body = json.loads(last)
    assert body["message"] == ANSWER
    assert not {"status", "error"} & set(body)  # those are of other ends
