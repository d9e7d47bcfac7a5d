"""Real processes that share one SQLite file: together, killed, suspended, replaced, on a full disk."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor
from agentor.engine import clock
from agentor.engine.replay import verify
from agentor.errors import LeaseHeldError, StoreError
from agentor.testing import ScriptedModel, calls, says
from tests.workers.crew import (
    append_when_told,
    check_finished,
    finish_all,
    leave_unfinished,
    noted,
    opened,
    processes,
    run_while_the_disk_is_full,
    started,
    wait_for_go,
    worker,
)

TTL_S = 0.4


def test_four_workers_finish_fifty_runs_each_once_and_run_each_tool_once(tmp_path: Path) -> None:
    runs = leave_unfinished(tmp_path, 50)
    crew = [started(finish_all, tmp_path, seed) for seed in range(4)]
    for each in crew:
        each.join()
    assert [each.exitcode for each in crew] == [0] * 4
    check_finished(tmp_path, runs)
    assert Counter(noted(tmp_path)) == dict.fromkeys(runs, 1)


@pytest.mark.slow
def test_runs_of_workers_that_are_killed_are_finished_by_the_others(tmp_path: Path) -> None:
    kills, ends = 8, []
    runs = leave_unfinished(tmp_path, 40)
    dice = random.Random(4)
    crew = [started(finish_all, tmp_path, seed) for seed in range(3)]
    with opened(tmp_path) as store:
        for position, _, _ in store.tail(timeout=60):
            if position > len(runs) and position % 8 == 0 and kills:
                kills -= 1
                killed = crew.pop(dice.randrange(3))
                killed.kill()
                killed.join()
                ends.append(killed.exitcode)
                crew.append(started(finish_all, tmp_path, 100 + kills))
            if not kills and not store.list_runs(status="unfinished", limit=1):
                break
    for each in crew:
        each.join()
    assert -signal.SIGKILL in ends
    assert len(ends) == 8
    assert [each.exitcode for each in crew] == [0] * 3
    check_finished(tmp_path, runs)
    ran = Counter(noted(tmp_path))
    assert sorted(ran) == sorted(runs)
    assert sum(ran.values()) <= len(runs) + 8  # a tool whose result was not recorded may run again


def test_a_worker_that_slept_past_its_lease_appends_nothing_and_starts_no_tool(
    tmp_path: Path,
) -> None:
    leave_unfinished(tmp_path, 1)
    told = processes.Queue()
    sleeper = started(wait_for_go, tmp_path, "0", told, TTL_S)
    assert told.get(timeout=60) == "asked"
    assert sleeper.pid is not None
    os.kill(sleeper.pid, signal.SIGSTOP)
    with opened(tmp_path) as store:
        with pytest.raises(LeaseHeldError):
            worker(store, tmp_path).resume("0")
        result = worker(store, tmp_path).resume("0", wait=60)  # until the lease is over
        assert result.status == "completed"
        before = [event.to_json() for event in store.load("0")]
        (tmp_path / "go").touch()
        os.kill(sleeper.pid, signal.SIGCONT)
        assert told.get(timeout=60) == "LeaseLostError"
        sleeper.join()
        assert [event.to_json() for event in store.load("0")] == before
    assert noted(tmp_path) == ["0"]
    check_finished(tmp_path, ["0"])


def test_a_rival_with_an_old_term_is_refused_by_the_store_itself(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 1)
    told, go = processes.Queue(), processes.Event()
    rival = started(append_when_told, tmp_path, "0", told, go)
    term = told.get(timeout=60)
    with opened(tmp_path) as store:
        while True:
            try:
                lease = store.acquire("0", "the quick one", 60)
                break
            except LeaseHeldError as held:
                threading.Event().wait(max((held.expires_at or 0) - clock.now(), 0))
        assert lease.term == term + 1
        go.set()
        assert told.get(timeout=60) == ("LeaseLostError", "the quick one")
        rival.join()
        assert len(store.load("0")) == 1


def test_a_worker_whose_run_was_taken_over_while_the_model_thought_starts_no_tool(
    tmp_path: Path,
) -> None:
    leave_unfinished(tmp_path, 1)
    told = processes.Queue()
    slow = started(wait_for_go, tmp_path, "0", told, 1000.0)
    assert told.get(timeout=60) == "asked"
    with opened(tmp_path) as store:
        store._write(  # as if its lease had run out without its noticing
            lambda connection: connection.execute("UPDATE agentor_leases SET expires_at = 0")
        )
        lease = store.acquire("0", "the quick one", 60)
        before = store.load("0")
        (tmp_path / "go").touch()
        assert told.get(timeout=60) == "LeaseLostError"
        slow.join()
        assert store.load("0") == before
        store.release(lease)
    assert noted(tmp_path) == []


@pytest.mark.parametrize("stores", [1, 2])
def test_of_two_resumes_in_one_process_one_works(tmp_path: Path, stores: int) -> None:
    leave_unfinished(tmp_path, 1)
    working, refused = threading.Event(), threading.Event()
    ran = []

    def work(job: str) -> str:
        """Do the job."""
        ran.append(job)
        working.set()
        assert refused.wait(60)
        return "done"

    def agent(store: Any) -> Agentor:
        model = ScriptedModel.by_turn([calls(("work", {"job": "0"})), "Done."])
        return Agentor("Worker", model=model, tools=[work], store=store)

    with opened(tmp_path) as first, opened(tmp_path) as second:
        results: list[Any] = []
        resuming = threading.Thread(target=lambda: results.append(agent(first).resume("0")))
        resuming.start()
        assert working.wait(60)
        with pytest.raises(LeaseHeldError):
            agent(first if stores == 1 else second).resume("0")
        refused.set()
        resuming.join()
        assert results[0].status == "completed"
        assert agent(second).resume("0").final_output == "Done."
    assert ran == ["0"]
    check_finished(tmp_path, ["0"])


def test_a_disk_that_is_full_for_a_while_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    told = processes.Queue()
    walker = started(run_while_the_disk_is_full, tmp_path, told)
    saved = [told.get(timeout=60) for _ in range(4)]
    status, unsaved, length = told.get(timeout=60)
    walker.join()
    assert walker.exitcode == 0
    assert len(set(saved)) == 1  # it was full indeed
    assert (status, unsaved) == ("completed", 0)
    assert noted(tmp_path) == [f"{number}" for number in range(1, 11)]
    with opened(tmp_path) as store:
        log = store.load("run")
        assert len(log) == length
        assert verify(log) == []
        results = [event.seq for event in log if event.type == "tool_result"]
        assert len(results) == 10
        assert store.integrity_check() == []


@pytest.mark.parametrize("durability", ["best_effort", "strict"])
def test_a_database_that_is_deleted_under_a_live_run_is_never_a_silent_success(
    tmp_path: Path, durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def delete() -> str:
        """Delete the database."""
        for path in tmp_path.glob("runs.db*"):
            path.unlink()
        return "deleted"

    with opened(tmp_path) as store:
        agent = Agentor(
            "Saboteur",
            model=ScriptedModel.by_turn([calls(("delete", {})), says("Done.")]),
            tools=[delete],
            store=store,
            durability=durability,
        )
        if durability == "strict":
            with pytest.raises(StoreError, match="deleted or replaced"):
                agent.run("Go", run_id="run")
        else:
            with caplog.at_level(logging.ERROR, "agentor"):
                result = agent.run("Go", run_id="run")
            assert result.unsaved > 0
            assert "deleted or replaced" in caplog.text
        with pytest.raises(StoreError, match="deleted or replaced"):
            store.load("run")
    with opened(tmp_path) as store:  # another one, at the same place
        assert store.list_runs() == []
