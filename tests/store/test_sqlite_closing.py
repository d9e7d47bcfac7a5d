"""A store that is closed while runs are under way: they end at once, and say why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentor import Agentor, SQLiteStore, StoreClosedError, function_tool
from agentor.engine.lease import Keeper
from agentor.testing import ScriptedModel, calls


def test_closing_the_store_ends_a_run_before_its_next_call_and_keeps_what_was_saved(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    begun: list[int] = []

    @function_tool
    def look(number: int) -> str:
        """Look."""
        begun.append(number)
        if begun == [1, 2]:
            store.close()
        return "seen"

    turns = [calls(("look", {"number": number})) for number in range(1, 5)]
    agent = Agentor("A", model=ScriptedModel([*turns, "done"]), tools=[look], store=store)
    with pytest.raises(StoreClosedError, match=r"runs\.db: this store is closed") as caught:
        agent.run("go", run_id="r")
    assert begun == [1, 2]
    assert any("resume('r')" in note for note in caught.value.__notes__)
    with SQLiteStore(tmp_path / "runs.db") as reopened:
        assert [event.type for event in reopened.load("r")][-2:] == ["generation", "tool_call"]
        assert reopened.holder("r") is not None  # until it expires: a closed store cannot let it go


def test_a_run_is_not_even_begun_on_a_closed_store(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    store.close()
    model = ScriptedModel(["done"])
    with pytest.raises(StoreClosedError):
        Agentor("A", model=model, store=store).run("go")
    assert model.requests == []


def test_a_closed_store_is_not_entered_again(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store, store:
        pass
    begun = []
    with pytest.raises(StoreClosedError), store:
        begun.append("the block")
    assert begun == []


def test_a_lease_that_nobody_can_renew_any_more_is_lost_at_once(tmp_path: Path) -> None:
    async def hold() -> None:
        store = SQLiteStore(tmp_path / "runs.db", lease_ttl_s=30)
        keeper = Keeper(store, "r")
        await keeper.acquire()
        store.close()
        assert keeper.lease is not None
        await keeper._renew(store, keeper.lease)
        await asyncio.wait_for(keeper.keep(), 10)  # returns: there is nothing left to keep
        with pytest.raises(StoreClosedError):
            keeper.check()

    asyncio.run(hold())
