"""The table for people, the JSON for programs, the picture for documents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.machine import told as told_machine
from bench.measures import MEASURES
from bench.page import filled
from bench.peers import VENV
from bench.rows import Row, told

_COLUMNS = ("figure", "ours", "beside", "theirs", "ratio", "target", "")


def show(console: Console, machine: Mapping[str, Any], rows: Sequence[Row], sizes: str) -> None:
    for measure in MEASURES:
        if found := [row for row in rows if row.measure == measure.name]:
            table = _grid if measure.name == "stores" else _table
            console.print(table(measure.title, found), "")
    console.print(f"Sizes: {sizes}. Machine: {told_machine(dict(machine))}.", highlight=False)


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = _empty(title, _COLUMNS)
    for row in rows:
        table.add_row(*_cells(row), _verdict(row.verdict))
    return table


def _grid(title: str, rows: Sequence[Row]) -> Table:
    """Rows called "who: what" as one line for each who."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        who, _, what = row.figure.partition(": ")
        lines.setdefault(who, {})[what] = row.verdict or told(row.ours, row.unit)
    columns = list(dict.fromkeys(what for line in lines.values() for what in line))
    table = _empty(title, ["", *columns])
    for who, line in lines.items():
        table.add_row(who, *(line.get(what, "") for what in columns))
    return table


def _empty(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False
    )
    for column in columns:
        is_text = column in ("", "figure", "beside", "target")
        table.add_column(column, justify="left" if is_text else "right")
    return table


def _cells(row: Row) -> list[str]:
    return [
        row.figure,
        told(row.ours, row.unit),
        row.peer or "",
        told(row.theirs, row.unit),
        told(row.ratio, "x"),
        str(row.target) if row.target else "",
    ]


def _verdict(verdict: str) -> Text:
    style = {"reached": "green"}.get(verdict, "red" if verdict else "")
    return Text(verdict, style=style)


def save(
    folder: Path,
    machine: Mapping[str, Any],
    rows: Sequence[Row],
    problems: Mapping[str, str],
    sizes: str,
) -> list[Path]:
    """Write bench.json, the figures of performance.md if it is there, and bench.svg if there is something to draw
    with; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "sizes": sizes,
        "machine": dict(machine),
        "problems": dict(problems),
        "rows": [row.to_dict() for row in rows],
    }
    written = [folder / "bench.json"]
    written[0].write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    page = folder / "performance.md"
    if page.exists():
        page.write_text(filled(page.read_text(), machine, rows))
        written.append(page)
    picture = folder / "bench.svg"
    drawing = Path(__file__).with_name("picture.py")
    command = [str(VENV / "bin" / "python"), "-P", str(drawing), str(written[0]), str(picture)]
    try:
        subprocess.run(command, check=True, capture_output=True)
        written.append(picture)
    except (OSError, subprocess.CalledProcessError):
        pass  # without matplotlib there is no picture; the table and the JSON say it all
    return written
