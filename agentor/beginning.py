"""Which runs a program begins while it is loaded. Whoever loads it again begins them again, and asks their models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_BEGUN: Final[ContextVar[list[str] | None]] = ContextVar("_BEGUN", default=None)


@contextlib.contextmanager
def runs_begun() -> Iterator[list[str]]:
    """The agents of the new runs that are begun meanwhile, by this code or what it calls, on whatever event loop.

    What another thread begins by itself is not among them.
    """
    begun: list[str] = []
    outer = _BEGUN.get()
    before = _BEGUN.set(begun)
    try:
        yield begun
    finally:
        _BEGUN.reset(before)
        if outer is not None:
            outer += begun


def note_begun(agent: str) -> None:
    """Say that a new run of this agent begins."""
    begun = _BEGUN.get()
    if begun is not None:
        begun.append(agent)
