"""A cancel beside another end of its run, at whichever moment and from whichever side: it is recorded, or it was too late
and whoever asked is not told that it is done. Nobody who resumes the run later meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentor import Agentor, LeaseHeldError, LeaseLostError, MemoryStore, StoreError, driving
from agentor.engine.events import CANCEL, Event
from agentor.engine.replay import verify
from agentor.engine.store.protocol import Lease
from agentor.stopping import OVERDUE, LetGo, Stop, Stopper, cancel_run, tell
from agentor.testing import ScriptedModel, says
from tests.engine.agents import agent, types
from tests.engine.test_cancelled_as_it_ends import (
    Elsewhere,
    asking,
    fails,
    runs_out_of_turns,
    waits_for_a_person,
)

__all__ = ["asking"]

ENDS = [fails, runs_out_of_turns, waits_for_a_person]


def nothing() -> None:
    pass


def ended_by_ada(store: Any) -> bool:
    log = store.load("r")
    assert verify(log) == []
    return types(log)[-2:] == ["cancel", "run_end"] and (log[-2].by, log[-1].status) == (
        "Ada",
        "cancelled",
    )


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("end", ENDS)
async def test_a_cancel_in_the_same_process_beside_the_last_look_is_recorded(
    store: Any, monkeypatch: pytest.MonkeyPatch, end: Any, is_before: bool
) -> None:
    model, how = end(nothing)
    mine = Agentor("A", model=model, store=store, **how)
    look, cancels = driving.cancelled_meanwhile, []

    async def looked(store: object, run_id: str) -> Stop | None:
        cancel = mine.acancel("r", by="Ada")
        found = None if is_before else await look(store, run_id)
        cancels.append(asyncio.create_task(cancel))
        return await look(store, run_id) if is_before else found

    monkeypatch.setattr(driving, "cancelled_meanwhile", looked)
    await asyncio.gather(mine.arun("go", run_id="r"), return_exceptions=True)
    [cancelled] = await asyncio.gather(*cancels)
    assert cancelled
    assert ended_by_ada(store)
    assert not hasattr(store, "asked") or store.asked("r") == []


async def test_a_cancel_that_comes_too_late_for_a_spent_budget_does_not_meet_the_next_resume(
    asking: Any,
) -> None:
    spent = agent(asking, scripted_and(lambda: asking.ask("r", "cancel", by="Bob")), budget=1)
    assert (await spent.arun("go", run_id="r")).status == "budget"
    assert asking.asked("r") == []
    more = agent(asking, ScriptedModel([says("answer")]), budget=1000)
    assert (await more.aresume("r")).final_output == "answer"


def scripted_and(then: Callable[[], None]) -> ScriptedModel:
    async def reply(messages: Any) -> Any:
        then()
        return says("", usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})

    return ScriptedModel(reply)


async def test_a_cancel_of_a_run_whose_time_was_up_does_not_meet_the_next_resume(
    asking: Any,
) -> None:
    asking.append("r", Event("run_start", messages=[{"role": "user", "content": "go"}]))
    asking.ask("r", "cancel", by="Bob")
    late = agent(asking, ScriptedModel([]), deadline_s=1e-9)
    assert (await late.aresume("r")).status == "deadline"
    assert asking.asked("r") == []
    assert (await agent(asking, ScriptedModel([says("yes")])).aresume("r")).final_output == "yes"


async def test_a_cancel_of_a_run_that_waits_for_a_person_counts_also_when_its_time_is_up(
    asking: Any,
) -> None:
    model, how = waits_for_a_person(nothing)
    mine = Agentor("A", model=model, store=asking, **how)
    assert (await mine.arun("go", run_id="r")).status == "paused"
    asking.ask("r", "cancel", by="Ada")
    late = Agentor("A", model=ScriptedModel([]), store=asking, deadline_s=1e-9, **how)
    assert (await late.aresume("r")).status == "cancelled"
    assert ended_by_ada(asking)
    assert asking.asked("r") == []


@pytest.mark.parametrize("reason", [LetGo(), OVERDUE])
async def test_a_cancel_of_a_run_that_fails_while_it_is_stopped_for_another_reason_counts(
    asking: Any, reason: Any
) -> None:
    async def reply(messages: Any) -> Any:
        assert tell(asking, "r", reason)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            asking.ask("r", "cancel", by="Ada")
            raise ConnectionError("the provider is down") from None

    mine = Agentor("A", model=ScriptedModel(reply), store=asking)
    await asyncio.gather(mine.arun("go", run_id="r"), return_exceptions=True)
    assert ended_by_ada(asking)
    assert asking.asked("r") == []


@pytest.mark.parametrize("reason", [LetGo(), OVERDUE])
async def test_a_cancel_that_is_told_after_another_reason_counts_before_it(
    store: Any, reason: Any
) -> None:
    async def reply(messages: Any) -> Any:
        assert tell(store, "r", reason)
        assert tell(store, "r", Stop("cancelled", "Cancelled.", "Ada"))
        await asyncio.get_running_loop().create_future()

    mine = Agentor("A", model=ScriptedModel(reply), store=store)
    assert (await mine.arun("go", run_id="r")).status == "cancelled"
    assert ended_by_ada(store)


async def test_whoever_tells_a_closed_stopper_learns_that_it_is_too_late() -> None:
    store = MemoryStore()
    stopper = Stopper(store, "r")
    waiting = asyncio.ensure_future(stopper.wait())
    await asyncio.sleep(0)
    assert stopper.close() is None
    assert not tell(store, "r", Stop("cancelled", "Cancelled.", "Ada"))
    assert tell(store, "r", LetGo())  # which it does
    assert not waiting.done()
    waiting.cancel()


# Whoever asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreError("the disk is full"), LeaseLostError("r")])
async def test_a_question_that_is_put_is_asked_whatever_becomes_of_the_second_try(
    asking: Any, error: Exception
) -> None:
    def break_it(store: Any, lease: Any) -> None:
        def acquire(*args: Any) -> Lease:
            raise error

        asking.acquire = acquire

    Elsewhere(asking, break_it)
    assert await cancel_run(asking, "r", "Ada") == "asked"
    assert asking.asked("r") == ["cancel"]


def lets_go_after(refusals: int, end: Sequence[Event]) -> Callable[[Any, Any], None]:
    """Whoever has the run has just come to this end, and lets go of it when so many were refused since."""

    def then(store: Any, lease: Any) -> None:
        left, acquire = [refusals], store.acquire
        store.append_many("r", end, lease)

        def acquired(*args: Any) -> Any:
            if not left[0]:
                store.release(lease)
            left[0] -= 1
            return acquire(*args)

        store.acquire = acquired

    return then


async def test_whoever_cancels_a_run_that_is_just_being_let_go_of_waits_for_that(
    asking: Any,
) -> None:
    Elsewhere(asking, lets_go_after(1, [Event("run_end", status="failed")]))
    assert await cancel_run(asking, "r", "Ada") == "cancelled"
    assert ended_by_ada(asking)
    assert asking.asked("r") == []


async def test_a_cancel_that_was_heard_before_the_second_try_is_done(asking: Any) -> None:
    end = [Event("cancel", by="Ada"), Event("run_end", status="cancelled")]
    Elsewhere(asking, lets_go_after(0, end))
    assert await cancel_run(asking, "r", "Ada") == "cancelled"
    assert (types(asking.load("r")).count("cancel"), asking.asked("r")) == (1, [])


async def test_a_cancel_of_what_has_completed_and_is_being_let_go_of_is_over(asking: Any) -> None:
    Elsewhere(asking, lets_go_after(1, [Event("run_end", status="completed")]))
    assert await cancel_run(asking, "r", "Ada") == "over"
    assert asking.asked("r") == []


async def test_a_run_that_has_ended_and_is_held_is_not_waited_for_without_end(
    asking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentor.stopping.LEAVING_S", 0.0)
    Elsewhere(asking, lets_go_after(99, [Event("run_end", status="failed")]))
    assert await cancel_run(asking, "r", "Ada") == "asked"
    with pytest.raises(LeaseHeldError):
        asking.acquire("r", "another", 30.0)


# What is told of it -----------------------------------------------------------------------------------------------


class RefusesCancels(MemoryStore):
    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        if any(event.type == CANCEL for event in events):
            raise StoreError("the disk is full")
        super().append_many(run_id, events, lease)


async def test_a_late_cancel_that_strict_could_not_save_leaves_the_end_as_it_was() -> None:
    store = RefusesCancels()
    model, how = waits_for_a_person(lambda: store.ask("r", "cancel", by="Ada"))
    mine = Agentor("A", model=model, store=store, durability="strict", **how)
    ended = await mine.arun("go", run_id="r")
    assert (ended.status, ended.unsaved, ended.events) == ("paused", 0, store.load("r"))
    assert store.asked("r") == ["cancel"]  # nobody has heard it


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_of_items_has_one_last_item_also_when_a_late_cancel_follows_the_end(
    asking: Any, end: Any
) -> None:
    model, how = end(lambda: asking.ask("r", "cancel", by="Ada"))
    mine = Agentor("A", model=model, store=asking, **how)
    items: list[Any] = []

    async def read() -> None:
        async for item in mine.stream_chat("go", serialize=False, run_id="r"):
            items.append(item)

    [failure] = await asyncio.gather(read(), return_exceptions=True)
    assert [item.status for item in items if item.status] == ["cancelled"]
    assert items[-1].status == "cancelled"
    assert isinstance(failure, Exception) == (end is fails)


async def test_a_reader_that_leaves_at_the_last_item_hears_of_no_failure(store: Any) -> None:
    mine = Agentor("A", model=fails(nothing)[0], store=store)
    stream = mine.stream_chat("go", serialize=False, run_id="r")
    item: Any = await anext(stream)
    assert item.status == "failed"
    await stream.aclose()
