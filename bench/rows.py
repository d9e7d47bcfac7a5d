"""A line of the table: what was measured, beside what, and whether the target was reached."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """What a figure is held against: at most, or at least, `limit`."""

    limit: float
    at_most: bool
    unit: str = ""

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {told(self.limit, self.unit)}"

    def verdict(self, value: float) -> str:
        """`reached`, or by how much not: as a share of the limit."""
        if value <= self.limit if self.at_most else value >= self.limit:
            return "reached"
        return f"missed by {abs(value / self.limit - 1):.0%}"


def at_most(limit: float, unit: str = "") -> Target:
    return Target(limit, True, unit)


def at_least(limit: float, unit: str = "") -> Target:
    return Target(limit, False, unit)


@dataclass(frozen=True)
class Row:
    """One figure. `ratio` is what the target is about when there is a peer, else `ours` is."""

    measure: str
    figure: str
    ours: float | None = None
    unit: str = ""
    peer: str | None = None
    theirs: float | None = None
    ratio: float | None = None
    target: Target | None = None
    problem: str | None = None  # why there is no figure
    spread: tuple[float, float] | None = (
        None  # the lowest and the highest that `ours` was, of several trials
    )

    @property
    def verdict(self) -> str:
        if self.problem:
            return f"not measured: {self.problem}"
        value = self.ours if self.ratio is None else self.ratio
        return self.target.verdict(value) if self.target and value is not None else ""

    def to_dict(self) -> dict[str, Any]:
        row = {**asdict(self), "target": str(self.target) if self.target else None}
        return {**row, "verdict": self.verdict}


def told(value: float | None, unit: str = "") -> str:
    """A figure as people read it."""
    if value is None:
        return ""
    match unit:
        case "s":
            return _seconds(value)
        case "bytes":
            return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
        case "x":
            return f"{value:.2f} x" if value < 20 else f"{value:,.0f} x"
    digits = 0 if value >= 100 else 1
    return f"{value:,.{digits}f} {unit}".strip()


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
