"""The bank under crashes: the sum of money is constant, and every recorded transfer happened exactly once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentor import SQLiteStore
from agentor.engine.events import Event
from agentor.engine.store import is_complete
from tests.transactional.bank import ACCOUNTS, Plan, audit, clerk, opened, order

PLAN = [[(0, 1, 60)], [(0, 2, 60), (1, 2, 20), (3, 0, 5)]]  # one of them fails
MADE = 3
SHORT = [[(0, 1, 60), (0, 2, 60)]]


class Died(BaseException):
    """The process ended here, as far as the run can tell."""


class Mortal:
    """An SQLite store whose process dies at the n-th place where it could."""

    def __init__(self, store: SQLiteStore, dies_at: int) -> None:
        self._store, self._left = store, dies_at

    def live(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Died

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, run_id: str, event: Event) -> None:
        raise AssertionError("a run submits")

    def load(self, run_id: str) -> list[Event]:
        return self._store.load(run_id)

    def list_runs(self) -> list[str]:
        return self._store.list_runs()

    def submit(self, run_id: str, events: Sequence[Event], lease: Any = None) -> Future[None]:
        self.live()
        self._store.submit(run_id, events, lease).result()
        self.live()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def transact(self, run_id: str, lease: Any = None, limit_s: float = 5.0) -> Any:
        self.live()
        return MortalTransaction(self, self._store.transact(run_id, lease, limit_s))

    def acquire(self, *args: Any) -> Any:
        return self._store.acquire(*args)

    def renew(self, lease: Any) -> Any:
        return self._store.renew(lease)

    def release(self, lease: Any) -> None:
        self._store.release(lease)


class MortalTransaction:
    """Dies before and after each statement and the commit. What is open then is gone with the process."""

    def __init__(self, world: Mortal, transaction: Any) -> None:
        self._world, self._transaction = world, transaction
        self.begun = transaction.begun

    def execute(self, sql: str, params: Any) -> Any:
        self._world.live()
        rows = self._transaction.execute(sql, params)
        self._world.live()
        return rows

    def put(self, kind: str, payload: str, key: str) -> None:
        self._transaction.put(kind, payload, key)
        self._world.live()

    def commit(self, events: Sequence[Event]) -> Any:
        self._world.live()
        self._transaction.commit(events).result()
        self._world.live()
        return self._transaction.commit(events)

    def abort(self) -> None:
        self._transaction.abort()


@pytest.mark.parametrize("atomic", [False, True])
def test_a_clerk_who_dies_anywhere_has_moved_what_is_recorded_and_nothing_else(
    tmp_path: Path, atomic: bool
) -> None:
    """At every commit boundary, and between any two statements of a transaction."""
    for dies_at in range(1, 200):
        with opened(tmp_path / f"{dies_at}.db", "OFF") as store:
            mortal = Mortal(store, dies_at)
            try:
                clerk(mortal, atomic_batches=atomic).run(order(PLAN), run_id="run")
            except Died:
                audit(store)
                finish(store, atomic)
            else:
                assert dies_at > 30
                return
            assert audit(store) == (1 if atomic else MADE)
    raise AssertionError("it never lives to the end")


def finish(store: SQLiteStore, atomic: bool = False, plan: Plan = PLAN) -> None:
    """Go on with what was left behind; no call of a transactional tool is ever in doubt."""
    agent = clerk(store, atomic_batches=atomic)
    has_begun = bool(store.load("run"))  # a thread of whoever died may be about to let go of it
    result = agent.resume("run", wait=True) if has_begun else agent.run(order(plan), run_id="run")
    assert result.status == "completed"
    assert all(event.error != "outcome unknown" for event in result.events)


def work_until_the_nth_commit(path: Path, dies_at: int) -> None:
    """In a process of its own. Odd: killed just before a commit, even: right after it."""
    store = SQLiteStore(path)
    count = 0

    def count_or_die(*_: object) -> Any:
        nonlocal count
        count += 1
        if count == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    connection = store._writer._connection
    connection.set_commit_hook(lambda: bool(count_or_die()))
    connection.set_wal_hook(count_or_die)
    clerk(store).run(order(SHORT), run_id="run")
    store.close()


@pytest.mark.slow
def test_a_clerk_killed_at_the_nth_commit_has_moved_what_is_recorded(tmp_path: Path) -> None:
    for dies_at in range(1, 60):
        path = tmp_path / f"{dies_at}.db"
        opened(path).close()
        child = process(work_until_the_nth_commit, path, dies_at)
        child.join()
        with SQLiteStore(path) as store:
            audit(store)
            finish(store, plan=SHORT)
            assert audit(store) == 1
        if child.exitcode == 0:
            assert dies_at > 12  # it was killed before and after each commit
            return
        assert child.exitcode == -signal.SIGKILL
    raise AssertionError("it never lives to the end")


def work(path: Path) -> None:
    with SQLiteStore(path) as store:
        clerk(store).work(until_idle=True, concurrency=3)


@pytest.mark.slow
def test_four_processes_share_the_work_and_the_bank(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with opened(path) as store:
        agent = clerk(store)
        for number in range(12):
            source, target = number % ACCOUNTS, (number + 1) % ACCOUNTS
            plan = [[(source, target, 30), (target, source, 10)], [(source, target, 1000)]]
            agent.enqueue(order(plan))
        children = [process(work, path) for _ in range(4)]
        children.append(process(work_and_die, path))
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0, 0, 0, -signal.SIGKILL]
        agent.work(until_idle=True)  # what the dead one left
        assert all(is_complete(store.load(run_id)) for run_id in store.list_runs())
        assert audit(store) == 24


def work_and_die(path: Path) -> None:
    """One that is killed inside a transaction."""
    store = SQLiteStore(path)
    agent = clerk(store)
    agent.enqueue(order([[(0, 1, 1000)]]))
    transaction = store.transact("nobody")
    transaction.begun.result()
    transaction.execute("UPDATE account SET amount = 0", ())
    os.kill(os.getpid(), signal.SIGKILL)


def process(target: Any, *args: Any) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.transactional.test_bank", "agentor.engine.store.sqlite"])
    child = context.Process(target=target, args=args)
    child.start()
    return child


TRANSFERS = st.tuples(
    st.integers(0, ACCOUNTS - 1), st.integers(0, ACCOUNTS - 1), st.integers(1, 150)
)
PLANS = st.lists(st.lists(TRANSFERS, min_size=1, max_size=3), max_size=3)


@settings(max_examples=30)
@given(st.lists(PLANS, min_size=1, max_size=4), st.booleans())
def test_clerks_side_by_side_whose_transfers_fail_or_succeed_keep_the_books(
    plans: list[Any], atomic: bool
) -> None:
    with tempfile.TemporaryDirectory() as place, opened(Path(place) / "bank.db", "OFF") as store:

        async def all_at_once() -> list[Any]:
            agent = clerk(store, atomic_batches=atomic)
            return await asyncio.gather(*(agent.arun(order(plan)) for plan in plans))

        results = asyncio.run(all_at_once())
        assert all(result.status == "completed" and not result.unsaved for result in results)
        failed = [e.error for r in results for e in r.events if e.type == "tool_result" and e.error]
        assert set(failed) <= {"ValueError: there is not enough on the account", "rolled back"}
        made = audit(store)
        assert store.undelivered() == made  # a letter for each, none for those that failed
        assert made + len(failed) == sum(len(turn) for plan in plans for turn in plan)
