"""Real workers on one file: they share it, are stopped and killed, and every tool runs once for each run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor import SQLiteStore

APP = '''
import asyncio, itertools, os, time

from agentor import Agentor, DidNotHappen, Happened, RunContext, function_tool
from agentor.testing import ScriptedModel, calls, says

STUCK = os.environ.get("STUCK")  # what never ends, once LIMIT runs are finished
LIMIT = 3
finished = 0
calls_begun = itertools.count(1)


def stuck():
    with open("stuck.txt", "a") as file:
        file.write("stuck\\n")


def charged():
    return open("charged.txt").read().split() if os.path.exists("charged.txt") else []


def look_up(ctx):
    return Happened("charged") if ctx.idempotency_key in charged() else DidNotHappen()


@function_tool(effect="once", reconcile=look_up)
def charge(ctx: RunContext) -> str:
    """Charge."""
    number = next(calls_begun)
    with open("charged.txt", "a") as file:
        file.write(f"{ctx.idempotency_key}\\n")
    if STUCK == "tool" and number > LIMIT:
        stuck()
        time.sleep(3600)
    return "charged"


async def answer(messages):
    global finished
    if messages[-1]["role"] != "tool":
        return calls(("charge", {}))
    if finished >= LIMIT and STUCK == "model":
        stuck()
        await asyncio.get_running_loop().create_future()
    if finished >= LIMIT and STUCK == "pool":
        stuck()
        await asyncio.to_thread(time.sleep, 3600)  # Python waits for such threads at its end
    if finished >= LIMIT and STUCK == "loop":
        stuck()
        time.sleep(3600)
    finished += 1
    return says("done")


agent = Agentor("Shop", model=ScriptedModel(answer), tools=[charge], store="runs.db")
'''


class Worker:
    """`agentor worker`, as another process would start it."""

    def __init__(self, place: Path, *words: str, stuck: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentor", "worker", "app.py:agent", "--json", *words],
            cwd=place, env=os.environ | {"STUCK": stuck},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def steps(self, count: int) -> list[dict[str, Any]]:
        """Its next lines; waits for them."""
        assert self.process.stdout is not None
        return [json.loads(self.process.stdout.readline()) for _ in range(count)]

    def rest(self, timeout_s: float = 60) -> list[dict[str, Any]]:
        """What it says until its end, which must come in time."""
        out, self.errors = self.process.communicate(timeout=timeout_s)
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Any]:
    """Starts workers in a place with an app, and lets none survive the test."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Worker] = []

    def start(*words: str, stuck: str = "") -> Worker:
        started.append(Worker(tmp_path, *words, stuck=stuck))
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.communicate()


def enqueue(place: Path, count: int) -> set[str]:
    """Runs for the app's agent, written as `agent.enqueue` writes them."""
    code = f"from app import agent; [agent.enqueue('go', f'r{{n}}') for n in range({count})]"
    subprocess.run([sys.executable, "-c", code], cwd=place, check=True, timeout=60)
    return {f"r{number}" for number in range(count)}


def wait_for(path: Path) -> None:
    while not path.exists():
        os.sched_yield()


def completed(place: Path) -> set[str]:
    with SQLiteStore(place / "runs.db") as store:
        return {row.run_id for row in store.runs(status="completed")}


def outcomes(steps: list[dict[str, Any]]) -> Counter[str]:
    return Counter(step["outcome"] for step in steps)


@pytest.mark.slow
def test_workers_that_are_stopped_and_killed_leave_no_run_behind_and_charge_once(
    workers: Any, tmp_path: Path
) -> None:
    runs = enqueue(tmp_path, 20)
    stopped, killed = workers("--grace", "0", stuck="model"), workers(stuck="tool")
    done = [*stopped.steps(3), *killed.steps(3)]
    stopped.process.send_signal(signal.SIGTERM)
    left = stopped.rest(timeout_s=60)
    assert set(outcomes(left)) == {"interrupted"}
    assert stopped.process.returncode == 0, stopped.errors
    killed.process.kill()
    done += [step for step in killed.rest() if step["outcome"] == "completed"]

    last = workers("--until-idle")
    done += last.rest()
    assert last.process.returncode == 0, last.errors
    assert set(outcomes(done)) == {"completed"}
    assert {step["run_id"] for step in done} == runs
    charged = (tmp_path / "charged.txt").read_text().split()
    assert Counter(key.partition(".")[0] for key in charged) == Counter(runs)
    assert completed(tmp_path) == runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stuck", "how", "code"),
    [
        ("model", signal.SIGTERM, 0),
        ("model", signal.SIGINT, 130),
        ("tool", signal.SIGTERM, 0),
        ("loop", signal.SIGTERM, 1),
        ("pool", signal.SIGTERM, 1),
    ],
)
def test_a_signal_ends_a_worker_within_five_seconds_whatever_hangs(
    workers: Any, tmp_path: Path, stuck: str, how: signal.Signals, code: int
) -> None:
    runs = enqueue(tmp_path, 4)
    worker = workers("--grace", "1", stuck=stuck)
    wait_for(tmp_path / "stuck.txt")
    worker.process.send_signal(how)
    worker.rest(timeout_s=60)
    assert worker.process.returncode == code, worker.errors

    left = runs - completed(tmp_path)
    next_one = workers("--until-idle")
    assert {step["run_id"] for step in next_one.rest()} == left != set()
    assert len((tmp_path / "charged.txt").read_text().split()) == 4


@pytest.mark.slow
def test_a_second_signal_ends_a_worker_at_once(workers: Any, tmp_path: Path) -> None:
    enqueue(tmp_path, 4)
    worker = workers("--grace", "60", stuck="model")
    wait_for(tmp_path / "stuck.txt")
    while worker.process.poll() is None:  # the first asks, and the next one ends it
        worker.process.send_signal(signal.SIGTERM)
        os.sched_yield()
    assert worker.process.returncode == -signal.SIGTERM
