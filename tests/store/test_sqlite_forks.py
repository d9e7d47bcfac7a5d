"""os.fork while a store is at work: it never waits for ever, and a child that could do harm is told so."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_children import Child

from agentor.engine.store import SQLiteStore

FORKING = """
import threading, time
from agentor.engine.store import sqlite_forks
sqlite_forks.WAIT_S = 0.2

def fork():
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        for open_it in (lambda: SQLiteStore(path + "2"), lambda: store.load("run"), store.close):
            try:
                open_it()
            except errors.StoreError as error:
                say("child:", str(error))
        os._exit(0)
    assert time.monotonic() - begun < 20
    os.waitpid(child, 0)

path = sys.argv[1]
store = SQLiteStore(path)
store.append("run", Event("run_start"))
"""

IN_A_TRANSACTION = """
transaction = store.transact("run", None, 60)
transaction.begun.result()
transaction.execute("CREATE TABLE t (x)", ())
fork()
transaction.execute("INSERT INTO t VALUES (1)", ())
transaction.commit([Event("message")]).result()
"""

IN_A_BACKUP = """
store.backup(path + ".copy", lambda done, total: fork())
store.append("run", Event("message"))
"""

WHILE_ANOTHER_PROCESS_WRITES = """
import apsw, subprocess
holder = subprocess.Popen(
    [sys.executable, "-c", "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); print(1, flush=True); input()", path],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
holder.stdout.readline()
future = store.submit("run", [Event("message")])
while not store._writer._committing.locked():
    time.sleep(0.001)
fork()
holder.communicate(b"\\n")
future.result()
"""

WHILE_A_STORE_IS_OPENED = """
from agentor.engine.store import sqlite_guard
held, done = threading.Event(), threading.Event()
def open_slowly():
    with sqlite_guard._lock:
        held.set()
        done.wait()
thread = threading.Thread(target=open_slowly)
thread.start()
held.wait()
fork()
done.set()
thread.join()
store.append("run", Event("message"))
"""


@pytest.mark.parametrize(
    "act",
    [IN_A_TRANSACTION, IN_A_BACKUP, WHILE_ANOTHER_PROCESS_WRITES, WHILE_A_STORE_IS_OPENED],
    ids=["in a transaction", "in a backup", "while another process writes", "while a store opens"],
)
def test_a_fork_while_a_store_is_at_work_ends_and_the_parent_goes_on(
    tmp_path: Path, act: str
) -> None:
    path = tmp_path / "runs.db"
    told = Child(FORKING + act + '\nstore.append("run", Event("message"))', path).end()
    opened, loaded = told.splitlines()[:2]
    assert "forked while SQLite was at work in its parent" in opened
    assert "opened before os.fork()" in loaded
    with SQLiteStore(path) as store:
        assert [event.seq for event in store.load("run")] == [1, 2, 3]
        assert store.integrity_check() == []


def test_after_a_fork_at_rest_the_child_may_open_stores_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    code = """
    path = sys.argv[1]
    store = SQLiteStore(path)
    store.append("run", Event("run_start"))
    child = os.fork()
    if child == 0:
        with SQLiteStore(path) as own:
            own.append("run", Event("message"))
        store.close()
        os._exit(0)
    os.waitpid(child, 0)
    store.append("run", Event("message"))
    store.close()
    """
    Child(code, path).end()
    with SQLiteStore(path) as store:
        assert len(store.load("run")) == 3
