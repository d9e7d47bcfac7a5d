"""Ctrl-C at each step of a call from synchronous code: nothing goes on behind the caller's back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor
from agentor.blocking import wait_for
from agentor.engine.store import MemoryStore
from agentor.testing import ScriptedModel, says
from tests.interrupting import Interrupt, handled, interrupted_at

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CALLS: dict[str, Callable[[Agentor], Any]] = {
    "run": lambda agent: agent.run("Weather?", run_id="new"),
    "resume": lambda agent: agent.resume("open"),
    "fork": lambda agent: agent.fork("done", "And tomorrow?", fork_id="new"),
}


def with_runs() -> MemoryStore:
    """One run that is done, and one that has only begun."""
    store = MemoryStore()
    Agentor("A", model=ScriptedModel([says("mild")]), store=store).run("?", run_id="done")
    store.append("open", store.load("done")[0].with_(run_id="open"))
    return store


class Endless:
    """A model that never answers: who was not stopped would wait for it for ever."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        await asyncio.Event().wait()


async def others() -> list[asyncio.Task[Any]]:
    """The calls of synchronous code that are under way on the loop, but for this one."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return [task for task in tasks if task.get_coro().__qualname__ == "_made"]


@pytest.mark.parametrize("name", CALLS)
def test_at_whatever_step_a_call_is_interrupted_it_ends_or_has_not_begun(name: str) -> None:
    step, model = 0, Endless()
    with handled():
        while model.asked < 5:  # the last of them as the caller waits
            step += 1
            store = with_runs()
            before = store.list_runs()
            agent = Agentor("A", model=model, store=store)
            error, _ = interrupted_at(step, lambda: CALLS[name](agent))  # noqa: B023
            assert isinstance(error, Interrupt)
            assert wait_for(others) == []
            assert store.holder("open") is None
            assert store.holder("new") is None
            made = set(store.list_runs()) - set(before)
            told = " ".join(getattr(error, "__notes__", ()))
            assert name != "fork" or all(run_id in told for run_id in made)


@pytest.mark.parametrize("name", CALLS)
def test_at_whatever_step_until_its_end_a_call_is_interrupted_nothing_goes_on(name: str) -> None:
    """At the last steps the work is done, and its result is not the caller's yet: a fork is named, then, too."""
    with handled():
        for step in range(1, 5_000):
            store = with_runs()
            agent = Agentor("A", model=ScriptedModel([says("warm")]), store=store)
            error, reached = interrupted_at(step, lambda: CALLS[name](agent))  # noqa: B023
            if not reached:
                return
            if error is None:  # Python dropped it: it came as an object was collected
                continue
            assert isinstance(error, Interrupt)
            assert wait_for(others) == []
            told = " ".join(getattr(error, "__notes__", ()))
            assert name != "fork" or "new" not in store.list_runs() or "new" in told
    pytest.fail("the call has no end")
