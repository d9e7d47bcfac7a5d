"""Whoever stops reading a stream leaves nothing behind: no task, no thread, no connection; and the run resumable."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, function_tool
from agentor.testing import FakeServer, Gate, ScriptedModel, calls, faults, says

LONG = says("one two three four five six seven eight", chunk_size=4)


async def leave_by_break(open_stream: Callable[[], Any], when: Callable[[Any], bool]) -> None:
    stream = open_stream()
    async for item in stream:
        if when(item):
            break
    await stream.aclose()


async def leave_by_garbage(open_stream: Callable[[], Any], when: Callable[[Any], bool]) -> None:
    stream = open_stream()
    async for item in stream:
        if when(item):
            break
    del stream, item
    gc.collect()


async def leave_by_cancellation(
    open_stream: Callable[[], Any], when: Callable[[Any], bool]
) -> None:
    reached = asyncio.Event()

    async def read() -> None:
        async for item in open_stream():
            if when(item):
                reached.set()
                await asyncio.Event().wait()

    reader = asyncio.create_task(read())
    await reached.wait()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    del reader
    gc.collect()


LEAVING = {
    "break": leave_by_break,
    "garbage": leave_by_garbage,
    "cancellation": leave_by_cancellation,
}


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it is so; what never happens fails by the timeout."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110  - what is waited for tells nobody
            await asyncio.sleep(0.005)


def others() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def agent_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("agentor-tool")]


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.parametrize("kind", ["stream_chat", "astream"])
def test_leaving_in_the_middle_of_the_text_closes_the_connection_and_every_task(
    store: Any, way: str, kind: str
) -> None:
    gate = Gate()
    held = faults.held(LONG, gate, after_chunks=3)
    with FakeServer([held, says("Hello.")], strict=False) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test", store=store)

        async def main() -> None:
            if kind == "astream":
                await LEAVING[way](
                    lambda: agent.astream("hi", run_id="r"), lambda item: item.type == "text_delta"
                )
            else:
                await LEAVING[way](
                    lambda: agent.stream_chat("hi", serialize=False, run_id="r"),
                    lambda item: item.chunk is not None,
                )
            await until(lambda: not others())
            await asyncio.to_thread(server.wait_for, lambda s: s.requests[0].disconnected, 15)
            result = await agent.aresume("r")
            assert (result.final_output, result.status) == ("Hello.", "completed")
            await agent.model.aclose()  # type: ignore[attr-defined]

        asyncio.run(main())
    assert len(server.requests) == 2


@pytest.mark.parametrize("way", LEAVING)
def test_leaving_before_a_tool_starts_starts_no_tool(store: Any, way: str) -> None:
    ran: list[str] = []

    @function_tool
    def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    model = ScriptedModel.by_turn([calls(("pay", {})), says("done")])
    agent = Agentor("A", model=model, tools=[pay], store=store)

    async def main() -> None:
        await LEAVING[way](
            lambda: agent.astream("hi", run_id="r"), lambda event: event.type == "generation"
        )
        await until(lambda: not others())

    asyncio.run(main())
    assert ran == []
    assert agent.resume("r").final_output == "done"
    assert ran == ["paid"]


@pytest.mark.parametrize("way", LEAVING)
def test_leaving_while_a_tool_runs_cancels_it(store: Any, way: str) -> None:
    cancelled: list[bool] = []

    @function_tool
    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        return ""

    @function_tool
    def quick() -> str:
        """Be quick."""
        return "ok"

    model = ScriptedModel.by_turn([calls(("wait", {}), ("quick", {})), says("done")])
    agent = Agentor("A", model=model, tools=[wait, quick], store=store)

    async def main() -> None:
        await LEAVING[way](
            lambda: agent.astream("hi", run_id="r"), lambda event: event.type == "tool_result"
        )
        await until(lambda: not others())

    asyncio.run(main())
    assert cancelled == [True]
    assert [e.type for e in store.load("r")][-1] == "tool_result"


def test_whoever_stops_reading_stops_the_spending() -> None:
    model = ScriptedModel([calls(("ping", {})), calls(("ping", {})), says("done")])

    @function_tool
    def ping() -> str:
        """Ping."""
        return "pong"

    agent = Agentor("A", model=model, tools=[ping])

    async def main() -> None:
        stream = agent.astream("hi")
        async for event in stream:
            if event.type == "tool_result":
                break
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(model.requests) == 1
        await stream.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["stream_chat", "astream"])
def test_a_stream_that_nobody_reads_starts_no_run(store: Any, kind: str) -> None:
    model = ScriptedModel([])
    agent = Agentor("A", model=model, store=store)

    async def main() -> None:
        stream = getattr(agent, kind)("hi")
        del stream
        gc.collect()
        await asyncio.sleep(0)
        assert not others()

    asyncio.run(main())
    assert store.list_runs() == []


def test_twenty_dropped_streams_leave_no_more_than_one() -> None:
    agent = Agentor("A", model=ScriptedModel(lambda messages: LONG))

    async def main() -> None:
        for _ in range(20):
            async for item in agent.stream_chat("hi", serialize=False):
                if item.chunk:  # type: ignore[union-attr]
                    break
            gc.collect()
        await until(lambda: not others())

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() <= before + 1
    assert agent_threads() == []


def test_a_run_that_is_cancelled_leaves_no_task_and_no_connection(durable: Any) -> None:
    gate = Gate()
    with FakeServer([faults.held(says("late"), gate), says("Hello.")], strict=False) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test", store=durable)

        async def main() -> None:
            run = asyncio.create_task(agent.arun("hi", run_id="r"))
            await asyncio.to_thread(gate.wait_until_reached)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await until(lambda: not others())
            await asyncio.to_thread(server.wait_for, lambda s: s.requests[0].disconnected, 15)
            assert (await agent.aresume("r")).final_output == "Hello."
            await agent.model.aclose()  # type: ignore[attr-defined]

        asyncio.run(main())


def test_a_timeout_around_a_run_is_a_timeout(durable: Any) -> None:
    gate = Gate()
    with FakeServer([faults.held(says("late"), gate)], strict=False) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test", store=durable)

        async def main() -> None:
            async def ring(limit: asyncio.Timeout) -> None:
                await asyncio.to_thread(gate.wait_until_reached)
                limit.reschedule(0)

            async def run_in_time() -> None:
                async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                    group.create_task(ring(limit))
                    await agent.arun("hi", run_id="r")

            with pytest.raises(TimeoutError):
                await run_in_time()
            await agent.model.aclose()  # type: ignore[attr-defined]

        asyncio.run(main())
    assert [e.type for e in durable.load("r")] == ["run_start"]
