"""`os.fork` while other threads are in the middle of using a store that keeps its runs in memory or in files."""

from __future__ import annotations

from pathlib import Path

from store_children import Child

FORK = """
import threading
from agentor.engine.store import MemoryStore, file, memory, over_fork

inside = threading.Event()

def in_a_child(act):
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    return child

def ended_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_finds_a_store_in_memory_whole_and_free_whoever_was_writing() -> None:
    code = """
store = MemoryStore()
number = memory.bodies_after

def slowly(*arguments):
    inside.set()
    while not over_fork._forking.locked():  # until somebody is about to fork
        pass
    return number(*arguments)

memory.bodies_after = slowly
writer = threading.Thread(target=store.append, args=("run", Event("message")))
writer.start()
inside.wait()

def act():
    memory.bodies_after = number
    assert [event.seq for event in store.load("run")] == [1]
    assert store.last_position() == 1
    store.append("run", Event("message", seq=2))

assert ended_well(in_a_child(act))
writer.join()
say(len(store.load("run")))
"""
    assert Child(FORK + code).end() == "1\n"


def test_a_child_that_lives_on_does_not_keep_a_file_locked_that_was_being_written(
    tmp_path: Path,
) -> None:
    code = """
store = file.FileStore(sys.argv[1])
write, forked = file.write_at, threading.Event()

def slowly(*arguments):
    inside.set()
    forked.wait()
    write(*arguments)

file.write_at = slowly
writer = threading.Thread(target=store.append, args=("run", Event("message")))
writer.start()
inside.wait()
reading, writing = os.pipe()
child = in_a_child(lambda: os.read(reading, 1))
forked.set()
writer.join()
store.append("run", Event("message", seq=2))
os.write(writing, b"!")
assert ended_well(child)
say(len(store.load("run")))
"""
    assert Child(FORK + code, tmp_path / "runs").end() == "2\n"


def test_a_child_leaves_the_leases_to_its_parent(tmp_path: Path) -> None:
    code = """
store = file.FileStore(sys.argv[1])
lease = store.acquire("run", owner_id(), 30)

def act():
    try:
        store.append_many("run", [Event("message")], lease)
    except errors.LeaseLostError:
        store.close()
        return
    os._exit(1)

assert ended_well(in_a_child(act))
store.append_many("run", [Event("message")], lease)
try:
    file.FileStore(sys.argv[1]).acquire("run", owner_id(), 30)
except errors.LeaseHeldError:
    say("held")
"""
    assert Child(FORK + code, tmp_path / "runs").end() == "held\n"


def test_a_child_that_goes_on_following_wakes_nobody_but_itself() -> None:
    code = """
store = MemoryStore()
store.append("run", Event("message"))
woken = []
with store._bell.waking("run", lambda: woken.append(os.getpid())):
    def act():
        store.append("run", Event("message"))
        assert woken == []
    assert ended_well(in_a_child(act))
    store.append("run", Event("message"))
    say(woken == [os.getpid()])
    for event in store.tail("run"):
        if event.seq == 2:
            break
"""
    assert Child(FORK + code).end() == "True\n"
