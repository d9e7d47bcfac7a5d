"""Make a failing script small: leave actions out as long as the same invariant still breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items`, in their order, that still fails and from which no single item can be left out.

    `fails` is asked about parts only; `items` as a whole is taken to fail.
    """
    kept = list(items)
    size = max(1, len(kept) // 2)
    while True:
        smaller = _without_a_piece(kept, size, fails)
        if smaller is not None:
            kept = smaller
        elif size > 1:
            size //= 2
        else:
            return kept


def _without_a_piece(kept: list[T], size: int, fails: Callable[[list[T]], bool]) -> list[T] | None:
    for start in reversed(range(0, len(kept), size)):
        part = kept[:start] + kept[start + size :]
        if fails(part):
            return part
    return None
