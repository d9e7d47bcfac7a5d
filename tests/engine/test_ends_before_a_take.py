"""What a worker has chosen can come to an end before it has the run's lease."""

from __future__ import annotations

from typing import Any

import pytest

from agentor import MemoryStore
from agentor.engine.events import Event
from agentor.testing import ScriptedModel
from tests.engine.agents import agent, types


class EndedFirst(MemoryStore):
    """Somebody writes the end of a run just before a lease on it is given."""

    end: Event | None = None

    def acquire(self, run_id: str, *rest: Any) -> Any:
        end, self.end = self.end, None
        if end is not None:
            self.append(run_id, end)
        return super().acquire(run_id, *rest)


@pytest.mark.parametrize("status", ["cancelled", "parked", "deadline", "max_turns"])
async def test_a_worker_leaves_a_run_that_was_ended_while_it_asked_for_the_lease(
    status: str,
) -> None:
    store, idle = EndedFirst(), ScriptedModel([])
    await agent(store).aenqueue("go", run_id="run")
    store.end = Event("run_end", seq=2, status=status)
    report = await agent(store, idle).awork(until_idle=True, poll_s=0.01)
    assert types(store.load("run")) == ["run_start", "run_end"]
    assert idle.requests == []
    assert (report.finished, report.failed) == ({"run": status}, {})
    assert (await agent(store).aresume("run")).status == "completed"
