"""Who ends a fork learns what there is: either nothing was copied, or the exception names the fork."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, MemoryStore
from agentor.blocking import wait_for
from agentor.engine.events import Event
from agentor.testing import ScriptedModel, says
from tests.engine.agents import STORES, ThreeMethods


class Dawdling:
    """Goes on through so many turns of the event loop before it answers."""

    async def complete(self, *args: Any, **kwargs: Any) -> Any:
        for _ in range(10):
            await asyncio.sleep(0)
        return await ScriptedModel([says("warm")]).complete(*args, **kwargs)


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


NAMED = "The fork is run 'f': resume it, or fork again."


async def forked_until(store: Any, turns: int, question: str | None) -> BaseException | None:
    """How a fork ends that is cancelled after so many turns of the loop; None if it had ended by then."""
    forking = asyncio.create_task(
        Agentor("A", model=Dawdling(), store=store).afork("p", question, fork_id="f")
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    forking.cancel()
    try:
        await forking
    except asyncio.CancelledError as error:
        return error
    return None


@pytest.mark.parametrize("kind", ["memory", "three methods"])
@pytest.mark.parametrize("question", [None, "And tomorrow?"])
async def test_a_fork_that_is_cancelled_anywhere_is_named_or_was_not_made(
    tmp_path: Path, kind: str, question: str | None
) -> None:
    seen = set()
    for turns in range(200):
        store = STORES[kind](tmp_path)
        store.blocking = False  # so that a turn of the loop is all that ever passes
        model = ScriptedModel([says("mild")])
        await Agentor("A", model=model, store=store).arun("Weather?", run_id="p")
        error = await forked_until(store, turns, question)
        if error is None:
            break
        is_there = "f" in store.list_runs()
        assert notes(error) == [NAMED] * is_there
        seen.add(is_there)
        again = {} if is_there else {"fork_id": "f"}
        agent = Agentor("A", model=Dawdling(), store=store)
        assert (await agent.afork("p", question, **again)).status == "completed"
    else:
        pytest.fail("it never ends")
    assert seen == {True, False}


class Held(MemoryStore):
    """A fork is under way, on a thread, for as long as the test wants."""

    blocking = True

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.begun, self.may_end, self.fails = threading.Event(), threading.Event(), fails

    def fork(
        self, src: str, dst: str, *, at: int | None = None, event: Event | None = None
    ) -> None:
        self.begun.set()
        assert self.may_end.wait(10.0)
        if self.fails:
            raise OSError("no space")
        super().fork(src, dst, at=at, event=event)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_fork_that_is_cancelled_while_it_is_copied_is_named_if_the_copy_was_made(
    fails: bool,
) -> None:
    store = Held(fails)
    agent = Agentor("A", model=ScriptedModel([says("mild")]), store=store)
    await agent.arun("Weather?", run_id="p")
    forking = asyncio.create_task(agent.afork("p", fork_id="f"))
    await asyncio.to_thread(store.begun.wait, 10.0)
    forking.cancel()
    await asyncio.sleep(0)
    assert not forking.done()
    store.may_end.set()
    with pytest.raises(asyncio.CancelledError) as ended:
        await forking
    assert ("f" in store.list_runs()) == (not fails)
    assert notes(ended.value) == [] if fails else [NAMED]
    assert store.holder("f") is None


INTERRUPTS: list[Callable[[], BaseException]] = [KeyboardInterrupt, lambda: SystemExit(3)]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("when", ["while it goes on", "before it is copied", "when it has ended"])
def test_who_interrupts_a_blocking_fork_is_told_what_there_is(
    interrupt: Callable[[], BaseException], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reached = ThreeMethods(), threading.Event()

    class Waiting:
        async def complete(self, *args: Any, **kwargs: Any) -> Any:
            if when != "when it has ended":
                reached.set()
                await asyncio.sleep(60.0)
            return await ScriptedModel([says("warm")]).complete(*args, **kwargs)

    class Early(ThreeMethods):
        def load(self, run_id: str) -> list[Event]:
            if when == "before it is copied" and run_id == "p":
                reached.set()
                assert interrupted.wait(10.0)
            return super().load(run_id)

    interrupted = threading.Event()
    Agentor("A", model=ScriptedModel([says("mild")]), store=store).run("Weather?", run_id="p")
    early = Early()
    early.runs = store.runs
    agent = Agentor("A", model=Waiting(), store=early)

    def wait(future: Any) -> None:
        """In the place of the signal that comes while the main thread waits."""
        monkeypatch.undo()
        if when == "when it has ended":
            assert future.exception(10.0) is None
        else:
            assert reached.wait(10.0)
            interrupted.set()
        raise interrupt()

    monkeypatch.setattr("agentor.blocking.ended", wait)
    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        agent.fork("p", "And tomorrow?", fork_id="f")
    told = {"while it goes on": [NAMED], "when it has ended": ["It had ended by then, as run 'f'."]}
    assert notes(ended.value) == told.get(when, [])
    assert ("f" in early.list_runs()) == (when in told)


def test_an_interrupt_of_the_work_itself_keeps_its_notes_as_they_are() -> None:
    async def leaves() -> None:
        error = KeyboardInterrupt()
        error.add_note("once")
        raise error

    with pytest.raises(KeyboardInterrupt) as ended:
        wait_for(leaves)
    assert notes(ended.value) == ["once"]
