"""Every attempt of a worker moves the log, or its run is refused: none goes round in circles, whatever the log is."""

from __future__ import annotations

import asyncio
import functools
import typing
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentor import Agentor, MemoryStore, function_tool
from agentor.engine.events import Event, RunStatus
from agentor.engine.replay import verify
from agentor.testing import ScriptedModel, calls, says
from agentor.worker import Step

MOST = 3  # attempts
MODELS: dict[str, Any] = {
    "good": lambda: ScriptedModel.by_turn(SCRIPT),
    "broken": lambda: ScriptedModel(lambda messages: ConnectionError("reset")),
    "dumb": lambda: ScriptedModel(lambda messages: says("")),
    "eager": lambda: ScriptedModel(lambda messages: calls(("look", {}))),
    "cut off": lambda: ScriptedModel(lambda messages: says("so", finish_reason="length")),
}
SCRIPT = [calls(("look", {}), ("pay", {})), calls(("pay", {})), says("done")]
LIMITS: list[dict[str, Any]] = [
    *({}, {"deadline_s": 1e-9}, {"budget": 1}),
    *({"half_finished": "rewind"}, {"half_finished": "settle"}),
    *({"on_change": "refuse"}, {"on_change": "adopt"}, {"durability": "strict"}),
]


def agent(store: MemoryStore, model: str = "good", **limits: Any) -> Agentor:
    @function_tool
    def look() -> str:
        """Look."""
        return "seen"

    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    tools = [look, pay]
    return Agentor("A", model=MODELS[model](), tools=tools, store=store, max_turns=4, **limits)


@functools.cache
def whole_log() -> list[Event]:
    """Of a run that was enqueued, and in which two calls were asked about and approved."""
    mine = agent(store := MemoryStore())
    mine.enqueue("go", run_id="r")
    while mine.work(until_idle=True, poll_s=0.001).finished == {"r": "paused"}:
        [call] = mine.result("r").pending
        mine.approve("r", call.call_id)
    return store.load("r")


STATUSES = [None, *typing.get_args(RunStatus)]
FOLLOWING = st.lists(
    st.sampled_from(
        [
            *(Event("run_end", status=status, ended_at=1.0) for status in STATUSES if status),
            Event("run_start", agent="A", kept=1),
            Event("run_start", agent="A", kept=1, queued=True),
            *(Event(kind) for kind in ("stop", "fork", "cancel")),
        ]
    ),
    max_size=3,
)


@settings(max_examples=150)
@given(st.integers(1, 24), FOLLOWING, st.sampled_from(sorted(MODELS)), st.sampled_from(LIMITS))
def test_every_attempt_moves_the_log_or_is_refused_and_so_a_worker_comes_to_rest(
    length: int, following: list[Event], model: str, limits: dict[str, Any]
) -> None:
    store = MemoryStore()
    for event in [*whole_log()[:length], *following]:
        store.append("r", event.with_(seq=None))
    begun_with = verify(store.load("r"))  # an end without an answer, where we have put one
    told: list[tuple[Step, int]] = []
    lengths = [len(store.load("r"))]

    async def work() -> None:
        worker = agent(store, model, **limits).worker(
            until_idle=True, max_attempts=MOST, backoff_s=0, poll_s=0.001
        )

        def watch(step: Step) -> None:
            lengths.append(len(store.load("r")))
            told.append((step, lengths[-1] - lengths[-2]))
            if len(told) > 2 * MOST:
                worker.stop()

        worker.watch = watch
        await worker.work()

    asyncio.run(work())
    assert all(moved > 0 or step.outcome == "refused" for step, moved in told)
    assert len(told) <= MOST + 1  # and it is parked
    result = agent(store).result("r")
    is_refused = told and told[-1][0].outcome == "refused"
    assert is_refused or result.status not in ("unfinished", "failed")
    assert result.status != "paused" or result.pending or is_refused
    assert verify(store.load("r")) == begun_with
