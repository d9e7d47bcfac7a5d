"""What the workers of these tests do, as functions that a child process can run.

Every run is one job: the model asks for the tool `work` with the job's name, and answers when it has the result. The
tool's side effect is a line in a file beside the store, added in one write, so the file says which tools ran.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import resource
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from agentor import Agentor, SQLiteStore
from agentor.engine.events import Event, Message
from agentor.engine.replay import verify
from agentor.engine.store import MemoryStore
from agentor.errors import LeaseHeldError, LeaseLostError
from agentor.testing import ScriptedModel, calls, says

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.workers.crew", "agentor.engine.store.sqlite"])


def note(place: Path, line: str) -> None:
    """Add a line to the side file; whole, whoever else writes."""
    descriptor = os.open(place / "side", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def noted(place: Path) -> list[str]:
    path = place / "side"
    return path.read_text().splitlines() if path.exists() else []


def opened(place: Path, **settings: Any) -> SQLiteStore:
    return SQLiteStore(place / "runs.db", **settings)


def job_of(messages: list[Message]) -> str:
    return str(next(message["content"] for message in messages if message["role"] == "user"))


def worker(
    store: Any, place: Path, model: Callable[[list[Message]], Any] | None = None, **settings: Any
) -> Agentor:
    def work(job: str) -> str:
        """Do the job."""
        note(place, job)
        return f"{job} is done"

    def reply(messages: list[Message]) -> Any:
        if messages[-1]["role"] == "tool":
            return says(f"Done: {messages[-1]['content']}")
        return calls(("work", {"job": job_of(messages)}))

    return Agentor(
        "Worker", model=ScriptedModel(model or reply), tools=[work], store=store, **settings
    )


def leave_unfinished(place: Path, count: int) -> list[str]:
    """Runs `0`, `1` ... that have only begun."""
    with opened(place) as store:
        for number in range(count):
            scratch = MemoryStore()
            worker(scratch, Path(os.devnull), lambda messages: "never mind").run(
                f"{number}", run_id="r"
            )
            store.append(f"{number}", scratch.load("r")[0])
    return [f"{number}" for number in range(count)]


def finish_all(place: Path, seed: int) -> None:
    """A worker's life: take any unfinished run that nobody has, until there is none."""
    dice = random.Random(seed)
    with opened(place) as store:
        agent = worker(store, place)
        while unfinished := store.list_runs(status="unfinished"):
            run_id = dice.choice(unfinished)
            try:
                agent.resume(run_id)
            except LeaseHeldError:
                continue


def check_finished(place: Path, run_ids: list[str]) -> None:
    """Each run was finished, once, and its log is what was sent."""
    with opened(place) as store:
        assert sorted(store.list_runs()) == sorted(run_ids)
        assert store.integrity_check() == []
        for run_id in run_ids:
            log = store.load(run_id)
            assert [event.seq for event in log] == list(range(1, len(log) + 1))
            assert verify(log) == []
            types = Counter(event.type for event in log)
            assert types["run_end"] == types["message"] == 1
            assert log[-1].status == "completed"


def started(target: Callable[..., None], *args: Any) -> BaseProcess:
    process = processes.Process(target=target, args=args)
    process.start()
    return process


def wait_for_go(place: Path, run_id: str, told: Any, ttl_s: float) -> None:
    """Resume a run whose model answers only when the file `go` is there; tell how it ended."""

    async def reply(messages: list[Message]) -> Any:
        told.put("asked")
        while not (place / "go").exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.005)
        return calls(("work", {"job": "by the sleeper"}))

    with opened(place, lease_ttl_s=ttl_s) as store:
        try:
            worker(store, place, reply).resume(run_id)
            told.put("finished")
        except LeaseLostError as error:
            told.put(type(error).__name__)


def append_when_told(place: Path, run_id: str, told: Any, go: Any) -> None:
    """Take a lease for a moment, then append under it when it is long over."""
    with opened(place) as store:
        lease = store.acquire(run_id, "the slow one", 0.001)
        told.put(lease.term)
        go.wait(60)
        try:
            store.append_many(run_id, [Event("message", text="too late", seq=2)], lease)
            told.put("appended")
        except LeaseLostError as error:
            told.put((type(error).__name__, error.owner))


def run_while_the_disk_is_full(place: Path, told: Any) -> None:
    """A run of ten turns. From the third on the files cannot grow, from the seventh on they can again."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(place) as store:

        def step(number: int) -> str:
            """Go on."""
            note(place, f"{number}")
            return "ok"

        def reply(messages: list[Message]) -> Any:
            turn = sum(message["role"] == "tool" for message in messages) + 1
            if turn == 3:
                size = os.stat(place / "runs.db-wal").st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
            if turn == 7:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            if turn in (3, 4, 5, 6):
                told.put(len(store.load("run")))
            return says("done") if turn > 10 else calls(("step", {"number": turn}))

        agent = Agentor(
            "Walker", model=ScriptedModel(reply), tools=[step], store=store, max_turns=20
        )
        result = agent.run("Go", run_id="run")
        told.put((result.status, result.unsaved, len(result.events)))
