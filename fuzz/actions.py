"""What can happen to a world, by the names that scripts use. A new kind of action is one function and one line in ALL
(and a way to draw it, in `fuzz.script`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from agentor.engine.recorder import off_loop
from fuzz import people
from fuzz.disk import Call, Effect, Fault, Survival
from fuzz.rival import Rival

if TYPE_CHECKING:
    from fuzz.worker import CrashPoint
    from fuzz.world import World


def start(world: World, worker: str, run: str, turns: int) -> None:
    """A worker starts a run that will take some turns."""
    place = world.worker(worker)
    place.begin("start", run, lambda: place.agent.arun(f"Look {turns}", run_id=run))


def resume(world: World, worker: str, run: str) -> None:
    """A worker takes up a run, whoever works on it."""
    place = world.worker(worker)
    place.begin("resume", run, lambda: place.agent.aresume(run))


def take_over(world: World, worker: str) -> None:
    """A worker takes up a run whose worker is suspended or gone, if there is one."""
    if (run := world.orphan()) is not None:
        resume(world, worker, run)


def stream(world: World, worker: str, run: str, turns: int) -> None:
    """A worker starts a run for a reader who sees it as it happens, and may leave."""
    place = world.worker(worker)
    place.begin("stream", run, lambda: place.read_stream(f"Look {turns}", run))


def enqueue(world: World, worker: str, run: str, turns: int) -> None:
    """Somebody writes a run into the store for a worker to take."""
    place = world.worker(worker)
    place.begin("enqueue", run, lambda: place.agent.aenqueue(f"Look {turns}", run))


def work(world: World, worker: str) -> None:
    """A worker takes unfinished runs until there are none."""
    place = world.worker(worker)
    how: dict[str, Any] = {"until_idle": True, "concurrency": 2, "poll_s": 15.0}
    place.begin("work", "", lambda: place.agent.awork(**how))


def deliver(world: World, worker: str) -> None:
    """A worker delivers what is in the outbox."""
    place = world.worker(worker)
    if world.files is None:
        place.begin("deliver", "", lambda: place.agent.adeliver(place.receive, claim_s=20.0))


def cancel(world: World, worker: str, run: str) -> None:
    """Somebody ends a run, whoever works on it."""
    place = world.worker(worker)
    place.begin("cancel", run, lambda: place.agent.acancel(run))


def delete(world: World, worker: str, run: str) -> None:
    """Somebody deletes a run, which may have forks."""
    store = world.worker(worker).store
    world.worker(worker).begin("delete", run, lambda: off_loop(store, store.delete, run))


def prune(world: World, worker: str, older_s: float) -> None:
    """Somebody deletes the runs that have ended some time ago."""
    store = world.worker(worker).store
    call = partial(store.prune, older_than=older_s)
    world.worker(worker).begin("prune", "", lambda: off_loop(store, call))


def fork(world: World, worker: str, run: str, fork: str, at: int | None, says: str | None) -> None:
    """A worker branches a run, perhaps in flight and perhaps at an earlier seq, and goes on with the branch."""
    place = world.worker(worker)
    if says is not None:
        world.evidence.inputs[fork] = says
    place.begin(f"fork {run} as", fork, lambda: place.agent.afork(run, says, fork_id=fork, at=at))


def decide(
    world: World, worker: str, approve: bool, number: int | None, second: str | None, late: bool
) -> None:
    """A person consents to a call that waits, perhaps with another argument, or refuses it; a second person may say
    the contrary at the same moment, or the first comes late, when it was decided already."""
    call = world.decided[-1] if late and world.decided else people.waiting(world)
    if call is None:
        return
    world.decided.append(call)
    args = None if number is None else {"number": number}
    if approve:
        _say(world, worker, "approve", call, args, any_question=late)
    else:
        _say(world, worker, "reject", call, any_question=late)
    if second is not None:
        _say(world, second, "reject" if approve else "approve", call)


def settle(
    world: World, worker: str, looks: bool, otherwise: people.Word, second: str | None
) -> None:
    """A person says of a call in doubt that it did happen, and usually looks first: one that did not is consented to
    or refused. A second person may look and say so at the same moment."""
    call = people.waiting(world, in_doubt=True)
    if call is None:
        return
    world.decided.append(call)
    word = people.truth(world, call, otherwise)
    _say(world, worker, word if looks else "settle", call)
    if second is not None:
        _say(world, second, word, call)


def _say(
    world: World,
    worker: str,
    word: people.Word,
    call: people.Question,
    args: dict[str, Any] | None = None,
    any_question: bool = False,
) -> None:
    people.say(world.worker(worker), word, call, args, any_question)


def crash(world: World, worker: str, where: CrashPoint | Literal["now"], known_dead: bool) -> None:
    """A worker is killed, now, at its next commit, or as it is about to pay or has just paid."""
    victim = world.victim(worker)
    if victim is None:
        return
    victim.known_dead = known_dead
    if where == "now":
        victim.die()
    else:
        in_files = world.files is not None and where == "before a commit"
        victim.dies_at = "in a write" if in_files else where


def stop(world: World, worker: str) -> None:
    """A worker is told to end, in an orderly way."""
    victim = world.victim(worker)
    if victim is not None:
        world.counts["stops"] += 1
        victim.stop()


def stall(world: World, worker: str, seconds: float, until_taken: bool) -> None:
    """A worker is suspended, for some time or until somebody takes over a run of his."""
    sleeper = world.victim(worker)
    if sleeper is not None:
        world.faults["stall"] += 1
        sleeper.wakes_when_taken = until_taken
        sleeper.suspend()
        world.after(seconds, sleeper.wake)


def power(world: World, call: Call, after: int, survival: Survival) -> None:
    """The power goes at one of the next calls of the disk."""
    world.survival = survival
    _plan(world, call, "power", after, 1)


def disk_error(world: World, call: Call, after: int, times: int) -> None:
    """The disk fails one or a few calls."""
    _plan(world, call, "error", after, times)


def disk_full(world: World, seconds: float) -> None:
    """Nothing more can be allocated on the disk for some time."""

    def space() -> None:
        world.disk.full = False

    world.disk.full = True
    world.after(seconds, space)


def slow_disk(world: World, seconds: float) -> None:
    """Commits and reads take up to 40 s for some time."""

    def fast() -> None:
        world.disk_is_slow = False

    world.faults["slow disk"] += 1
    world.disk_is_slow = True
    world.after(seconds, fast)


def locked(world: World, seconds: float) -> None:
    """Another program holds the file's write lock for some time, as a backup or a console does."""
    if world.files is None and world.rival is None and world.disk.powered:
        world.rival = Rival(world, seconds)


def _plan(world: World, call: Call, effect: Effect, after: int, times: int) -> None:
    world.disk.plan = Fault(call, effect, world.disk.calls[call] + after, times)


_EACH: Final = (
    *(start, stream, enqueue, work, resume, take_over, fork, decide, settle),
    *(cancel, delete, prune, deliver),
    *(crash, stop, stall),
    *(power, disk_error, disk_full, slow_disk, locked),
)
ALL: Final[dict[str, Callable[..., Any]]] = {each.__name__: each for each in _EACH}
