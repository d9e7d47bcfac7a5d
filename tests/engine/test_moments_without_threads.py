"""A moment in which the system gives no thread: whoever needs one hears of it as of any store that fails."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agentor import Agentor, StoreError
from tests.engine.agents import ThreeMethods, agent

CALLS: dict[str, Callable[[Agentor], Awaitable[Any]]] = {
    "arun": lambda mine: mine.arun("go", run_id="new"),
    "aresume": lambda mine: mine.aresume("r"),
    "acancel": lambda mine: mine.acancel("r"),
    "afork": lambda mine: mine.afork("r", "branch"),
}


@contextlib.contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        yield


@pytest.mark.parametrize("name", CALLS)
async def test_what_needs_a_thread_fails_as_its_store_does_and_can_be_done_later(
    store: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if not getattr(store, "blocking", True):
        pytest.skip("a store that needs no thread")
    mine = agent(store)
    for event in agent().run("go").events[:4]:
        store.append("r", event)
    with no_threads(monkeypatch), pytest.raises(StoreError, match="no thread can be started"):
        await CALLS[name](mine)
    assert len(store.load("r")) == 4
    assert not store.load("new")
    await CALLS[name](mine)
    if not isinstance(store, ThreeMethods):
        assert store.holder("r") is None
