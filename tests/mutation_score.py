"""The score of each mutated module and what survived: `python -m tests.mutation_score mutants`; 1 if one is under 90 %.

A mutant is killed when a test fails over it or when it runs out of time. Read from the folder that mutmut leaves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LEAST = 0.9
KILLED = frozenset(
    {1, 3, 24, -24, 36, 152, 255}
)  # pytest's failures; the signals and codes of a timeout


@dataclass(frozen=True)
class Score:
    """What became of the mutants of one module."""

    module: str
    mutants: int
    survivors: tuple[str, ...]

    @property
    def killed(self) -> int:
        return self.mutants - len(self.survivors)

    @property
    def share(self) -> float:
        return self.killed / self.mutants if self.mutants else 1.0


def score_of(module: str, exit_codes: Mapping[str, int | None]) -> Score:
    """Whatever is not surely killed has survived: not tested, skipped and broken runs as well."""
    survivors = tuple(name for name, code in exit_codes.items() if code not in KILLED)
    return Score(module, len(exit_codes), survivors)


def scores_in(folder: Path) -> list[Score]:
    """Of each module, by name."""
    return [
        score_of(
            path.name.removesuffix(".py.meta"), json.loads(path.read_text())["exit_code_by_key"]
        )
        for path in sorted(folder.rglob("*.py.meta"))
    ]


def table(scores: list[Score]) -> str:
    rows = ["| module | mutants | killed | survived | score |", "|---|---|---|---|---|"]
    rows += [
        f"| {s.module} | {s.mutants} | {s.killed} | {len(s.survivors)} | {s.share:.1%} |"
        for s in scores
    ]
    return "\n".join(rows)


def main(folder: str) -> int:
    scores = scores_in(Path(folder))
    for score in scores:
        print(*score.survivors, sep="\n")
    print(table(scores))
    return 0 if scores and all(score.share >= LEAST for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
