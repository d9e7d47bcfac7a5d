"""How large and how often: in full, and small enough to try the bench itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Sizes:
    name: str
    runs: tuple[int, int]  # turns of a run that is compared to the peers
    long: int  # turns of a long run
    many: tuple[int, int]  # concurrent runs, turns of each
    stores: tuple[int, ...]  # turns of a run on each store
    processes: int  # turns that each of several processes appends
    times: int  # of a trial that takes a second or so
    times_slow: int  # of one that takes much longer


FULL: Final = Sizes("full", (400, 1000), 10_000, (500, 10), (100, 400, 1000), 400, 5, 3)
QUICK: Final = Sizes("quick", (20, 50), 200, (20, 5), (10, 20), 20, 2, 1)
TINY: Final = Sizes("tiny", (2, 4), 12, (3, 2), (2,), 2, 1, 1)
