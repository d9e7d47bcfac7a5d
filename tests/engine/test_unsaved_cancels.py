"""A cancel is answered by the end that is in the log, and by nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentor import MemoryStore, StoreError, stopping
from agentor.engine.events import Event
from agentor.testing import ScriptedModel
from tests.engine.agents import agent


class Full(MemoryStore):
    """No room for the end of a run."""

    def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
        if any(event.type == "run_end" for event in events):
            raise StoreError("full")
        super().append_many(run_id, events, lease)

    def append(self, run_id: str, event: Event, lease: Any = None) -> None:
        self.append_many(run_id, [event], lease)


async def test_a_cancel_whose_end_could_not_be_saved_is_still_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopping, "LOOK_S", 0.01)
    store = Full()

    class Asking(ScriptedModel):
        async def complete(self, *_: Any, **__: Any) -> Any:
            store.ask("run", "cancel")
            await asyncio.get_running_loop().create_future()

    result = await agent(store, Asking([])).arun("go", run_id="run")
    assert (result.status, result.unsaved) == ("cancelled", 2)
    assert [event.type for event in store.load("run")] == ["run_start"]
    assert "cancel" in store.asked("run")
