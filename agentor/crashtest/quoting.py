"""Texts of the user's in a line of ours."""

from __future__ import annotations


def short(text: object, most: int = 80, *, quoted: bool = True) -> str:
    """At most so many characters of a text, or of what `repr` says of a value."""
    told = str(text) if isinstance(text, str) else repr(text)
    told = told if len(told) <= most else f"{told[:most]}..."
    return repr(told) if quoted and isinstance(text, str) else told


def counted(number: int, one: str, many: str) -> str:
    """As in "1 crash", "1,000 crashes"."""
    return f"{number:,} {one if number == 1 else many}"
