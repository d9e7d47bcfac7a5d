"""Several real processes on one store: created together, written together, killed in the middle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_children import Child, together

from agentor.engine.store import FileStore, SQLiteStore, owner_id
from agentor.errors import LeaseHeldError

OPEN = {
    "sqlite": "store = SQLiteStore(sys.argv[1] + '/runs.db')\n",
    "file": "store = FileStore(sys.argv[1] + '/runs')\n",
}
kinds = pytest.mark.parametrize("kind", ["sqlite", "file"])


def opened(kind: str, place: Path) -> SQLiteStore | FileStore:
    return SQLiteStore(place / "runs.db") if kind == "sqlite" else FileStore(place / "runs")


@pytest.mark.slow
def test_sixteen_processes_create_one_file_together(tmp_path: Path) -> None:
    code = """
        ready()
        with SQLiteStore(sys.argv[1]) as store:
            store.append("run" + sys.argv[2], Event("run_start", seq=1))
        say("done")
    """
    path = tmp_path / "runs.db"
    assert together([Child(code, path, n) for n in range(16)]) == ["done\n"] * 16
    with SQLiteStore(path) as store:
        assert sorted(store.list_runs()) == sorted(f"run{n}" for n in range(16))
        assert store.integrity_check() == []


@kinds
def test_a_killed_process_leaves_a_prefix_with_all_that_it_was_told_is_saved(
    kind: str, tmp_path: Path
) -> None:
    code = """
        ready()
        for seq in range(1, 1_000_000, 3):
            store.append_many("run", [Event("message", text="x" * 500, seq=seq + n) for n in range(3)])
            say(seq + 2)
    """
    child = Child(OPEN[kind] + "\n".join(line[8:] for line in code.splitlines()), tmp_path)
    child.wait_until_ready()
    child.go()
    acknowledged = [child.line() for _ in range(20)]
    acknowledged += child.kill().split("\n")[:-1]  # whole lines only: the last may be cut
    store = opened(kind, tmp_path)
    loaded = store.load("run")
    assert [event.seq for event in loaded] == list(range(1, len(loaded) + 1))
    assert int(acknowledged[-1]) <= len(loaded) <= int(acknowledged[-1]) + 3
    store.append("run", loaded[-1].with_(seq=len(loaded) + 1))
    assert len(store.load("run")) == len(loaded) + 1
    store.close()


@kinds
def test_processes_that_race_for_each_seq_leave_a_dense_log(kind: str, tmp_path: Path) -> None:
    code = """
won = 0
ready()
while won < 15:
    try:
        store.append("run", Event("message", text=sys.argv[2], seq=len(store.load("run")) + 1))
        won += 1
    except errors.SequenceConflictError:
        pass
"""
    together([Child(OPEN[kind] + code, tmp_path, n) for n in range(3)])
    store = opened(kind, tmp_path)
    loaded = store.load("run")
    assert [event.seq for event in loaded] == list(range(1, 46))
    assert sorted({event.text for event in loaded}) == ["0", "1", "2"]
    store.close()


@kinds
def test_a_lease_of_a_killed_process_is_free_at_once(kind: str, tmp_path: Path) -> None:
    code = """
lease = store.acquire("run", owner_id(), 1_000_000)
store.append_many("run", [Event("run_start", seq=1)], lease)
say(lease.term)
ready()
"""
    child = Child(OPEN[kind] + code, tmp_path)
    term = int(child.line())
    store = opened(kind, tmp_path)
    with pytest.raises(LeaseHeldError) as caught:
        store.acquire("run", owner_id(), 30)
    assert str(caught.value.owner).startswith(f"{child.process.pid}@")
    assert store.holder("run").owner == caught.value.owner
    with pytest.raises(LeaseHeldError):
        store.append("run", store.load("run")[0].with_(seq=2))
    os.kill(child.process.pid, 9)
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    assert store.holder("run") is None
    store.append("run", store.load("run")[0].with_(seq=2))
    assert store.acquire("run", owner_id(), 30).term == term + 1
    child.kill()
    store.close()


@pytest.mark.slow
@kinds
def test_processes_that_delete_what_others_write_and_fork_lose_nothing_else(
    kind: str, tmp_path: Path
) -> None:
    code = """
