"""What the command line prints, and how: tables and timelines in colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from agentor.cli.plain import one_line, plain
from agentor.cli.timeline import Line

_STYLES = {"plain": "", "quiet": "dim", "good": "green", "bad": "red"}
STATUS_STYLES = {"completed": "green", "failed": "red", "max_turns": "yellow", "unfinished": "cyan"}
_MANY = 50  # items from which on progress is shown
_Item = TypeVar("_Item")


def console() -> Console:
    """For standard output. A pipe gets lines as long as they are: a reader of ours may be grep."""
    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """One JSON document. ASCII only, so that no terminal and no locale can trip over it."""
    click.echo(json.dumps(value, indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        right = heading in ("turns", "tokens")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *(cell if isinstance(cell, Text) else Text(one_line(cell, 80)) for cell in row)
        )
    console().print(table)


def status_text(status: str) -> Text:
    return Text(one_line(status, 40), style=STATUS_STYLES.get(status, ""))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Pairs of name and value, one a line; empty values are left out."""
    for name, value in facts:
        if value:
            line = Text(f"{name:<9} ", style="dim").append(one_line(value, 500), style="not dim")
            console().print(line, soft_wrap=True)


def print_timeline(lines: Iterable[Line]) -> None:
    out = console()
    for line in lines:
        out.print(_rendered(line), soft_wrap=True)


def _rendered(line: Line) -> Text:
    seq = "" if line.seq is None else str(line.seq)
    label = one_line(line.label, 40)
    text = plain(line.text).strip("\n").replace("\n", "\n" + " " * 24)
    rendered = Text(f"{seq:>5}  ", style="dim")
    rendered.append(f"{label:<16} ", style="bold not dim")
    rendered.append(
        text, style=f"not dim {_STYLES[line.tone]}".strip() if line.tone != "quiet" else ""
    )
    if line.note:
        rendered.append(f"   {one_line(line.note, 80)}", style="dim")
    return rendered


def with_progress(items: Sequence[_Item], what: str) -> Iterator[_Item]:
    """The items; with a bar on standard error meanwhile, if there are many and somebody is looking."""
    if len(items) < _MANY or not sys.stderr.isatty():
        yield from items
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, description=what)
