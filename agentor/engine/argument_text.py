"""The argument text of one tool call, gathered piece by piece, and whether it is a complete object yet."""

from __future__ import annotations

import re
from typing import Any, Final

from agentor.engine import strict_json

_MARKS: Final = re.compile(r'["{}\[\]]')
_IN_STRING: Final = re.compile(r'["\\]')


class ArgumentText:
    """Pieces of JSON text. Every character is looked at once, however often `complete` is asked."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._object = False  # the whole came as a JSON value, not as text
        self._scan = _Scan()
        self._scanned = 0  # pieces

    def add(self, value: Any) -> None:
        """A piece of text, or a whole value from a server that sends no text. None and "" add nothing."""
        if value is None or value == "":
            return
        if isinstance(value, str) and not self._object and not self._replaces(value):
            self._pieces.append(value)
            return
        text = value if isinstance(value, str) else strict_json.dumps(strict_json.clean(value))
        self._object = not isinstance(value, str)
        self._pieces, self._scan, self._scanned = [text], _Scan(), 0

    def _replaces(self, piece: str) -> bool:
        return self.placeholder and piece.lstrip().startswith("{")

    @property
    def placeholder(self) -> bool:
        """Whether all that came is `{}`: some servers send it ahead of the real arguments."""
        return len(self._pieces) < 4 and "".join(self._pieces).strip() == "{}"

    @property
    def empty(self) -> bool:
        """Whether nothing but white space came."""
        return not any(piece.strip() for piece in self._pieces)

    @property
    def complete(self) -> bool:
        """Whether an object was opened and closed again."""
        for piece in self._pieces[self._scanned :]:
            self._scan.read(piece)
        self._scanned = len(self._pieces)
        return self._scan.end is not None

    def whole(self) -> str:
        """The text as it came, less full repeats of it."""
        text = "".join(self._pieces)
        if self.complete:
            first, rest = text[: self._scan.end].strip(), text[self._scan.end :].strip()
            if rest and not rest.replace(first, "").strip():
                text = first
        return strict_json.clean_text(text)


class _Scan:
    """Finds the end of the first object in a text that comes in pieces."""

    def __init__(self) -> None:
        self.end: int | None = None
        self._read = 0  # characters of earlier pieces
        self._depth = 0
        self._string = False
        self._escaped = False  # the next piece begins right after a backslash
        self._none = False  # it begins with something else: there is no object

    def read(self, piece: str) -> None:
        if self.end is None and not self._none:
            self._look(piece)
        self._read += len(piece)

    def _look(self, piece: str) -> None:
        at = self._start(piece)
        while at < len(piece) and self.end is None:
            if self._string:
                at = self._skip_string(piece, at)
                continue
            mark = _MARKS.search(piece, at)
            if mark is None:
                return
            at = mark.end()
            self._mark(mark.group(), at)

    def _start(self, piece: str) -> int:
        if self._escaped:
            self._escaped = False
            return 1
        if self._depth == 0 and (begin := piece.lstrip()):
            self._none = begin[0] != "{"
            if self._none:
                return len(piece)
        return 0

    def _skip_string(self, piece: str, at: int) -> int:
        mark = _IN_STRING.search(piece, at)
        if mark is None:
            return len(piece)
        if mark.group() == '"':
            self._string = False
            return mark.end()
        self._escaped = mark.end() == len(piece)
        return mark.end() + 1

    def _mark(self, mark: str, at: int) -> None:
        if mark == '"':
            self._string = True
        elif mark in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            if self._depth <= 0:
                self.end = self._read + at
