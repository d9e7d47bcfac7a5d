"""Long texts in a timeline: a few lines, how much is left out, and a way to have them whole."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stored_runs import BODIES, Program, read_json, write

from agentor.cli import console
from agentor.cli.shortening import LINES, SPARE, shortened
from agentor.cli.timeline import Line

LONG = "word " * 20_000


def rows(text: str, width: int) -> int:
    return sum(max(1, math.ceil(len(line) / width)) for line in text.split("\n"))


@given(st.text(alphabet="ab \n", max_size=300), st.integers(min_value=1, max_value=20))
@example("a" * 200, 20)
@example("\n" * 9, 5)
def test_what_is_shown_is_the_beginning_and_fits_and_what_is_left_out_is_counted(
    text: str, width: int
) -> None:
    shown, left_out = shortened(text, width)
    assert text.startswith(shown)
    assert rows(shown, width) <= LINES + SPARE
    if left_out:
        assert rows(text, width) > LINES + SPARE
        assert text[len(shown) : len(text) - left_out].strip() == ""
    else:
        assert shown == text


def with_a_long_result(store_path: str) -> None:
    long = [{**body, "result": LONG} if body["type"] == "tool_result" else body for body in BODIES]
    write(store_path, "long", long)


def test_show_shortens_a_long_result_and_says_by_how_much(
    program: Program, store_path: str
) -> None:
    with_a_long_result(store_path)
    out = program("show", "long", "--store", store_path).stdout
    told = re.search(r"… ([\d,]+) more characters \(--full\)", out)
    assert told
    assert len(LONG) - 1000 < int(told[1].replace(",", "")) < len(LONG)
    assert len(out) < 3000
    assert out.count("more characters") == 1


@pytest.mark.parametrize("verb", ["show", "tail"])
def test_full_shows_all_of_it(program: Program, store_path: str, verb: str) -> None:
    with_a_long_result(store_path)
    out = program(verb, "long", "--full", "--store", store_path).stdout
    assert LONG.strip() in out
    assert "more characters" not in out


def test_tail_shortens_too(program: Program, store_path: str) -> None:
    with_a_long_result(store_path)
    assert "more characters (--full)" in program("tail", "long", "--store", store_path).stdout


@pytest.mark.parametrize("how", [("show", "--json"), ("show", "--events"), ("tail", "--json")])
def test_json_is_never_shortened(program: Program, store_path: str, how: tuple[str, str]) -> None:
    with_a_long_result(store_path)
    verb, option = how
    assert LONG in program(verb, "long", option, "--store", store_path).stdout


def test_every_kind_of_long_text_is_shortened(program: Program, store_path: str) -> None:
    """What people, models and tools say, and what is given to tools."""
    said: list[dict[str, Any]] = [
        {"type": "run_start", "messages": [{"role": "user", "content": LONG}]},
        {"type": "generation", "turn": 1, "text": LONG, "reasoning": LONG, "correction": LONG},
        {"type": "tool_call", "name": "f", "args": {"text": LONG}, "call_id": "c"},
        {"type": "tool_result", "name": "f", "error": LONG, "call_id": "c"},
        {"type": "message", "text": f"{LONG}!"},
        {"type": "run_end", "status": "failed", "error": LONG},
    ]
    write(store_path, "long", said)
    out = program("show", "long", "--store", store_path).stdout
    assert out.count("more characters") == 8
    assert read_json(program("show", "long", "--json", "--store", store_path))["error"] == LONG


def test_on_a_terminal_a_text_stays_right_of_the_labels_and_inside_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "console", lambda: terminal(width=60))
    console.print_timeline([Line(1, "user", LONG, "5 ms")])
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("    1  user             word word")
    assert 5 < len(others) <= LINES + SPARE + 1
    assert all(line.startswith(" " * 24 + "w") for line in others[:-1])
    assert all(len(line) <= 60 for line in [first, *others[:-1]])


def terminal(width: int) -> Any:
    from rich.console import Console

    return Console(width=width, force_terminal=True, no_color=True, color_system=None, markup=False)
