"""Long text in few lines, and how much of it is left out. A tool's result may have a million characters."""

from __future__ import annotations

from typing import Final

LINES: Final = 6
SPARE: Final = (
    2  # so many more are shown when nothing else is left: "3 more characters" helps nobody
)


def shortened(text: str, width: int) -> tuple[str, int]:
    """The beginning of `text` that takes `LINES` lines of `width` characters, and how many characters follow.

    >>> shortened("a line\\nand another", 80)
    ('a line\\nand another', 0)
    """
    whole = text[: _end(text, width, LINES + SPARE)]
    if len(whole) == len(text):
        return text, 0
    shown = whole[: _end(whole, width, LINES)]
    return shown.rstrip(), len(text) - len(shown)


def _end(text: str, width: int, lines: int) -> int:
    """Where so many lines end."""
    at = 0
    for _ in range(lines):
        broken = text.find("\n", at, at + width + 1)
        at = at + width if broken < 0 else broken + 1
        if at >= len(text):
            return len(text)
    return at
