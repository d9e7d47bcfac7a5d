"""Tables: one line per row, whatever the width and the text."""

from __future__ import annotations

import pytest
from rich.console import Console

from agentor.cli import console

HEADINGS = ("run", "status", "agent", "turns", "forked from")
ROWS = [
    ["a" * 32, "completed", "Weather \x1b[31mAgent\n", "12", "b" * 32],
    ["漢字", "failed", "", "3", ""],
]


def table(width: int, rows: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    out = Console(width=width, markup=False, highlight=False, record=True, quiet=False)
    monkeypatch.setattr(console, "console", lambda: out)
    with out.capture() as captured:
        console.print_table(HEADINGS, rows)
    return captured.get().splitlines()


def test_columns_are_aligned_and_numbers_set_to_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(200, ROWS, monkeypatch) == [
        f"run{' ' * 31}status     agent          turns  forked from",
        f"{'a' * 32}  completed  Weather Agent     12  {'b' * 32}",
        f"漢字{' ' * 30}failed                        3",
    ]


def test_empty_columns_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(200, [ROWS[1]], monkeypatch)[0].split() == ["run", "status", "turns"]


def test_a_table_without_rows_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(200, [], monkeypatch) == []
    assert table(200, [[""] * len(HEADINGS)], monkeypatch) == []


def test_a_narrow_terminal_loses_columns_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table(70, ROWS, monkeypatch)
    assert lines[0].split() == ["run", "status", "agent", "turns"]
    assert lines[-1] == "Too narrow for: forked from. --json has everything."


@pytest.mark.parametrize("width", [50, 80, 120])
def test_one_very_long_id_stands_out_and_pushes_no_other_row(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    rows = [[f"run-{number}", "completed", "Ada", "12", ""] for number in range(9)]
    rows.insert(4, ["x" * 128, "failed", "Bob", "3", ""])
    heading, *lines = table(width, rows, monkeypatch)
    assert heading == "run    status     agent  turns"
    assert lines.pop(4).split() == ["x" * 128, "failed", "Bob", "3"]
    assert lines == [f"run-{number}  completed  Ada       12" for number in range(9)]
    wide = table(200, rows, monkeypatch)
    assert {line.index("completed") for line in wide if "completed" in line} == {130}


def test_ids_that_are_all_long_stay_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table(
        60, [["x" * 128, "failed", "", "", ""], ["y" * 90, "failed", "", "", ""]], monkeypatch
    )
    assert {line.find("failed") for line in lines[1:3]} == {130}


def test_ids_stay_whole_however_narrow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table(20, ROWS, monkeypatch)
    assert lines[0].split() == ["run", "status"]
    assert lines[1].startswith("a" * 32)
