"""From the bytes of a body to a reply, or to what is wrong with it.

The content type is not believed: a body that begins with an object is a whole reply, everything else is read as
server-sent events. A whole reply is whole by itself; a stream is whole only once it has said why it finished.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic_core import from_json

from agentor.engine.assembly import Assembly
from agentor.engine.responses import ModelResponse, StreamChunk
from agentor.engine.sse import EventDecoder, ServerEvent

_KEPT_BYTES: Final = 4_000  # of the beginning of a body, to tell what was seen
_TRANSIENT: Final = frozenset({408, 409, 425, 429})


class BrokenReply(Exception):
    """A reply that was cut, garbled, or an error in place of one. `status` is what its error says, if it does."""

    def __init__(self, reason: str, *, status: int | None = None, told: str = "") -> None:
        self.reason = reason
        self.status = status
        self.told = told  # the server's own words
        super().__init__(reason)

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed when it is sent again."""
        return self.status is None or self.status >= 500 or self.status in _TRANSIENT


class ReplyReader:
    """Feed it the body piece by piece, then ask for the reply. `BrokenReply` says what is wrong."""

    def __init__(self, tool_names: Collection[str] = ()) -> None:
        self.ended = False  # nothing more will be said
        self.broke: str | None = (
            None  # what ended the connection, if it was not the server's end of the body
        )
        self._assembly = Assembly(tool_names)
        self._events = EventDecoder()
        self._whole: list[bytes] | None = None  # pieces of a body that is one object
        self._start = b""
        self._sniffed = False
        self._size = 0

    @property
    def is_whole(self) -> bool:
        """Whether the body is one object and not a stream."""
        return self._whole is not None

    @property
    def finished(self) -> bool:
        """Whether the reply has said why it finished."""
        return self._assembly.finish_reason is not None

    def feed(self, piece: bytes) -> list[StreamChunk]:
        """The visible text that this piece of the body adds."""
        self._size += len(piece)
        if len(self._start) < _KEPT_BYTES:
            self._start += piece[:_KEPT_BYTES]
        if not self._sniffed:
            piece = self._sniff(piece)
        if self._whole is not None:
            self._whole.append(piece)
            return []
        return self._read(self._events.feed(piece))

    def add(self, chunk: Mapping[str, Any]) -> list[StreamChunk]:
        """The visible text of a chunk that was decoded elsewhere."""
        _refuse_error(chunk)
        shown = self._assembly.add(chunk)
        return [shown] if shown else []

    def end(self) -> list[StreamChunk]:
        """The body is over: the text that its last, unfinished line may hold."""
        shown = [] if self._whole is not None else self._read(self._events.close())
        last = self._assembly.end()
        return [*shown, last] if last else shown

    def response(self) -> ModelResponse:
        """The reply, which must be whole."""
        raw = None
        if self._whole is not None:
            raw = self._add_whole(b"".join(self._whole))
        elif not self.finished:
            raise BrokenReply(self._cut("the stream ended without a finish_reason"))
        response = self._assembly.response()
        if response.finish_reason == "error":
            raise BrokenReply("the reply finished with an error")
        response.raw = raw
        return response

    def seen(self) -> str:
        """The beginning of the body, for an error text."""
        if not self._size:
            return "the body was empty"
        return f"{self._size} bytes were seen: {self._start.decode('utf-8', 'replace')}"

    def _cut(self, reason: str) -> str:
        return f"{reason} ({self.broke})" if self.broke else reason

    def _sniff(self, piece: bytes) -> bytes:
        begin = self._start.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not begin:
            return piece
        self._sniffed = True
        if begin.startswith(b"{"):
            self._whole = [self._start[: self._size - len(piece)]]
        return piece

    def _read(self, events: list[ServerEvent]) -> list[StreamChunk]:
        shown: list[StreamChunk] = []
        for event in events:
            if self.ended:
                break
            if event.data.strip() == "[DONE]":
                self.ended = True
                break
            for chunk in self._decode(event):
                shown += self.add(chunk)
        return shown

    def _decode(self, event: ServerEvent) -> list[dict[str, Any]]:
        """The objects in an event: one, or one a line from servers that leave out the blank lines."""
        try:
            chunks = [_object(event.data)]
        except ValueError:
            chunks = self._decode_lines(event)
        if event.name == "error":
            told = chunks[0] if chunks else {}
            raise _error_of({"error": told.get("error") or told})
        return chunks

    def _decode_lines(self, event: ServerEvent) -> list[dict[str, Any]]:
        lines = [line for line in event.data.split("\n") if line.strip()]
        self.ended = "[DONE]" in (line.strip() for line in lines)
        try:
            return [_object(line) for line in lines if line.strip() != "[DONE]"]
        except ValueError:
            if event.name == "error":
                raise BrokenReply("the server sent an error", told=event.data) from None
            if event.name not in ("", "message") or self.finished:
                return []  # not ours to read
            raise BrokenReply(self._cut("the stream held a line that is not JSON")) from None

    def _add_whole(self, body: bytes) -> dict[str, Any]:
        try:
            reply = _object(body.removeprefix(b"\xef\xbb\xbf"))
        except ValueError:
            raise BrokenReply(self._cut("the body is not whole JSON")) from None
        _refuse_error(reply)
        if not _has_message(reply):
            raise BrokenReply("the body holds no choices")
        self._assembly.add(reply)
        return reply


def _object(text: str | bytes) -> dict[str, Any]:
    """Read one object. Halves of surrogate pairs are kept: the other half may be in the next chunk."""
    try:
        value = from_json(text)
    except ValueError:
        value = _lenient(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _lenient(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _has_message(reply: Mapping[str, Any]) -> bool:
    choices = reply.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and isinstance(choices[0], dict)
        and isinstance(choices[0].get("message"), dict)
    )


def _refuse_error(chunk: Mapping[str, Any]) -> None:
    if chunk.get("error"):
        raise _error_of(chunk)
    if chunk.get("object") == "error":
        raise _error_of({"error": chunk})
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and choice.get("error"):
            raise _error_of(choice)


def _error_of(holder: Mapping[str, Any]) -> BrokenReply:
    error = holder["error"]
    told, status = str(error), None
    if isinstance(error, dict):
        told = json.dumps(error, ensure_ascii=False)
        code = error.get("code", error.get("status"))
        if isinstance(code, str) and code.isdecimal() and len(code) == 3:
            code = int(code)
        status = code if isinstance(code, int) and 400 <= code < 600 else None
    return BrokenReply("the server sent an error in place of a reply", status=status, told=told)
