"""What the command line prints, and how: tables and timelines in colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentor.cli.plain import one_line, plain
from agentor.cli.shortening import shortened
from agentor.cli.timeline import Line
from agentor.engine import strict_json

_STYLES = {"plain": "", "quiet": "dim", "good": "green", "bad": "red"}
STATUS_STYLES = {"completed": "green", "failed": "red", "max_turns": "yellow", "unfinished": "cyan"}
STATUS_STYLES |= {"queued": "cyan", "running": "cyan bold"}
STATUS_STYLES |= {"paused": "magenta", "parked": "red", "refused": "red", "damaged": "red"}
NUMBERS = ("turns", "tokens")  # columns that are set to the right
EXPENDABLE = (
    "forked from",
    "started",
    "tokens",
    "turns",
    "agent",
    "took",
    "worker",
)  # in this order
# Columns whose texts stay whole: one that is longer than the others stands out of its column.
UNCUT = ("run", "key")
_USUAL = 40  # characters of such a text that no column is too narrow for
_INDENT = 24  # of the texts in a timeline
_PIPE = 100  # columns, where no terminal says how many there are
_MANY = 50  # items from which on progress is shown
_Item = TypeVar("_Item")


def console() -> Console:
    """For standard output. A pipe gets lines as long as they are: a reader of ours may be grep."""
    width = None if sys.stdout.isatty() else 10_000
    return _Output(width=width, markup=False, highlight=False, emoji=False)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # for whoever ends the program


def print_json(value: Any) -> None:
    """One JSON document. ASCII only, so that no terminal and no locale can trip over it."""
    click.echo(strict_json.in_ascii(value, indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """A line per row, never broken; empty columns are left out, and so nothing is printed without rows. Where the
    terminal is too narrow, the columns of EXPENDABLE go, visibly."""
    most = [1000 if heading in UNCUT else 80 for heading in headings]
    body = [[_cell(*each) for each in zip(row, most, strict=True)] for row in rows]
    if not body:
        return
    columns = {
        heading: [Text(heading, style="bold"), *cells]
        for heading, cells in zip(headings, zip(*body, strict=True), strict=True)
        if any(cell.plain for cell in cells)
    }
    out = console()
    widths = {heading: max(cell.cell_len for cell in cells) for heading, cells in columns.items()}
    if not _fits(widths, out.width):
        widths |= {name: _usual_width(columns[name]) for name in UNCUT if name in columns}
    dropped = _drop_until_it_fits(widths, out.width)
    shown = {heading: columns[heading] for heading in widths}
    for cells in zip(*shown.values(), strict=True):
        out.print(_row(dict(zip(shown, cells, strict=True)), widths), soft_wrap=True)
    if dropped:
        told = f"Too narrow for: {', '.join(dropped)}. --json has everything."
        out.print(Text(told, style="dim"), soft_wrap=True)


def _cell(content: str | Text, most: int) -> Text:
    return content if isinstance(content, Text) else Text(one_line(content, most))


def _fits(widths: Mapping[str, int], room: int) -> bool:
    return sum(widths.values()) + 2 * (len(widths) - 1) <= room


def _usual_width(column: Sequence[Text]) -> int:
    """Of a column that need not hold the few texts that are far longer than most."""
    heading, *cells = column
    lengths = sorted(cell.cell_len for cell in cells)
    most = max(_USUAL, 2 * lengths[(len(lengths) - 1) // 2])
    return max([heading.cell_len, *(length for length in lengths if length <= most)])


def _drop_until_it_fits(widths: dict[str, int], room: int) -> list[str]:
    """Take columns out of `widths` until they fit into `room`; the names of those taken."""
    dropped = []
    for heading in EXPENDABLE:
        if _fits(widths, room):
            break
        if widths.pop(heading, None):
            dropped.append(heading)
    return dropped


def _row(cells: dict[str, Text], widths: dict[str, int]) -> Text:
    row = Text()
    for heading, cell in cells.items():
        padding = " " * (widths[heading] - cell.cell_len)
        left, right = (padding, "") if heading in NUMBERS else ("", padding)
        row.append(left).append_text(cell).append(f"{right}  ")
    row.rstrip()
    return row


def moment(seconds: float | None) -> str:
    """A time as the user's clock on the wall shows it."""
    return "" if seconds is None else _formatted(seconds, "%Y-%m-%d %H:%M:%S")


def time_of_day(seconds: float) -> str:
    return _formatted(seconds, "%H:%M:%S")


def _formatted(seconds: float, form: str) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC).astimezone():{form}}"
    except (ValueError, OverflowError, OSError):  # what a damaged or foreign log calls a time
        return "?"


def status_text(status: str) -> Text:
    return Text(one_line(status, 40), style=STATUS_STYLES.get(status, ""))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Pairs of name and value, one a line; empty values are left out."""
    for name, value in facts:
        if value:
            line = Text(f"{name:<9} ", style="dim").append(one_line(value, 500), style="not dim")
            console().print(line, soft_wrap=True)


def print_timeline(lines: Iterable[Line], full: bool = False) -> None:
    """Long texts are shortened to a few lines of the terminal, and say so, unless `full`."""
    out = console()
    room = max((out.width if out.is_terminal else _PIPE) - _INDENT, 20)
    for line in lines:
        out.print(_rendered(line, room, full, wrap=out.is_terminal), soft_wrap=True)


def _rendered(line: Line, room: int, full: bool, wrap: bool) -> Text:
    seq = "" if line.seq is None else str(line.seq)
    label = one_line(line.label, 40)
    text, left_out = plain(line.text).strip("\n"), 0
    if not full:
        text, left_out = shortened(text, room)
    if wrap:
        text = "\n".join(part.plain for part in Text(text).wrap(Console(width=room), room))
    rendered = Text(f"{seq:>5}  ", style="dim")
    rendered.append(f"{label:<16} ", style="bold not dim")
    rendered.append(
        text.replace("\n", "\n" + " " * _INDENT),
        style=f"not dim {_STYLES[line.tone]}".strip() if line.tone != "quiet" else "",
    )
    if left_out:
        told = f"… {left_out:,} more characters (--full)"
        rendered.append(f"\n{'':{_INDENT}}{told}", style="dim")
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
