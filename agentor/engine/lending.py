"""The list of messages that a model is handed, filled anew only when it has to be.

A conversation of n messages, copied for each of n requests, is most of what a long run costs. So the list of the last
request is handed out again with what has been added, if the model has given it back as it was: nobody else has a
reference to it, and it still holds the very messages it was filled with.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from agentor.engine.events import Message
from agentor.engine.request import Transcript


class Lending:
    """The requests of one run, one after the other."""

    __slots__ = ("_filled_from", "_lent", "_source")

    def __init__(self) -> None:
        self._lent: list[Message] = []
        self._filled_from: Transcript | None = None
        self._source: str | None = None

    def request(self, transcript: Transcript, source: str | None) -> list[Message]:
        """`transcript.request(source)`: a list that nobody else has, or will be given while it is kept."""
        if not self._extend(transcript, source):
            self._lent = transcript.request(source)
        self._filled_from, self._source = transcript, source
        return self._lent

    def _extend(self, transcript: Transcript, source: str | None) -> bool:
        """Bring the list of the last request up to date, if that is allowed and turns out right."""
        before = self._filled_from
        if before is None or source != self._source or not transcript.continues(before):
            return False
        if _ALONE is None or self._references() != _ALONE:
            return False
        self._lent.extend(transcript.request(source, after=len(before)))
        return transcript.is_sent_as(self._lent)

    def _references(self) -> int:
        """How many there are to the list, as CPython counts them; only the comparison with `_ALONE` means anything."""
        return sys.getrefcount(self._lent)


def _count_alone() -> int | None:
    """What `_references` says of a list that nobody else has. None: this Python does not count so, or threads of it do
    not see each other's counts."""
    gil: Any = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not gil():
        return None
    lending = Lending()
    lending.request(Transcript(), None)
    return lending._references()


_ALONE: Final = _count_alone()
