"""A process that dies at any write: in the process with every store, and for real with SIGKILL."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, FileStore, MemoryStore, SQLiteStore
from agentor.engine.events import Event, Usage
from agentor.engine.replay import replay, verify
from agentor.engine.store import is_complete, total_usage
from agentor.engine.store.copying import unfinished_copy
from agentor.engine.store.protocol import Store
from agentor.testing import ScriptedModel, says
from tests.core.logs import logs
from tests.engine.agents import ANSWER, SCRIPT, Tools, agent, scripted


class Died(BaseException):
    """The process ended here, as far as the run can tell."""


class Mortal:
    """A store of three methods over another, whose process dies at the n-th write, before it or after it."""

    def __init__(self, store: Store, dies_at: int, after: bool) -> None:
        self._store, self._left, self._after = store, dies_at, after

    def append(self, run_id: str, event: Event) -> None:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._after):
            raise Died
        self._store.append(run_id, event)
        if self._left == 0:
            raise Died

    def load(self, run_id: str) -> list[Event]:
        return self._store.load(run_id)

    def list_runs(self) -> list[str]:
        return self._store.list_runs()


def die_at_each_write(store: Store, use: Callable[[Agentor], Any]) -> int:
    """Use an agent on a store that dies at write 1, 2, 3 ... until it lives; how many writes that takes."""
    for number in range(1, 100):
        for after in (False, True):
            tools = Tools()
            try:
                use(agent(Mortal(store, number, after), tools=tools))
            except Died:
                check_recovery(store)
            else:
                return number
    raise AssertionError("it never ends")


def check_recovery(store: Store) -> None:
    """Every run that was left behind is finished, and what was recorded is not done again."""
    for run_id in store.list_runs():
        log = store.load(run_id)
        if (copy := unfinished_copy(run_id, log)) is not None:  # of a fork, and no run yet
            told = ScriptedModel(lambda messages: str(messages[-1]["content"]))
            forked = Agentor("A", model=told, store=Mortal(store, 99, True))
            fork = forked.fork(copy.parent, "And then?", fork_id=run_id)
            assert fork.final_output == "And then?"
            assert verify(store.load(run_id)) == []
            continue
        if is_complete(log):
            continue
        settled = {
            message["tool_call_id"] for message in replay(log).messages if message["role"] == "tool"
        }
        tools = Tools()
        model = scripted([*SCRIPT, says("Then this.")])
        result = agent(store, model, tools).resume(run_id)
        assert result.final_output in (ANSWER, "Then this.")
        assert verify(store.load(run_id)) == []
        assert result.usage == total_usage(store.load(run_id))
        if "call_1" in settled:
            assert tools.ran["get_weather London"] == 0
        if "call_2" in settled:
            assert not tools.ran


def test_a_run_that_dies_at_any_write_is_finished_by_another_worker(store: Any) -> None:
    writes = die_at_each_write(store, lambda a: a.run("What is the weather?"))
    assert writes == 13


def test_a_fork_that_dies_at_any_write_is_finished_and_leaves_its_parent_alone(store: Any) -> None:
    parent = agent(store).run("What is the weather?")
    before = [event.to_json() for event in store.load(parent.run_id)]
    script = ScriptedModel(lambda messages: "Then this.")

    def fork(mortal: Agentor) -> None:
        Agentor("A", model=script, store=mortal.store).fork(parent.run_id, "And then?")

    die_at_each_write(store, fork)
    assert [event.to_json() for event in store.load(parent.run_id)] == before


def test_a_resume_that_dies_at_any_write_can_be_resumed(store: Any) -> None:
    log = agent().run("What is the weather?").events[:3]
    numbers = iter(range(1000))

    def resume(mortal: Agentor) -> None:
        run_id = f"r{next(numbers)}"
        for event in log:
            store.append(run_id, event)
        mortal.resume(run_id)

    assert die_at_each_write(store, resume) > 10


@given(logs(), st.data())
def test_every_prefix_of_every_log_can_be_resumed_to_its_end(
    log: list[Event], data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, len(log)))
    store = MemoryStore()
    store.append_many("r", log[:length])
    was_complete = is_complete(log[:length])
    tools = Tools()
    model = ScriptedModel(lambda messages: says("done"))  # and checks that each request is legal
    result = agent(store, model, tools).resume("r")
    assert result.status == "completed"
    after = store.load("r")
    assert after[:length] == log[:length]
    assert verify(after) == []
    assert result.usage == sum(
        (e.usage or Usage() for e in after if e.type == "generation"), Usage()
    )
    assert len(model.requests) <= 2
    assert not tools.ran
    if was_complete:
        assert len(after) == length


@given(logs())
def test_the_live_state_is_the_state_of_the_reloaded_log(log: list[Event]) -> None:
    reloaded = replay([Event.from_json(event.to_json()) for event in log])
    assert reloaded == replay(log)


# For real ---------------------------------------------------------------------------------------------------------

BUNDLED: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: FileStore(path / "runs"),
    "sqlite": lambda path: SQLiteStore(path / "runs.db"),
}


def live_and_die(kind: str, path: Path, dies_at: int, parent: str | None) -> None:
    """In a process of its own: run, or fork, and be killed right after the n-th commit."""
    store = BUNDLED[kind](path)
    commits = 0
    append_many = store.append_many
    submit = getattr(store, "submit", None)

    def count() -> None:
        nonlocal commits
        commits += 1
        if commits == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(run_id: str, events: Sequence[Event], lease: Any = None) -> None:
        append_many(run_id, events, lease)
        count()

    def counting_submit(run_id: str, events: Sequence[Event], lease: Any = None) -> Any:
        future = submit(run_id, events, lease)
        future.add_done_callback(lambda _: count())
        return future

    store.append_many = counting
    if submit is not None:
        store.submit = counting_submit
    if parent is None:
        agent(store).run("What is the weather?", run_id="killed")
    else:
        agent(store, ScriptedModel(lambda messages: "Then this.")).fork(
            parent, "And then?", fork_id="killed"
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUNDLED)
@pytest.mark.parametrize("forks", [False, True])
def test_a_process_killed_at_the_nth_commit_loses_nothing_that_was_committed(
    kind: str, forks: bool, tmp_path: Path
) -> None:
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["tests.engine.test_crash_points", "agentor.engine.store.sqlite"])
    for dies_at in range(1, 20):
        path = tmp_path / str(dies_at)
        path.mkdir()
        parent = None
        if forks:
            store = BUNDLED[kind](path)
            parent = agent(store).run("What is the weather?").run_id
            before = [event.to_json() for event in store.load(parent)]
            store.close()
        child = spawn.Process(target=live_and_die, args=(kind, path, dies_at, parent))
        child.start()
        child.join()
        store = BUNDLED[kind](path)
        log = store.load("killed")
        assert [event.seq for event in log] == list(range(1, len(log) + 1))
        tools = Tools()
        result = agent(store, tools=tools).resume("killed") if not forks else finish_fork(store)
        assert result.status == "completed"
        assert verify(store.load("killed")) == []
        if not forks:
            assert result.final_output == ANSWER
            assert tools.ran["get_weather London"] == (1 if dies_at < 3 else 0)
        if parent is not None:
            assert [event.to_json() for event in store.load(parent)] == before
        store.close()
        if child.exitcode == 0:
            assert dies_at > (2 if forks else 5)  # it was killed at each commit before
            return
        assert child.exitcode == -signal.SIGKILL
    raise AssertionError("it never lives to the end")


def finish_fork(store: Any) -> Any:
    return agent(store, ScriptedModel(lambda messages: "Then this.")).resume("killed")
