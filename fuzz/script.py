"""What happens to a world: a list of actions at their times, drawn from a seed.

Everything about an action is in it, so any subset of a script is a script: that is what shrinking needs. Names of runs
and workers are fixed here; an action on a run that does not exist (yet) is one more thing that may happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

WORKERS: Final = ("w1", "w2", "w3")
_AT_PAYMENTS: Final = ("before a payment", "after a payment")
_AT_COMMITS: Final = ("before a commit", "after a commit")
SAFETY_S: Final = 150.0  # virtual seconds in which faults happen


@dataclass(frozen=True, slots=True)
class Action:
    """One line of a script. `details` are the keyword arguments of the action's function in `fuzz.actions`."""

    at_s: float
    kind: str
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        details = " ".join(f"{name}={value}" for name, value in self.details.items())
        return f"at {self.at_s:7.3f} s  {self.kind} {details}".rstrip()


@dataclass
class _Draft:
    """A script in the making."""

    rng: random.Random
    actions: list[Action] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def add(self, at_s: float, kind: str, **details: Any) -> None:
        self.actions.append(Action(round(at_s, 3), kind, details))

    def time(self) -> float:
        return self.rng.triangular(0, SAFETY_S, 0)

    def worker(self) -> str:
        return self.rng.choice(WORKERS)

    def run(self) -> str:
        return self.rng.choice(self.runs)

    def new_run(self, prefix: str) -> str:
        self.runs.append(f"{prefix}{len(self.runs) + 1}")
        return self.runs[-1]


def draw(seed: int) -> list[Action]:
    """The script of a world, in order of time."""
    draft = _Draft(random.Random(f"{seed}/script"))
    for _ in range(draft.rng.randint(1, 3)):
        _start(draft)
    for _ in range(draft.rng.randint(10, 22)):
        draft.rng.choices(list(_KINDS), list(_KINDS.values()))[0](draft)
    return sorted(draft.actions, key=lambda action: action.at_s)


def _start(draft: _Draft) -> None:
    how = draft.rng.choice(("start", "start", "stream", "enqueue"))
    at, turns = draft.time() / 3, draft.rng.randint(2, 6)
    draft.add(at, how, worker=draft.worker(), run=draft.new_run("run"), turns=turns)
    if how == "enqueue":
        draft.add(at + draft.rng.uniform(0, 10), "work", worker=draft.worker())


def _work(draft: _Draft) -> None:
    draft.add(draft.time(), "work", worker=draft.worker())


def _deliver(draft: _Draft) -> None:
    draft.add(draft.time(), "deliver", worker=draft.worker())


def _cancel(draft: _Draft) -> None:
    draft.add(draft.time(), "cancel", worker=draft.worker(), run=draft.run())


def _delete(draft: _Draft) -> None:
    if draft.rng.random() < 0.5:
        draft.add(draft.time(), "delete", worker=draft.worker(), run=draft.run())
    else:
        older_s = round(draft.rng.uniform(0, 40), 3)
        draft.add(draft.time(), "prune", worker=draft.worker(), older_s=older_s)


def _resume(draft: _Draft) -> None:
    draft.add(draft.time(), "resume", worker=draft.worker(), run=draft.run())


def _fork(draft: _Draft) -> None:
    parent = draft.run()
    at = draft.rng.choice((None, None, draft.rng.randint(1, 12)))
    says = draft.rng.choice((None, "And then?"))
    draft.add(
        draft.time(),
        "fork",
        worker=draft.worker(),
        run=parent,
        fork=draft.new_run("fork"),
        at=at,
        says=says,
    )


def _decide(draft: _Draft) -> None:
    for _ in range(2):
        draft.add(
            draft.time(),
            "decide",
            worker=draft.worker(),
            approve=draft.rng.random() < 0.7,
            number=draft.rng.choice((None, None, 7)),
            second=draft.rng.choice((None, None, None, draft.worker())),
            late=draft.rng.random() < 0.2,
        )


def _settle(draft: _Draft) -> None:
    """A worker dies of a payment, somebody else finds it in doubt, and a person says what became of it."""
    at, dead = draft.time(), draft.rng.random() < 0.5
    where = draft.rng.choice(_AT_PAYMENTS)
    draft.add(at, "crash", worker=draft.worker(), where=where, known_dead=dead)
    for after_s in (20, 50):
        _take_over_soon(draft, at + after_s, at_least=1)
        draft.add(
            at + after_s + draft.rng.uniform(5, 25),
            "settle",
            worker=draft.worker(),
            looks=draft.rng.random() < 0.9,
            otherwise=draft.rng.choice(("approve", "reject")),
            second=draft.rng.choice((None, None, None, draft.worker())),
        )


def _crash(draft: _Draft) -> None:
    where = draft.rng.choice(("now", *_AT_COMMITS))
    worker, at, dead = draft.worker(), draft.time(), draft.rng.random() < 0.5
    draft.add(at, "crash", worker=worker, where=where, known_dead=dead)
    _take_over_soon(draft, at + draft.rng.choice((0, 30)))


def _stop(draft: _Draft) -> None:
    draft.add(draft.time(), "stop", worker=draft.worker())


def _stall(draft: _Draft) -> None:
    """Usually with somebody who takes the run over meanwhile."""
    at, until_taken = draft.time(), draft.rng.random() < 0.6
    seconds = draft.rng.choice((draft.rng.uniform(1, 20), draft.rng.uniform(31, 90)))
    draft.add(
        at,
        "stall",
        worker=draft.worker(),
        seconds=100.0 if until_taken else round(seconds, 3),
        until_taken=until_taken,
    )
    _take_over_soon(draft, at + 30, at_least=int(until_taken))


def _take_over_soon(draft: _Draft, after_s: float, at_least: int = 0) -> None:
    for _ in range(draft.rng.randint(at_least, 2)):
        draft.add(after_s + draft.rng.expovariate(0.2), "take_over", worker=draft.worker())


def _power(draft: _Draft) -> None:
    call = draft.rng.choice(("write", "write", "sync"))
    survival = draft.rng.choice(("lost", "kept", "torn", "mixed"))
    draft.add(draft.time(), "power", call=call, after=draft.rng.randint(1, 20), survival=survival)


def _disk_full(draft: _Draft) -> None:
    draft.add(draft.time(), "disk_full", seconds=round(draft.rng.uniform(1, 60), 3))


def _disk_error(draft: _Draft) -> None:
    call = draft.rng.choice(("read", "write", "sync"))
    times = draft.rng.choice((1, 1, 5))
    draft.add(draft.time(), "disk_error", call=call, after=draft.rng.randint(1, 10), times=times)


def _slow_disk(draft: _Draft) -> None:
    draft.add(draft.time(), "slow_disk", seconds=round(draft.rng.uniform(5, 60), 3))


def _locked(draft: _Draft) -> None:
    draft.add(draft.time(), "locked", seconds=round(draft.rng.expovariate(0.2), 3))


_KINDS: Final[dict[Callable[[_Draft], None], float]] = {
    _start: 1,
    _resume: 3,
    _fork: 2,
    _decide: 2,
    _settle: 1,
    _work: 1,
    _deliver: 1,
    _cancel: 1,
    _delete: 1,
    _crash: 6,
    _stop: 1,
    _stall: 3,
    _power: 2,
    _disk_full: 1,
    _disk_error: 1,
    _slow_disk: 1,
    _locked: 1,
}
