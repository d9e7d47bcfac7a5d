"""The table in docs/performance.md, written by the bench, so that no figure there is older than bench.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bench.machine import told as told_machine
from bench.measures import MEASURES
from bench.rows import Row, told

BEGIN: Final = "<!-- figures: written by `make bench` -->"
END: Final = "<!-- end of figures -->"


def filled(page: str, machine: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page with the figures between its two marks; ValueError if it has none."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page needs the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{_figures(machine, rows)}\n\n{END}{after}"


def _figures(machine: Mapping[str, Any], rows: Sequence[Row]) -> str:
    parts = [f"Machine: {told_machine(dict(machine))}. Measured on {machine['date']}."]
    for measure in MEASURES:
        if found := [row for row in rows if row.measure == measure.name]:
            parts.append(f"### {measure.title}\n\n{_table(found)}")
    return "\n\n".join(parts)


def _table(rows: Iterable[Row]) -> str:
    lines = [
        "| figure | ours | lowest to highest | beside | theirs | ratio | target | |",
        "|---|---:|---:|---|---:|---:|---|---|",
    ]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    cells = [
        row.figure,
        told(row.ours, row.unit),
        " to ".join(told(each, row.unit) for each in row.spread or ()),
        row.peer or "",
        told(row.theirs, row.unit),
        told(row.ratio, "x"),
        str(row.target) if row.target else "",
        row.verdict,
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
