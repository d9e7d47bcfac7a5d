"""Death at every commit, of every kind of effect, in batches of every shape: what happened is what is recorded.

The world outside is a file that survives the process: each tool adds a line to it, and returns the key of its call. A
transactional tool writes a row instead. Whoever was asked decides by looking at that world, as a person would.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, DidNotHappen, Happened, RunContext, SQLiteStore, function_tool
from agentor.engine.events import Event, PendingCall
from agentor.engine.replay import verify
from agentor.testing import ScriptedModel, calls, says
from tests.transactional.bank import look
from tests.transactional.test_bank import Died, Mortal
from tests.workers.crew import note, noted

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"effect": "idempotent"},
    "once": {"effect": "once"},
    "reconciled": {"effect": "once"},
    "parked": {"effect": "once", "on_doubt": "park"},
    "approved": {"needs_approval": True},
}
KINDS = (*OPTIONS, "transactional")
Shape = tuple[tuple[str, ...], ...]  # turns of calls asked for together

ALONE: list[Shape] = [((kind,),) for kind in KINDS]
TOGETHER: list[Shape] = [(pair,) for pair in itertools.combinations_with_replacement(KINDS, 2)]
MIXED: list[Shape] = [
    (KINDS,),
    (("once", "once", "parked"), ("idempotent", "transactional", "plain")),
    (("reconciled", "approved"), ("transactional",), ("parked", "approved", "transactional")),
]


def shop(store: Any, place: Path, shape: Shape) -> Agentor:
    """Tools of each kind, named after it."""

    def outside(kind: str) -> Any:
        async def act(ctx: RunContext) -> str:
            note(place, f"{kind} {ctx.call_id} {ctx.idempotency_key}")
            return str(ctx.idempotency_key)

        options = dict(OPTIONS[kind])
        if kind == "reconciled":
            options["reconcile"] = lambda ctx: find_out(place, ctx)
        return function_tool(name_override=kind, description_override=kind, **options)(act)

    @function_tool(effect="transactional")
    def transactional(ctx: RunContext) -> str:
        """Write a row."""
        ctx.db.execute("INSERT INTO done VALUES (?)", (ctx.idempotency_key,))
        return str(ctx.idempotency_key)

    script = [calls(*((kind, {}) for kind in turn)) for turn in shape]
    model = ScriptedModel.by_turn([*script, says("done")])
    return Agentor("A", model=model, tools=[*map(outside, OPTIONS), transactional], store=store)


def find_out(place: Path, ctx: RunContext) -> Any:
    key = str(ctx.idempotency_key)
    return Happened(key) if any(line.endswith(key) for line in noted(place)) else DidNotHappen()


def opened(place: Path, synchronous: str = "FULL") -> SQLiteStore:
    place.mkdir(exist_ok=True)
    store = SQLiteStore(place / "runs.db", synchronous=synchronous)
    look(place / "runs.db", "CREATE TABLE IF NOT EXISTS done (key TEXT PRIMARY KEY)")
    return store


def live(store: Any, place: Path, shape: Shape) -> Any:
    """From wherever the run stands to its end, with a person at hand."""
    agent = shop(store, place, shape)
    result = agent.resume("r", wait=True) if store.load("r") else agent.run("go", run_id="r")
    while result.status == "paused":
        for call in result.pending:
            decide(agent, place, call)
        result = agent.resume("r", wait=True)
    return result


def decide(agent: Agentor, place: Path, call: PendingCall) -> None:
    keys = [line.split()[2] for line in noted(place) if f" {call.call_id} " in line]
    assert not keys or call.in_doubt  # nothing happens before consent
    if keys:
        agent.settle("r", call.call_id, keys[-1])
    else:
        agent.approve("r", call.call_id)


def audit(store: SQLiteStore, place: Path, shape: Shape) -> None:
    """The log, the world and the table say the same."""
    log = store.load("r")
    assert verify(log) == []
    assert log[-1].status == "completed"
    answers = [event for event in log if event.type == "tool_result"]
    assert sorted(str(e.name) for e in answers) == sorted(itertools.chain(*shape))
    world = [line.split() for line in noted(place)]
    rows = {key for (key,) in look(place / "runs.db", "SELECT key FROM done")}
    for kind in KINDS:
        told = [event for event in answers if event.name == kind]
        times = Counter(key for each, _, key in world if each == kind)
        check(kind, told, Counter(rows) if kind == "transactional" else times)


def check(kind: str, told: list[Event], times: Counter[str]) -> None:
    """`times`: how often each call of this kind took effect, by its key."""
    keys = Counter(str(event.result) for event in told if event.error is None)
    unknown = [event for event in told if event.error is not None]
    match kind:
        case "plain":
            assert not keys - times
        case "idempotent":
            assert set(times) == set(keys)
        case "once":
            assert {event.error for event in unknown} <= {"outcome unknown"}
            assert set(times.values()) <= {1}
            assert set(keys) <= set(times)
            assert len(times) <= len(keys) + len(unknown)
        case _:
            assert times == keys
    assert kind == "once" or not unknown
    assert set(keys.values()) <= {1}


@pytest.mark.parametrize("shape", [*ALONE, *TOGETHER, *MIXED], ids=str)
def test_a_process_that_dies_before_or_after_any_commit_is_told_of_honestly(
    shape: Shape, tmp_path: Path
) -> None:
    for dies_at in range(1, 200):
        place = tmp_path / str(dies_at)
        with opened(place, "OFF") as store:
            try:
                live(Mortal(store, dies_at), place, shape)
            except Died:
                live(store, place, shape)
                audit(store, place, shape)
            else:
                audit(store, place, shape)
                assert dies_at > 4 * len(shape)
                return
    raise AssertionError("it never lives to the end")


def live_until_the_nth_commit(place: Path, shape: Shape, dies_at: int) -> None:
    """In a process of its own. Odd: killed just before a commit, even: right after it."""
    store = opened(place, "OFF")  # a process dies here, and not the machine
    count = 0

    def count_or_die(*_: object) -> Any:
        nonlocal count
        count += 1
        if count == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    store._writer._connection.set_commit_hook(lambda: bool(count_or_die()))
    store._writer._connection.set_wal_hook(count_or_die)
    live(store, place, shape)
    store.close()


def live_on(place: Path, shape: Shape) -> None:
    with SQLiteStore(place / "runs.db", synchronous="OFF") as store:
        live(store, place, shape)
        audit(store, place, shape)


def in_a_process(act: Callable[[], None], faults: Path) -> int:
    """Its exit code; negative if it was killed. What else it dies of is told in a file."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            faults.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_everywhere(base: Path, shape: Shape) -> None:
    """In a process that has no threads and no store, so that it may fork. Two processes for each commit."""
    fates: list[int] = []
    while 0 not in fates and len(fates) < 200:
        place = base / str(len(fates) + 1)
        dies_at, faults = len(fates) + 1, base / "faults"
        fates.append(
            in_a_process(partial(live_until_the_nth_commit, place, shape, dies_at), faults)
        )
        if fates[-1] > 0 or in_a_process(partial(live_on, place, shape), faults):
            break
    (base / "fates").write_text(json.dumps(fates))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*ALONE, *TOGETHER, *MIXED], ids=str)
def test_a_process_killed_at_any_commit_is_told_of_honestly(shape: Shape, tmp_path: Path) -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.transactional.test_crash_grid"])
    child = forks.Process(target=die_everywhere, args=(tmp_path, shape))
    child.start()
    child.join()
    faults = tmp_path / "faults"
    assert not faults.exists(), faults.read_text()
    *deaths, lived = json.loads((tmp_path / "fates").read_text())
    assert set(deaths) == {-signal.SIGKILL}
    assert lived == 0
    assert len(deaths) >= 6 * len(shape)
