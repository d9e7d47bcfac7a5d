"""Server-sent events from bytes, however the bytes are cut.

Lines are split before they are decoded, so that no piece boundary falls into a character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its name ("" if it has none) and its data lines joined with newlines."""

    name: str
    data: str


class EventDecoder:
    """Feed it the body as it comes; comments, ids and retry times are skipped."""

    def __init__(self) -> None:
        self._open: list[bytes] = []  # pieces of the line that is not ended yet
        self._after_cr = False  # a line feed that follows belongs to the line end before it
        self._first_line = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that this piece completes."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if b"\n" not in piece and b"\r" not in piece:
            self._open.append(piece)
            return []
        self._after_cr = piece.endswith(b"\r")
        lines = b"".join([*self._open, piece]).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ended, last = lines.split(b"\n")
        self._open = [last]
        return [event for line in ended if (event := self._line(line)) is not None]

    def close(self) -> list[ServerEvent]:
        """What the body ended on without a line end or a blank line; the reader must judge if it is whole."""
        events = [self._line(b"".join(self._open)), self._line(b"")]
        self._open = []
        return [event for event in events if event is not None]

    def _line(self, line: bytes) -> ServerEvent | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        event = ServerEvent(self._name, "\n".join(self._data))
        said = bool(self._data or self._name)
        self._name, self._data = "", []
        return event if said else None
