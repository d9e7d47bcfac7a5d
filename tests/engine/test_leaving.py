"""Every exit path is an exit: cancellation, a dropped stream, a slow reader."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from agentor import Agentor, MemoryStore, function_tool
from agentor.engine.events import Event
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ANSWER, Tools, agent, types


class Hanging:
    """A model, or a tool, that waits for ever and knows when it was let go."""

    def __init__(self) -> None:
        self.entered, self.left = asyncio.Event(), asyncio.Event()

    async def complete(self, messages: Any, tools: Any = None) -> Any:
        await self()

    async def __call__(self) -> str:
        """Hang."""
        self.entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.left.set()
        return "never"


async def others() -> set[asyncio.Task[Any]]:
    """The tasks that are left when all that was let go has ended."""
    left: set[asyncio.Task[Any]] = set()
    for _ in range(3):
        await asyncio.sleep(0)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[arg-type]
            _, left = await asyncio.wait(left, timeout=10)
    return left


async def test_cancelling_a_run_ends_its_model_call_and_leaves_it_resumable(store: Any) -> None:
    model = Hanging()
    task = asyncio.create_task(Agentor("A", model=model, store=store).arun("go", run_id="r"))
    await model.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.left.is_set()
    assert await others() == set()
    assert types(store.load("r")) == ["run_start"]
    result = await Agentor("A", model=ScriptedModel(["done"]), store=store).aresume("r")
    assert result.final_output == "done"


async def test_cancelling_a_run_ends_its_tools_and_keeps_the_results_that_were_there(
    store: Any,
) -> None:
    hang = Hanging()
    seen = asyncio.Event()

    @function_tool
    async def quick() -> str:
        """At once."""
        return "ok"

    @function_tool
    async def slow() -> str:
        """Hang."""
        return await hang()

    async def run() -> None:
        model = ScriptedModel([calls(("quick", {}), ("slow", {}))])
        a = Agentor("A", model=model, tools=[quick, slow], store=store)
        async for event in a.astream("go", run_id="r"):
            if event.type == "tool_result":
                seen.set()

    task = asyncio.create_task(run())
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hang.left.is_set()
    assert await others() == set()
    assert types(store.load("r"))[-1] == "tool_result"


async def test_a_reader_that_leaves_at_any_event_stops_the_run_right_there(store: Any) -> None:
    whole = [event async for event in agent().astream("go") if event.type != "text_delta"]
    for number in range(1, len(whole)):
        tools, run_id = Tools(), f"r{number}"
        stream = agent(store, tools=tools).astream("go", run_id=run_id)
        shown = 0
        async for event in stream:
            shown += event.type != "text_delta"
            if shown == number:
                break
        await stream.aclose()
        assert await others() == set()
        log = store.load(run_id)
        assert len(log) >= number  # what was shown was written
        generations = [event.type for event in whole[:number]].count("generation")
        assert types(log).count("generation") <= generations + (event.type == "text_delta")
        result = await agent(store).aresume(run_id)
        assert result.final_output == ANSWER


async def test_a_stream_that_is_dropped_without_a_word_leaves_no_task() -> None:
    before = threading.active_count()

    async def look() -> None:
        async for event in agent().stream_chat("go"):
            if "tool_called" in str(event):
                break

    await look()
    gc.collect()
    assert await others() == set()
    assert threading.active_count() <= before + 1  # the tool's thread may be ending


async def test_a_reader_that_takes_nothing_stops_the_spending(store: Any) -> None:
    model = ScriptedModel([calls(("get_weather", {"city": "London"})), says("done")])
    stream = agent(store, model).astream("go")
    first = await anext(stream)
    assert first.type == "run_start"
    for _ in range(20):
        await asyncio.sleep(0)
    assert model.requests == []
    await stream.aclose()


async def test_a_slow_reader_does_not_hold_up_the_record_of_results(store: Any) -> None:
    recorded = asyncio.Event()

    @function_tool
    async def first() -> str:
        """One."""
        return "one"

    @function_tool
    async def second() -> str:
        """Two."""
        recorded.set()
        return "two"

    a = Agentor(
        "A",
        model=ScriptedModel([calls(("first", {}), ("second", {})), says("done")]),
        tools=[first, second],
        store=store,
    )
    stream = a.astream("go", run_id="r")
    async for event in stream:
        if event.type == "tool_call":
            await anext(stream)  # the second call; the batch may now start
            break
    await asyncio.gather(anext(stream), recorded.wait())
    while types(store.load("r")).count("tool_result") < 2:  # noqa: ASYNC110  (no event to wait for)
        await asyncio.sleep(0)
    await stream.aclose()


async def test_the_exception_of_a_run_reaches_the_reader_after_what_was_recorded(
    store: Any,
) -> None:
    seen: list[Event] = []

    async def read() -> None:
        async for event in agent(store, ScriptedModel([ConnectionError("reset")])).astream("go"):
            seen.append(event)

    with pytest.raises(ConnectionError):
        await read()
    assert types(seen) == ["run_start", "run_end"]
    assert seen[-1].status == "failed"


async def test_what_a_stream_shows_is_what_the_log_holds(store: Any) -> None:
    shown = [e async for e in agent(store).astream("go", run_id="r") if e.type != "text_delta"]
    assert shown == store.load("r")
    text = [e.text async for e in agent().astream("go") if e.type == "text_delta"]
    assert "".join(map(str, text)) == "Now both." + ANSWER


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_sync_calls_can_be_nested_in_async_tools(depth: int) -> None:
    def nested(level: int) -> Any:
        async def inner() -> str:
            return str(nested(level - 1).run("go")) if level else "ground"

        tool = function_tool(name_override="inner", description_override="inner")(inner)
        model = ScriptedModel([calls(("inner", {})), says(f"done {level}")])
        return Agentor("A", model=model, tools=[tool])

    before = threading.active_count()
    assert nested(depth).run("go").final_output == f"done {depth}"
    assert threading.active_count() <= before + 1  # the shared loop


async def test_a_second_cancellation_does_not_leave_a_run_half_ended(store: Any) -> None:
    started = asyncio.Event()

    @function_tool
    async def stubborn() -> str:
        """Takes its time to stop."""
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
        return "never"

    model = ScriptedModel([calls(("stubborn", {}))])
    mine = Agentor("A", model=model, tools=[stubborn], store=store)
    task = asyncio.create_task(mine.arun("go", run_id="r"))
    await started.wait()
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})
    assert task.cancelled()
    assert await others() == set()
    result = await Agentor("A", model=ScriptedModel(["done"]), store=store).aresume("r")
    assert result.final_output == "done"


async def test_what_is_recorded_never_waits_for_a_reader() -> None:
    store = MemoryStore()

    @function_tool
    async def quick() -> str:
        """At once."""
        return "ok"

    model = ScriptedModel([calls(*[("quick", {})] * 600), says("done")])
    stream = Agentor("A", model=model, tools=[quick], store=store).astream("go", run_id="r")
    async for event in stream:
        if event.type == "tool_result":
            break  # and read no further
    while types(store.load("r")).count("tool_result") < 600:  # noqa: ASYNC110  (no event to wait for)
        await asyncio.sleep(0)
    await stream.aclose()
