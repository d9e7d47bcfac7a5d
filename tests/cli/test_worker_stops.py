"""How a worker is stopped, and what it tells of it, without signals and other processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentor import Agentor, ConfigError, MemoryStore
from agentor.testing import ScriptedModel, says
from agentor.worker import Step, WorkPlan


class Desk:
    """A worker whose model answers when it is told to."""

    def __init__(self, **how: Any) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.store = MemoryStore()
        self.agent = Agentor("A", model=ScriptedModel(self._answer), store=self.store)
        self.worker = self.agent.worker(**how)
        self.steps: list[Step] = []
        self.worker.watch = self.steps.append

    async def _answer(self, messages: Any) -> Any:
        self.asked.set()
        await self.answer.wait()
        return says("done")

    async def stopped_in_a_model_call(self) -> asyncio.Task[Any]:
        await self.agent.aenqueue("go", run_id="r")
        working = asyncio.create_task(self.worker.work())
        await self.asked.wait()
        self.worker.stop()
        return working


async def test_what_ends_within_the_grace_is_finished() -> None:
    desk = Desk(grace_s=60)
    working = await desk.stopped_in_a_model_call()
    await desk.agent.aenqueue("too late", run_id="late")
    desk.answer.set()
    assert (await working).finished == {"r": "completed"}
    assert desk.steps == [Step("r", 1, "completed")]
    assert len(desk.store.load("late")) == 1


@pytest.mark.parametrize("grace_s", [0, 0.001])
async def test_what_goes_on_after_the_grace_is_broken_off_and_told(grace_s: float) -> None:
    desk = Desk(grace_s=grace_s)
    report = await (await desk.stopped_in_a_model_call())
    assert report.finished == {}
    assert desk.steps == [Step("r", 1, "interrupted")]
    desk.store.append("r", desk.store.load("r")[0].with_(seq=4))  # nobody holds it any more


async def test_a_damaged_log_is_told_once_and_does_not_keep_a_worker_from_being_idle() -> None:
    desk = Desk(until_idle=True, poll_s=0)
    desk.answer.set()
    await desk.agent.aenqueue("go", run_id="r")
    await desk.agent.aenqueue("go", run_id="damaged")
    desk.store._runs["damaged"].append('{"type": "run_start", "kept": 9}')
    report = await desk.worker.work()
    assert report.finished == {"r": "completed"}
    (refused,) = [step for step in desk.steps if step.outcome == "refused"]
    assert (refused.run_id, refused.attempt) == ("damaged", 0)
    assert "run 'damaged' is damaged at seq 2" in (refused.error or "")


async def test_whoever_looks_on_and_fails_harms_no_run(caplog: pytest.LogCaptureFixture) -> None:
    def look_on(step: Step) -> None:
        raise BrokenPipeError("nobody reads")

    desk = Desk(until_idle=True, poll_s=0)
    desk.worker.watch = look_on
    desk.answer.set()
    await desk.agent.aenqueue("go", run_id="r")
    assert (await desk.worker.work()).finished == {"r": "completed"}
    assert "its step could not be told" in caplog.text


@pytest.mark.parametrize(
    "how", [{"concurrency": 0}, {"max_attempts": 0}, {"backoff_s": -1}, {"grace_s": float("nan")}]
)
def test_a_plan_of_work_that_cannot_be_meant_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(how))):
        WorkPlan(**how)
