"""An agent closes what it has opened itself, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, SQLiteStore, StoreError
from agentor.engine.models import ModelResponse
from agentor.testing import FakeServer, says


class Closable:
    """A model that knows whether it was closed."""

    closed = False

    async def complete(self, messages: Any, tools: Any = None, response_format: Any = None) -> Any:
        return ModelResponse(content="Hello.")

    async def aclose(self) -> None:
        self.closed = True


def is_open(store: Any) -> bool:
    try:
        store.list_runs()
    except StoreError:
        return False
    return True


def test_with_closes_the_store_that_was_given_by_its_path(tmp_path: Path) -> None:
    with Agentor("A", model=Closable(), store=tmp_path / "runs.db") as agent:
        agent.run("hi")
        assert is_open(agent.store)
    assert not is_open(agent.store)


async def test_async_with_closes_the_store_that_was_given_by_its_path(tmp_path: Path) -> None:
    async with Agentor("A", model=Closable(), store=tmp_path / "runs.db") as agent:
        await agent.arun("hi")
        assert is_open(agent.store)
    assert not is_open(agent.store)


def test_a_store_and_a_model_that_the_caller_made_stay_open(tmp_path: Path) -> None:
    model = Closable()
    with SQLiteStore(tmp_path / "runs.db") as store:
        with Agentor("A", model=model, store=store) as agent:
            agent.run("hi", fallback_models=[model])
        assert is_open(store)
        assert not model.closed
        assert Agentor("B", model=model, store=store).run("hi").status == "completed"


def test_a_store_that_was_put_in_afterwards_stays_open(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "other.db") as store:
        with Agentor("A", model=Closable(), store=tmp_path / "runs.db") as agent:
            own, agent.store = agent.store, store
            agent.run("hi")
        assert is_open(store)
        assert not is_open(own)


def test_an_agent_closes_also_when_what_is_inside_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Agentor("A", model=Closable(), store=tmp_path / "r.db") as agent,
    ):
        _ = 1 / 0
    assert not is_open(agent.store)


async def test_a_model_given_by_name_loses_its_connections_fallbacks_too() -> None:
    with FakeServer(lambda request: says("Hello.")) as server:
        async with Agentor("A", model="m", base_url=server.base_url, api_key="k") as agent:
            await agent.arun("hi", fallback_models=["n"])
            closed: list[str] = []
            for model in (agent.model, *agent._fallbacks.by_name.values()):
                noted(model, closed)
        assert closed == ["m", "n"]


def noted(model: Any, closed: list[str]) -> None:
    """Put the model's name into `closed` when it is closed."""
    close = model.aclose

    async def aclose() -> None:
        closed.append(model.model)
        await close()

    model.aclose = aclose


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    agent = Agentor("A", model=Closable(), store=tmp_path / "runs.db")
    agent.close()
    agent.close()