import random
from agentor.engine.store import fork_run
dice = random.Random(int(sys.argv[2]))
expected = (errors.RunNotFoundError, errors.RunExistsError, errors.ConfigError, errors.LeaseHeldError)
ready()
for _ in range(150):
    run_id, other = f"r{dice.randrange(5)}", f"r{dice.randrange(5)}"
    try:
        match dice.randrange(6):
            case 0:
                store.append_many(run_id, [Event("message", text="x")] * dice.randint(1, 30))
            case 1:
                fork_run(store, run_id, other, at=dice.choice([None, 1, 3]))
            case 2:
                store.delete(run_id)
            case 3:
                store.prune(status="unfinished", keep=2)
            case _:
                log = store.load(run_id)
                assert [event.seq for event in log] == list(range(1, len(log) + 1))
    except expected:
        pass
say("done")
store.close()
"""
    children = [Child(OPEN[kind] + code, tmp_path, n) for n in range(3)]
    assert together(children) == ["done\n"] * 3
    store = opened(kind, tmp_path)
    for run_id in store.list_runs():
        assert store.load(run_id)
    if isinstance(store, SQLiteStore):
        assert store.integrity_check() == []
    for run_id in store.list_runs():
        store.delete(run_id)
    assert store.list_runs() == []
    if isinstance(store, SQLiteStore):
        assert store.counts() == {"runs": 0, "events": 0}
    store.close()


def test_a_forked_child_is_told_to_open_a_store_of_its_own_and_both_can_go_on(
    tmp_path: Path,
) -> None:
    code = """
store = SQLiteStore(sys.argv[1])
store.append("run", Event("run_start", seq=1))
store.load("run")
to_parent, to_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    for use in (lambda: store.load("run"), lambda: store.append("run", Event("x"))):
        try:
            use()
        except errors.StoreError as error:
            assert "open a new SQLiteStore in the child" in str(error), error
        else:
            os._exit(1)
    store.close()
    own = SQLiteStore(sys.argv[1])
    own.append("run", Event("message", text="child", seq=2))
    os.write(to_parent[1], b"!")
    os.read(to_child[0], 1)  # by now the parent has closed its store
    own.append("run", Event("message", text="child, alone", seq=3))
    os._exit(0)  # without closing: what was acknowledged must not depend on it
os.read(to_parent[0], 1)
store.close()
os.write(to_child[1], b"!")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    path = tmp_path / "runs.db"
    Child(code, path).end()
    with SQLiteStore(path) as store:
        assert [event.text for event in store.load("run")] == [None, "child", "child, alone"]
        assert store.integrity_check() == []


def test_forking_while_others_write_loses_nothing(tmp_path: Path) -> None:
    code = """
import threading
store = SQLiteStore(sys.argv[1])
stop = threading.Event()

def write(name):
    seq = 0
    while not stop.is_set():
        seq += 1
        store.append(name, Event("message", seq=seq))
        store.load(name)
    counts[name] = seq

counts = {}
threads = [threading.Thread(target=write, args=(f"run{n}",)) for n in range(2)]
for thread in threads:
    thread.start()
for n in range(10):
    child = os.fork()
    if child == 0:
        own = SQLiteStore(sys.argv[1])
        own.append("children", Event("message"))
        own.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
for name, count in counts.items():
    assert len(store.load(name)) == count
assert len(store.load("children")) == 10
assert store.integrity_check() == []
"""
    Child(code, tmp_path / "runs.db").end()


def test_a_store_that_is_never_closed_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    code = """
store = SQLiteStore(sys.argv[1])
for seq in range(1, 101):
    future = store.submit("run", [Event("message", seq=seq)])
say("leaving without waiting")
"""
    assert Child(code, tmp_path / "runs.db").end() == "leaving without waiting\n"
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert len(store.load("run")) == 100
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs.db"]
