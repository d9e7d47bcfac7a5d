"""A signal comes at each step of each call of the main thread: the store goes on for everybody else, and can be closed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.events import Event
from agentor.engine.store import FileStore, SQLiteStore, file_opening
from agentor.errors import RunExistsError, RunNotFoundError
from tests.interrupting import Interrupt, elsewhere, handled, interrupted_at

# What a handler raises as an object is collected, Python drops.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STORES: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda place: SQLiteStore(place / "runs.db", synchronous="NORMAL"),
    "file": lambda place: FileStore(place / "runs"),
}
MOST_STEPS = 5_000


def make_ready(store: Any, name: str) -> None:
    runs = store.list_runs()
    if name == "delete" and "old" not in runs:
        store.fork("base", "old")
    if name == "fork" and "new" in runs:
        store.delete("new")


def follow(store: Any) -> None:
    assert list(store.tail("base", timeout=0))


def ask(store: Any) -> None:
    store.ask("base", "cancel", "Ada")
    store.answered("base", "cancel")


CALLS: dict[str, Callable[[Any], Any]] = {
    "append": lambda store: store.append("aside", Event("message", text="m")),
    "load": lambda store: store.load("base"),
    "list_runs": lambda store: store.list_runs(),
    "fork": lambda store: store.fork("base", "new"),
    "delete": lambda store: store.delete("old"),
    "acquire": lambda store: store.release(store.acquire("base", "Ada", 1_000)),
    "ask": ask,
    "tail": follow,
}


def started() -> Event:
    return Event("run_start", agent="A", messages=[])


@pytest.fixture(params=STORES)
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Any]]:
    monkeypatch.setattr(file_opening, "LONGEST_WAIT_S", 0.01)  # so that a lock nobody has is told
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power is cut here
    with handled():
        yield lambda: STORES[request.param](tmp_path)


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and descriptors that are not of the test."""
    monkeypatch.setattr(f"{__name__}.THREADS", frozenset(threading.enumerate()))
    monkeypatch.setattr(f"{__name__}.DESCRIPTORS", frozenset(os.listdir("/dev/fd")))


THREADS: frozenset[threading.Thread] = frozenset()
DESCRIPTORS: frozenset[str] = frozenset()


def writers() -> int:
    threads = set(threading.enumerate()) - THREADS
    return sum(thread.name == "agentor-store-writer" for thread in threads)


def descriptors() -> set[str]:
    return set(os.listdir("/dev/fd")) - DESCRIPTORS


@pytest.mark.parametrize("name", CALLS)
def test_at_whatever_step_a_call_is_interrupted_the_store_works_for_others(
    name: str, make: Callable[[], Any]
) -> None:
    store = make()
    store.append("base", started())
    for step in range(1, MOST_STEPS):
        make_ready(store, name)
        error, reached = interrupted_at(step, lambda: CALLS[name](store))
        assert error is None or isinstance(error, Interrupt)
        if not reached:
            break
        elsewhere(lambda: goes_on(store, name))
    assert not reached
    elsewhere(lambda: [store.close()])
    assert writers() == 0


def goes_on(store: Any, name: str) -> bool:
    """For others: what was called there, a write and a read."""
    with contextlib.suppress(RunExistsError, RunNotFoundError):  # the interrupted call had done it
        CALLS[name](store)
    store.append("aside", Event("message", text="m"))
    assert store.load("base")
    return True


def test_at_whatever_step_the_first_write_is_interrupted_there_is_one_writer(
    tmp_path: Path,
) -> None:
    with handled():
        reached, step = True, 0
        while reached:
            step += 1
            store = STORES["sqlite"](tmp_path)
            _, reached = interrupted_at(step, lambda: store.append(f"r{step}", started()))  # noqa: B023
            elsewhere(lambda: [store.append("other", Event("message", text="m"))])  # noqa: B023
            assert writers() == 1
            elsewhere(lambda: [store.close()])  # noqa: B023
            assert writers() == 0


def test_at_whatever_step_closing_is_interrupted_it_can_be_closed_again(
    make: Callable[[], Any],
) -> None:
    reached, step = True, 0
    while reached:
        step += 1
        store = make()
        store.append(f"r{step}", started())
        store.acquire(f"r{step}", "Ada", 1_000)
        _, reached = interrupted_at(step, store.close)
        elsewhere(lambda: [store.close()])  # noqa: B023
        assert writers() == 0
        assert not descriptors()


@pytest.mark.slow
def test_at_whatever_step_opening_is_interrupted_the_store_can_be_opened(
    make: Callable[[], Any],
) -> None:
    make().close()
    reached, step = True, 0
    while reached:
        step += 1
        _, reached = interrupted_at(step, lambda: make().close())
        again = elsewhere(make)
        elsewhere(lambda: [again.append("r", Event("message", text="m"))])  # noqa: B023
        elsewhere(lambda: [again.close()])  # noqa: B023
        assert writers() == 0


def test_an_interrupted_acquire_leaves_nobody_with_the_run(make: Callable[[], Any]) -> None:
    with make() as store:
        reached, step = True, 0
        while reached:
            step += 1
            error, reached = interrupted_at(step, lambda: store.acquire("r", "Ada", 1_000))
            if error is not None:
                assert store.holder("r") is None
        assert store.holder("r") is not None
