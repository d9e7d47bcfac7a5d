"""A live run is cancelled at each of its events: what is recorded stays, the history is legal, a resume finishes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentor.engine.replay import replay, verify
from agentor.testing import ScriptedModel
from tests.engine.agents import ANSWER, Tools, agent, types


async def whole_run() -> list[str]:
    return [event.type async for event in agent().astream("go") if event.type != "text_delta"]


async def cancelled_at(store: Any, number: int, run_id: str) -> list[str]:
    """The events a reader sees of a run that is cancelled when the n-th is shown."""
    shown: list[str] = []
    mine = agent(store)
    async for event in mine.astream("go", run_id=run_id):
        if event.type == "text_delta":
            continue
        shown.append(event.type)
        if len(shown) == number:
            await mine.acancel(run_id, by="ada")
    return shown


async def test_a_live_run_can_be_cancelled_at_every_event_and_resumed(store: Any) -> None:
    whole = await whole_run()
    for number in range(1, len(whole) + 1):
        run_id = f"r{number}"
        shown = await cancelled_at(store, number, run_id)
        log = store.load(run_id)
        assert types(log) == shown
        assert verify(log) == []
        state = replay(log)
        assert state.status in ("cancelled", "completed")
        if state.status == "completed":  # it was over before it heard
            continue
        assert types(log)[-2:] == ["cancel", "run_end"]
        assert log[-2].by == "ada"
        assert types(log)[:number] == whole[:number]
        tools = Tools()
        result = await agent(store, tools=tools).aresume(run_id, wait=True)
        assert result.final_output == ANSWER
        assert verify(store.load(run_id)) == []
        if "tool_result" in types(log):
            assert tools.ran["get_weather London"] == 0


async def test_a_cancelled_run_can_be_cancelled_and_resumed_again_and_again(store: Any) -> None:
    await cancelled_at(store, 2, "r")
    for _ in range(3):
        assert not await agent(store).acancel("r")
        asked = []

        async def answer(messages: Any, asked: list[Any] = asked) -> Any:
            asked.append(messages)
            await agent(store).acancel("r", by="bob")
            await asyncio.get_running_loop().create_future()

        mine = agent(store, ScriptedModel(answer))
        assert (await mine.aresume("r")).status == "cancelled"
        assert len(asked) == 1
    assert (await agent(store).aresume("r")).final_output == ANSWER


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_what_has_ended_cannot_be_cancelled_and_is_not_written_to(
    store: Any, status: str
) -> None:
    if status == "completed":
        await agent(store).arun("go", run_id="r")
    else:
        await cancelled_at(store, 2, "r")
    before = store.load("r")
    assert before[-1].status == status
    assert not await agent(store).acancel("r", by="ada")
    assert store.load("r") == before
