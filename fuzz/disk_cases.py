"""Every call of the disk, for every way in which it can fail: one script of two runs, played once for each.

The fault comes at the 1st call of its kind, then at the 2nd, and so on until the script ends without having met it.
After each, the world is judged as any other: the file is whole, nothing acknowledged is gone, nothing is half there,
and every run can be resumed to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fuzz.disk import SURVIVALS, Call, Effect, Fault, Survival
from fuzz.invariants import Breach
from fuzz.liveness import bring_to_end
from fuzz.script import Action
from fuzz.stage import living
from fuzz.world import Outcome

SEED: Final = 5
SCRIPT: Final = (
    Action(0.0, "start", {"worker": "w1", "run": "first", "turns": 5}),
    Action(0.0, "start", {"worker": "w2", "run": "second", "turns": 2}),
    Action(8.0, "stop", {"worker": "w2"}),
    Action(
        9.0,
        "fork",
        {"worker": "w3", "run": "second", "fork": "branch", "at": None, "says": "And then?"},
    ),
)
CALLS_MAX: Final = 5_000  # of one kind; the script makes far fewer


@dataclass(frozen=True, slots=True)
class Case:
    """One way to fail, whichever call it is. `then_power`: what survives of a power cut after the script."""

    call: Call
    effect: Effect
    survival: Survival = "lost"
    times: int = 1
    then_power: bool = False

    def __str__(self) -> str:
        times = "" if self.times == 1 else f" x{self.times}"
        fate = f", unsynced {self.survival}" if self.effect == "power" or self.then_power else ""
        return f"{self.call} {self.effect}{times}{', then power' if self.then_power else ''}{fate}"


POWER: Final = tuple(
    Case(call, "power", survival)
    for call in ("write", "sync", "truncate", "delete", "open")
    for survival in SURVIVALS
)
ERRORS: Final = (
    Case("open", "error"),
    Case("read", "error"),
    Case("read", "short"),
    Case("write", "error"),
    Case("write", "full"),
    Case("write", "full", times=200),
    Case("sync", "error"),
    Case("sync", "error", then_power=True),
    Case("sync", "error", then_power=True, survival="mixed"),
    Case("truncate", "error"),
    Case("delete", "error"),
    Case("lock", "busy"),
    Case("lock", "busy", times=5),
    Case("lock", "error"),
)
ALL: Final = POWER + ERRORS


@dataclass(frozen=True, slots=True)
class Visit:
    """The script with a fault at one call."""

    case: Case
    at: int
    happened: bool
    outcome: Outcome

    @property
    def breaches(self) -> tuple[Breach, ...]:
        return self.outcome.breaches


def visit(case: Case, at: int, store_options: dict[str, Any] | None = None) -> Visit:
    """Play the script with the case's fault at the `at`-th call of its kind."""
    with living(SEED, store_options) as world:
        world.survival = case.survival
        world.disk.plan = Fault(case.call, case.effect, at, case.times)
        world.play(SCRIPT)
        happened = world.disk.faults[f"{case.call} {case.effect}"] > 0
        if case.then_power:
            world.lose_power(case.survival)
        bring_to_end(world)
        return Visit(case, at, happened, world.outcome())


def visits(
    case: Case, first: int = 1, step: int = 1, store_options: dict[str, Any] | None = None
) -> Iterator[Visit]:
    """The fault at every call from the first (or at every `step`-th), up to the one that is never made."""
    for at in itertools.count(first, step):
        assert at < CALLS_MAX, f"{case} never ends"
        found = visit(case, at, store_options)
        yield found
        if not found.happened:
            return
