"""A worker may work for months, on more runs than there is room for: it remembers what it still needs to know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentor import worker
from agentor.worker import WorkReport
from tests.engine.test_reused_ids import asks_to_pay, damaged, delete, echo, start


async def worked(at_work: Any) -> WorkReport:
    report: WorkReport = await asyncio.wait_for(at_work.work(), 30)
    return report


async def test_a_worker_remembers_only_runs_that_it_leaves_alone_and_as_long_as_they_are_there(
    store: Any,
) -> None:
    await asyncio.to_thread(damaged, store)  # as "x"
    for number in range(5):
        store.append(f"r{number}", start("go", None))
    mine = echo(store).worker(until_idle=True, poll_s=0.001)
    told: list[str] = []
    mine.watch = lambda step: told.append(step.run_id)
    for _ in range(2):
        await worked(mine)
        assert sorted(told) == ["r0", "r1", "r2", "r3", "r4", "x"]
        assert set(mine._known) == {"x"}
    delete(store, "x")
    await worked(mine)
    assert mine._known == {}


async def test_a_run_that_waits_for_a_person_is_not_read_again_before_it_has_moved(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(store, "runs") or not callable(store.runs):
        pytest.skip("where ids are all that is listed, each run is read at every look")
    agent = asks_to_pay(store, 40)
    await agent.aenqueue("go", run_id="r")
    mine = agent.worker(until_idle=True, poll_s=0.001)
    await worked(mine)
    load, loaded = store.load, list[str]()
    monkeypatch.setattr(store, "load", lambda run_id: (loaded.append(run_id), load(run_id))[1])
    await worked(mine)
    assert loaded == []
    await agent.aapprove("r", "call_1")
    loaded.clear()
    await worked(mine)
    assert loaded
    delete(store, "r")
    await worked(mine)
    assert mine._known == {}


async def test_a_report_names_the_latest_runs_and_counts_those_before(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MOST_NAMED", 2)
    for number in range(5):
        store.append(f"r{number}", start("go", f"{number}"))
    report = await worked(echo(store).worker(until_idle=True, concurrency=1, poll_s=0.001))
    assert report.finished == {"r3": "completed", "r4": "completed"}
    assert report.to_dict()["unnamed"] == {"completed": 3}


def test_each_kind_of_a_report_is_bounded_by_itself_and_a_run_is_named_as_of_its_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MOST_NAMED", 2)
    report = WorkReport()
    for run_id in ("a", "b", "a", "c", "d"):
        report.has_failed(run_id, f"{run_id} failed")
    assert report.failed == {"c": "c failed", "d": "d failed"}
    report.has_finished("c", "completed")
    for run_id in ("d", "e", "f"):
        report.has_parked(run_id, "gave up")
    assert (report.failed, report.finished) == ({}, {"c": "completed"})
    assert report.parked == {"e": "gave up", "f": "gave up"}
    assert report.unnamed == {"failed": 2, "parked": 1}
