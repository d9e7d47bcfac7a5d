"""A cancellation is told once. Whoever lets it pass gets nothing begun after it: no tool, no other model, no next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, ModelError, RunResult, function_tool
from agentor.engine.replay import verify
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import types

PAYS = calls(("pay", {}))
ANSWERS = says("What there is so far.")


class Swallowing:
    """Gives what it has when it is cancelled, as `asyncio.wait_for` of Python 3.11 does if both come at once."""

    def __init__(self, reply: Any) -> None:
        self.entered = asyncio.Event()
        self._reply = reply

    async def complete(self, messages: Any, tools: Any = None) -> Any:
        self.entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if isinstance(self._reply, Exception):
                raise self._reply from None
            return self._reply.response()
        raise AssertionError("nobody sets it")


class Shop:
    def __init__(self, store: Any, reply: Any, *fallbacks: Any) -> None:
        self.started: list[str] = []
        self.model, self.fallbacks = Swallowing(reply), fallbacks
        self.agent = Agentor(
            "Shop",
            model=self.model,
            tools=[self._tool("pay"), self._tool("look")],
            store=store,
        )

    def run(self) -> asyncio.Task[RunResult]:
        return asyncio.create_task(
            self.agent.arun("go", run_id="r", fallback_models=self.fallbacks)
        )

    def _tool(self, name: str) -> Any:
        @function_tool(name_override=name)
        async def tool() -> str:
            """Do it."""
            self.started.append(name)
            return "done"

        return tool


async def cancelled(shop: Shop) -> RunResult | None:
    running = shop.run()
    await shop.model.entered.wait()
    assert await shop.agent.acancel("r", by="ada")
    return await running


async def let_go(shop: Shop) -> RunResult | None:
    await shop.agent.aenqueue("go", run_id="r")
    worker = shop.agent.worker()
    working = asyncio.create_task(worker.work())
    await shop.model.entered.wait()
    worker.stop()
    await working
    return None


async def abandoned(shop: Shop) -> RunResult | None:
    running = shop.run()
    await shop.model.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return None


WAYS = pytest.mark.parametrize("way", [cancelled, let_go, abandoned])


@WAYS
@pytest.mark.parametrize("reply", [PAYS, calls(("pay", {}), ("look", {})), ANSWERS])
async def test_a_model_that_lets_a_cancellation_pass_has_its_reply_recorded_and_nothing_begun(
    store: Any, way: Callable[[Shop], Any], reply: Any
) -> None:
    shop = Shop(store, reply)
    result = await way(shop)
    log = store.load("r")
    begun = ["run_start", "run_start"] if way is let_go else ["run_start"]
    ends = {cancelled: ["cancel", "run_end"], let_go: ["stop"], abandoned: []}
    assert types(log) == [*begun, "generation", *ends[way]]
    assert shop.started == []
    assert result is None or result.status == "cancelled"
    assert verify(log) == []


@WAYS
async def test_the_run_goes_on_from_there_and_its_reply_is_not_asked_for_again(
    store: Any, way: Callable[[Shop], Any]
) -> None:
    await way(Shop(store, ANSWERS))
    idle = ScriptedModel([])
    again = await Agentor("Shop", model=idle, store=store).aresume("r")
    assert (again.status, again.final_output) == ("completed", "What there is so far.")
    assert idle.requests == []


@pytest.mark.parametrize("way", [cancelled, abandoned])
async def test_no_other_model_is_asked_when_one_makes_an_error_of_its_cancellation(
    store: Any, way: Callable[[Shop], Any]
) -> None:
    other = ScriptedModel([])
    shop = Shop(store, ModelError("the connection was closed", retryable=True), other)
    await way(shop)
    assert other.requests == []
    assert "generation" not in types(store.load("r"))
