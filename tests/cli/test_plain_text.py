"""No text of a model or a tool reaches the terminal as anything but text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.cli.plain import one_line, plain

harmless = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")))
hostile = st.lists(
    harmless
    | st.sampled_from(["\x1b", "\x9b", "[", "]", "31m", "\x07", "\x1b\\", "\r", "\x00", ";"])
).map("".join)
anything = hostile | st.text(st.characters())


@given(anything)
def test_no_control_character_is_left_but_newline_and_tab(text: str) -> None:
    left = {c for c in plain(text) if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert left <= {"\n", "\t"}


@given(anything)
def test_making_plain_twice_changes_nothing_more(text: str) -> None:
    assert plain(plain(text)) == plain(text)


@given(harmless)
def test_harmless_text_is_shown_as_it_is(text: str) -> None:
    assert plain(text) == text


@given(anything)
def test_plain_text_can_always_be_printed(text: str) -> None:
    plain(text).encode()


@given(anything, st.integers(1, 80))
def test_one_line_is_one_line_and_not_longer_than_asked(text: str, width: int) -> None:
    line = one_line(text, width)
    assert len(line) <= width
    assert "\n" not in line


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice\x1b\\text", "text"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bcreset", "reset"),
        ("safe\rhidden", "safe\nhidden"),
        ("a\u202egnp.exe", "agnp.exe"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
        ("👩‍💻 é 漢", "👩‍💻 é 漢"),
        ("nothing is \x1b]hidden\nafter it", "nothing is hidden\nafter it"),
    ],
)
def test_what_is_shown_of_known_sequences(written: str, shown: str) -> None:
    assert plain(written) == shown


def test_a_megabyte_of_escapes_is_made_plain_at_once() -> None:
    assert plain("\x1b]" * 500_000) == ""
