from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor.engine import clock
from tests.engine.agents import STORES
from tests.engine.lease_book import Book
from tests.engine.leases import TestClock


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store = STORES[request.param](tmp_path)
    yield store
    if hasattr(store, "close"):
        store.close()


@pytest.fixture
def plain_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without a nonce, as older logs have them: an idempotency key is then known before its run begins."""
    monkeypatch.setattr(clock, "new_nonce", lambda: None)


@pytest.fixture
def time() -> Iterator[TestClock]:
    mine = TestClock()
    with clock.installed(mine):
        yield mine


@pytest.fixture
def book(time: TestClock) -> Book:
    return Book(time)
