"""Who holds a lease, and when that process has provably ended; and when a lease that nobody renews is free."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import MemoryStore, SQLiteStore, owner, owner_id
from agentor.errors import LeaseHeldError, LeaseLostError


def with_part(name: str, number: int, value: str) -> str:
    parts = name.split("/")
    parts[number] = value
    return "/".join(parts)


def test_no_two_holders_have_one_name() -> None:
    assert len({owner_id() for _ in range(100)}) == 100


def test_the_name_begins_with_the_process_so_that_people_find_it() -> None:
    assert owner_id().startswith(f"{os.getpid()}@")


def test_this_process_is_alive() -> None:
    assert not owner.is_gone(owner_id())


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (lambda name: name.replace(f"{os.getpid()}@", "4194305@"), True),  # no such process
        (lambda name: with_part(name, 3, "1"), True),  # the process id was used again
        (lambda name: with_part(name, 1, "another-boot"), False),  # perhaps another machine
        (
            lambda name: with_part(name, 2, "[1]"),
            False,
        ),  # another container: not to be seen from here
        (lambda name: with_part(name, 3, "-"), False),  # a system that does not tell
        (lambda name: "a name of my own", False),
        (lambda name: "a/b/c/d/e", False),
    ],
)
def test_only_what_is_provable_counts_as_gone(change: Callable[[str], str], gone: bool) -> None:
    assert owner.is_gone(change(owner_id())) is gone


class MovingClock(clock.SystemClock):
    seconds = 1000.0

    def now(self) -> float:
        return self.seconds


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SQLiteStore | MemoryStore:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "runs.db")


def test_a_lease_that_is_not_renewed_is_free_after_its_time(
    store: SQLiteStore | MemoryStore,
) -> None:
    with clock.installed(MovingClock()) as moving:
        old = store.acquire("run", "me", 30)
        moving.seconds += 20  # type: ignore[attr-defined]
        old = store.renew(old)
        moving.seconds += 29  # type: ignore[attr-defined]
        with pytest.raises(LeaseHeldError):
            store.acquire("run", "you", 30)
        moving.seconds += 1  # type: ignore[attr-defined]
        store.append_many("run", [Event("message", text="late, but still mine")], old)
        store.append("run", Event("message", text="nobody's any more"))
        new = store.acquire("run", "you", 30)
        assert new.term == old.term + 1
        with pytest.raises(LeaseLostError):
            store.append_many("run", [Event("message", text="too late")], old)
        with pytest.raises(LeaseLostError):
            store.renew(old)
    assert len(store.load("run")) == 2
    store.close()


def test_terms_grow_through_every_kind_of_change(store: SQLiteStore | MemoryStore) -> None:
    with clock.installed(MovingClock()) as moving:
        terms = []
        for worker in range(6):
            lease = store.acquire("run", f"worker {worker % 2}", 30)
            terms.append(lease.term)
            if worker % 3 == 0:
                store.release(lease)
            else:
                moving.seconds += 31  # type: ignore[attr-defined]
    assert terms == sorted(set(terms))
    store.close()


def test_a_jump_of_the_clock_never_lets_two_append(store: SQLiteStore | MemoryStore) -> None:
    with clock.installed(MovingClock()) as moving:
        first = store.acquire("run", "me", 30)
        moving.seconds += 1_000_000  # type: ignore[attr-defined]
        second = store.acquire("run", "you", 30)
        moving.seconds -= 2_000_000  # type: ignore[attr-defined]
        store.append_many("run", [Event("message", text="second")], second)
        with pytest.raises(LeaseLostError):
            store.append_many("run", [Event("message", text="first")], first)
    assert [event.text for event in store.load("run")] == ["second"]
    store.close()


class Proc:
    """What the system lets this process see of another one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = owner_id()
        self.told: type[OSError] | None = None  # what a signal to the holder meets
        self.is_readable = True
        self.is_ours = True
        read, readlink = owner._read, os.readlink
        monkeypatch.setattr(owner.os, "kill", self.kill)
        monkeypatch.setattr(owner, "_read", lambda path: read(path) if self._shows(path) else "")
        monkeypatch.setattr(
            owner.os,
            "readlink",
            lambda path: "1" if path == "/proc/self" and not self.is_ours else readlink(path),
        )

    def kill(self, pid: int, signal: int) -> None:
        assert (pid, signal) == (os.getpid(), 0)
        if self.told is not None:
            raise self.told

    def _shows(self, path: str) -> bool:
        return self.is_readable or not path.endswith("/stat")


ANOTHERS = PermissionError  # a living process of another user


@pytest.mark.parametrize("told", [None, ANOTHERS])
@pytest.mark.parametrize("hides", ["is_readable", "is_ours"])  # hidepid, or another namespace's
@pytest.mark.parametrize("start_time", [None, "1"])
def test_a_living_holder_is_not_gone_whatever_proc_hides(
    monkeypatch: pytest.MonkeyPatch, told: type[OSError] | None, hides: str, start_time: str | None
) -> None:
    proc = Proc(monkeypatch)
    proc.told = told
    setattr(proc, hides, False)
    name = proc.name if start_time is None else with_part(proc.name, 3, start_time)
    assert not owner.is_gone(name)


@pytest.mark.parametrize("hides", ["is_readable", "is_ours", "nothing"])
def test_a_holder_that_no_signal_can_reach_is_gone_whatever_proc_hides(
    monkeypatch: pytest.MonkeyPatch, hides: str
) -> None:
    proc = Proc(monkeypatch)
    proc.told = ProcessLookupError
    setattr(proc, hides, False)
    assert owner.is_gone(proc.name)


def test_a_holder_whose_process_id_is_another_users_by_now_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proc = Proc(monkeypatch)
    proc.told = ANOTHERS
    assert not owner.is_gone(proc.name)
    assert owner.is_gone(with_part(proc.name, 3, "1"))


@pytest.mark.parametrize("hides", ["is_readable", "is_ours"])
def test_a_holder_that_cannot_see_its_own_start_time_names_none(
    monkeypatch: pytest.MonkeyPatch, hides: str
) -> None:
    setattr(Proc(monkeypatch), hides, False)
    assert owner_id().split("/")[3] == "-"


def test_a_zombie_is_gone() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    found = owner._stat(child)
    assert found is not None
    name = with_part(owner_id(), 3, found.start_time)
    assert owner.is_gone(name.replace(f"{os.getpid()}@", f"{child}@"))
    os.waitpid(child, 0)


def test_a_number_that_no_process_can_have_proves_nothing() -> None:
    name = owner_id()
    assert not owner.is_gone(name.replace(f"{os.getpid()}@", f"{2**70}@"))
