"""The ground of the store contract: how a store is made for a test, and how tests talk to one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.events import MESSAGE, RUN_START, Event
from agentor.engine.store.protocol import (
    Closes,
    Store,
)


class Contract:
    """What the parts of the contract have in common: how a store is made, and what it does not promise."""

    is_persistent = True
    refuses_conflicts = True
    checks_values = True
    checks_run_ids = True

    def make_store(self, place: Path) -> Store:
        raise NotImplementedError(
            "make_store(place) must give a store that keeps its runs in `place`"
        )

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.make_store(tmp_path)
        yield store
        close(store)

    def _needs_conflicts(self) -> None:
        if not self.refuses_conflicts:
            pytest.skip("does not check the seq of an event")

    def _needs_values(self) -> None:
        if not self.checks_values:
            pytest.skip("relies on agentor to check values")


def start(**fields: Any) -> Event:
    return Event(RUN_START, agent="tester", model="none", **fields)


def said(text: str, **fields: Any) -> Event:
    return Event(MESSAGE, text=text, **fields)


def texts(events: list[Event]) -> list[str | None]:
    return [event.text for event in events]


def fill(store: Store, run_id: str, length: int) -> None:
    """A run of `length` events: a start, then one text after the other."""
    store.append(run_id, start(seq=1))
    for seq in range(2, length + 1):
        store.append(run_id, said(f"{seq}", seq=seq))


def offered(store: Store, protocol: Any) -> Any:
    """The store, seen as something that offers `protocol`; the test is skipped if it does not."""
    if not isinstance(store, protocol):
        pytest.skip(f"offers no {protocol.__name__}")
    return store


def close(store: Store) -> None:
    if isinstance(store, Closes):
        store.close()


def race(count: int, act: Callable[[int], Any]) -> list[Any]:
    """`act(0)` to `act(count - 1)` at the same moment, each on a thread of its own; results or exceptions."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        try:
            return act(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
