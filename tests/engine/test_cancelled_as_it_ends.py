"""A cancel that comes while a run comes to another end: it counts where there is still something to cancel, and is never
left for whoever resumes the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, RunNotFoundError, function_tool
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.engine.store.protocol import Signals
from agentor.stopping import cancel_run
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import types


@pytest.fixture
def asking(store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store that passes the word on, and no run of which looks for it on its way: its looks would sometimes come between
    the question and the end."""
    if not isinstance(store, Signals):
        pytest.skip("a store that passes no word on")

    async def never(*args: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("agentor.stopping.asked_of", never)
    return store


def fails(ask: Callable[[], None]) -> tuple[ScriptedModel, dict[str, Any]]:
    def reply(messages: Any) -> Any:
        ask()
        return ConnectionError("the provider is down")

    return ScriptedModel(reply), {}


def runs_out_of_turns(ask: Callable[[], None]) -> tuple[ScriptedModel, dict[str, Any]]:
    @function_tool
    def look() -> str:
        """Look."""
        ask()
        return "nothing"

    return ScriptedModel([calls(("look", {}))]), {"tools": [look], "max_turns": 1}


def waits_for_a_person(ask: Callable[[], None]) -> tuple[ScriptedModel, dict[str, Any]]:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    def reply(messages: Any) -> Any:
        ask()
        return calls(("pay", {}))

    return ScriptedModel(reply), {"tools": [pay]}


@pytest.mark.parametrize("end", [fails, runs_out_of_turns, waits_for_a_person])
async def test_a_cancel_that_is_asked_as_the_run_ends_is_recorded_and_does_not_meet_its_resume(
    asking: Any, end: Callable[[Callable[[], None]], tuple[ScriptedModel, dict[str, Any]]]
) -> None:
    model, how = end(lambda: asking.ask("r", "cancel", by="Ada"))
    mine = Agentor("A", model=model, store=asking, **how)
    [ended] = await asyncio.gather(mine.arun("go", run_id="r"), return_exceptions=True)
    log = asking.load("r")
    assert types(log)[-2:] == ["cancel", "run_end"]
    assert (log[-2].by, log[-1].status) == ("Ada", "cancelled")
    assert verify(log) == []
    assert asking.asked("r") == []
    assert end is fails or ended.status == "cancelled"
    if end is fails:
        later = Agentor("A", model=ScriptedModel([says("answer")]), store=asking)
        assert (await later.aresume("r")).final_output == "answer"


async def test_a_run_that_nobody_cancelled_ends_as_it_ends(store: Any) -> None:
    model, how = waits_for_a_person(lambda: None)
    ended = await Agentor("A", model=model, store=store, **how).arun("go", run_id="r")
    assert (ended.status, types(store.load("r")).count("run_end")) == ("paused", 1)


class Elsewhere:
    """A run that somebody has who lets go of it, hears or ends it just when the question is put."""

    def __init__(self, store: Any, then: Callable[[Any, Any], None]) -> None:
        store.append("r", Event("run_start", messages=[{"role": "user", "content": "go"}]))
        self._ask, lease = store.ask, store.acquire("r", "somebody", 30.0)

        def ask(run_id: str, kind: str, by: str | None = None) -> None:
            then(store, lease)
            self._ask(run_id, kind, by)

        store.ask = ask


def end_it(store: Any, lease: Any) -> None:
    store.append_many("r", [Event("run_end", status="completed")], lease)
    store.release(lease)


def delete_it(store: Any, lease: Any) -> None:
    store.release(lease)
    store.delete("r")


async def test_a_cancel_is_answered_by_whoever_asks_if_the_run_was_let_go_of_meanwhile(
    asking: Any,
) -> None:
    Elsewhere(asking, lambda store, lease: store.release(lease))
    assert await cancel_run(asking, "r", "Ada") == "cancelled"
    assert (asking.load("r")[-1].status, asking.asked("r")) == ("cancelled", [])


async def test_a_cancel_of_what_has_completed_meanwhile_leaves_no_question(asking: Any) -> None:
    Elsewhere(asking, end_it)
    assert await cancel_run(asking, "r", "Ada") == "over"
    assert asking.asked("r") == []


async def test_a_cancel_of_what_was_deleted_meanwhile_is_not_asked_of_the_next_run_of_that_id(
    asking: Any,
) -> None:
    Elsewhere(asking, delete_it)
    with pytest.raises(RunNotFoundError):
        await cancel_run(asking, "r", "Ada")
    assert asking.asked("r") == []


async def test_a_cancel_of_what_is_still_worked_on_waits_to_be_heard(asking: Any) -> None:
    Elsewhere(asking, lambda store, lease: None)
    assert await cancel_run(asking, "r", "Ada") == "asked"
    assert asking.asked("r") == ["cancel"]


async def test_a_run_that_was_told_in_its_own_process_and_fails_first_is_cancelled_all_the_same(
    store: Any,
) -> None:
    async def reply(messages: Any) -> Any:
        assert await mine.acancel("r", by="Ada")
        raise ConnectionError("the provider is down")

    mine = Agentor("A", model=ScriptedModel(reply), store=store)
    await asyncio.gather(mine.arun("go", run_id="r"), return_exceptions=True)
    log = store.load("r")
    assert (types(log)[-2:], log[-2].by) == (["cancel", "run_end"], "Ada")
    assert log[-1].status == "cancelled"
