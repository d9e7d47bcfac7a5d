"""Many runs of one process look for what is asked of them by one look."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import ClassVar

from agentor import MemoryStore
from agentor.asked import FRESH_S, Asked, asked_of
from agentor.engine import clock
from agentor.engine.clock import SystemClock


class Still(SystemClock):
    """Time passes when the test says so."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s


class Looked(MemoryStore):
    blocking = True  # so that a look takes a while

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def runs_asked(self, kind: str) -> list[str]:
        self.looks += 1
        return super().runs_asked(kind)


async def ask_all(store: MemoryStore, count: int) -> list[bool]:
    asked = await asyncio.gather(*(asked_of(store, f"run{n}", "cancel") for n in range(count)))
    return [each is not None for each in asked]


async def test_five_hundred_runs_look_once_and_each_hears_its_own() -> None:
    store = Looked()
    store.ask("run3", "cancel")
    store.ask("run4", "pause")
    with clock.installed(Still()):  # a look is good for a moment, however slow the machine
        answers = await ask_all(store, 500)
    assert [number for number, is_told in enumerate(answers) if is_told] == [3]
    assert store.looks == 1


async def test_a_look_is_good_for_a_moment_and_no_longer() -> None:
    store = Looked()
    with clock.installed(still := Still()):
        assert await ask_all(store, 2) == [False, False]
        store.ask("run1", "cancel")
        still.passed_s = FRESH_S / 2
        assert await ask_all(store, 2) == [False, False]
        still.passed_s = FRESH_S
        assert await ask_all(store, 2) == [False, True]
    assert store.looks == 2


async def test_a_look_that_is_given_up_or_fails_is_nobody_elses_loss() -> None:
    class Bad(Looked):
        def runs_asked(self, kind: str) -> list[str]:
            found = super().runs_asked(kind)
            if self.looks == 1:
                raise OSError("busy")
            return found

    store = Bad()
    store.ask("run2", "cancel")
    looks = [asyncio.ensure_future(asked_of(store, f"run{n}", "cancel")) for n in range(3)]
    failed, *others = await asyncio.gather(*looks, return_exceptions=True)
    assert isinstance(failed, OSError)
    assert others == [None, Asked()]
    given_up = asyncio.ensure_future(asked_of(store2 := Looked(), "run", "cancel"))
    waiting = asyncio.ensure_future(asked_of(store2, "run", "cancel"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await waiting is None


async def test_a_question_that_was_answered_since_the_look_is_asked_no_more() -> None:
    """A run that is resumed at once after it was cancelled must not hear of that again."""
    store = Looked()
    store.ask("run", "cancel")
    assert await asked_of(store, "run", "cancel") == Asked()
    store.answered("run", "cancel")
    assert await asked_of(store, "run", "cancel") is None


async def test_a_store_that_cannot_be_a_key_is_looked_at_for_each_run() -> None:
    class Unhashable(Looked):
        __hash__ = None  # type: ignore[assignment]

    store = Unhashable()
    store.ask("run1", "cancel")
    assert await ask_all(store, 3) == [False, True, False]


def test_a_loop_that_has_ended_is_kept_by_nobody() -> None:
    store, loops = Looked(), []

    async def look() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await ask_all(store, 3)

    for _ in range(5):
        asyncio.run(look())
    gc.collect()
    assert [loop() for loop in loops] == [None] * 5


def test_each_event_loop_looks_for_itself() -> None:
    store = Looked()
    for _ in range(2):
        assert asyncio.run(ask_all(store, 3)) == [False] * 3
    assert store.looks == 2


async def test_who_asked_is_heard_with_the_same_read() -> None:
    class Counted(Looked):
        asked_for = 0

        def asked(self, run_id: str) -> list[str]:
            self.asked_for += 1
            return super().asked(run_id)

    store = Counted()
    store.ask("run", "cancel", "ada")
    assert await asked_of(store, "run", "cancel") == Asked("ada")
    assert store.asked_for == 0


async def test_a_store_that_knows_of_one_run_at_a_time_is_asked_of_that_one() -> None:
    class Alone:
        blocking = False
        kinds: ClassVar[list[str]] = []

        def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
            self.kinds.append(kind)

        def asked(self, run_id: str) -> list[str]:
            return self.kinds

        def answered(self, run_id: str, kind: str) -> None:
            self.kinds.remove(kind)

    store = Alone()
    assert await asked_of(store, "run", "cancel") is None
    store.ask("run", "cancel", "ada")
    assert await asked_of(store, "run", "cancel") == Asked()
