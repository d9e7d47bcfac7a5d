"""A run is told to end while a write of its own is on its way: the write counts, and the end follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from agentor import MemoryStore
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.engine.store.protocol import Lease
from agentor.errors import StoreError
from agentor.stopping import OVERDUE, Stop, tell
from tests.engine.agents import ANSWER, Tools, agent

TURNS_OF_THE_LOOP = 30  # that a write takes: far more than a cancellation needs


class Slow(MemoryStore):
    """Each write takes a while; `begun` is called when write number `at` has begun."""

    blocking = True

    def __init__(self, at: int, begun: Callable[[], object], fails: bool = False) -> None:
        super().__init__()
        self._at, self._begun, self._fails = at, begun, fails
        self.writes = 0

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        self.writes += 1
        future: Future[None] = Future()
        fails = self._fails and self.writes == self._at
        if self.writes == self._at:
            self._begun()
        asyncio.get_running_loop().call_soon(
            self._later, TURNS_OF_THE_LOOP, future, run_id, events, lease, fails
        )
        return future

    def _later(
        self, turns: int, future: Future[None], run_id: str, events: Any, lease: Any, fails: bool
    ) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(
                self._later, turns - 1, future, run_id, events, lease, fails
            )
            return
        try:
            if fails:
                raise StoreError("the disk is full for a moment")
            self.append_many(run_id, events, lease)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)


def all_writes() -> int:
    store = Slow(0, lambda: None)
    agent(store).run("go", run_id="r")
    return store.writes


ENDS = [Stop("cancelled", "Cancelled.", "ada"), OVERDUE]


@pytest.mark.parametrize("stop", ENDS, ids=lambda stop: stop.status)
@pytest.mark.parametrize("fails", [False, True], ids=["saved", "not saved at first"])
@pytest.mark.parametrize("number", range(2, all_writes() + 1))
async def test_an_end_that_meets_a_write_follows_it_in_a_legal_log(
    number: int, fails: bool, stop: Stop
) -> None:
    store = Slow(number, lambda: tell(store, "r", stop), fails)
    tools = Tools()
    result = await agent(store, tools=tools).arun("go", run_id="r")
    log = store.load("r")
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert verify(log) == []
    assert log == result.events
    assert result.unsaved == 0
    if number < all_writes():
        assert result.status == stop.status
    again = await agent(store, tools=tools).aresume("r")
    assert again.final_output == ANSWER
    for event in log:
        if event.type == "tool_result" and event.name != "pay":
            assert tools.ran[f"get_weather {_city(log, event)}"] == 1


def _city(log: list[Event], result: Event) -> str:
    (call,) = [e for e in log if e.type == "tool_call" and e.call_id == result.call_id]
    assert call.args is not None
    return str(call.args["city"])
