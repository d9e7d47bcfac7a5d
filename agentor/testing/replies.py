"""What the fake server sends back, down to the byte.

A `Reply` is a status, headers and a body in parts. Between the parts may stand a `Gate`, at which the server
waits until the test opens it, or an `Ending`, at which it leaves. Every fault is such a mark at some place, or
a change of the bytes; `faults` has them by name.
"""

from __future__ import annotations

import enum
import http
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias


class Gate:
    """Holds a reply back until the test opens it. Nothing here sleeps or guesses at times.

    gate.wait_until_reached() returns when the server has come to the gate; gate.open() lets it go on.
    A server that closes goes through all of its gates.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self._reached = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def wait_until_reached(self, timeout_s: float = 30.0) -> None:
        """Block until the server stands here; `TimeoutError` if it does not come."""
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"no reply came to this gate within {timeout_s} s")

    def open(self) -> None:
        with self._lock:
            self._opened = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_open(self, callback: Callable[[], None]) -> None:
        """Arrive at the gate: `callback` is called when it opens, at once if it is open."""
        with self._lock:
            if not self._opened:
                self._callbacks.append(callback)
                callback = _nothing
        self._reached.set()
        callback()


def _nothing() -> None:
    return


class Ending(enum.Enum):
    """How the server leaves in the middle of a reply."""

    CLOSE = "close"  # the connection is closed as if the server had died
    RESET = "reset"  # the connection is torn down: the client sees "connection reset by peer"


Mark: TypeAlias = Gate | Ending
Part: TypeAlias = bytes | Mark
Framing: TypeAlias = Literal["length", "chunked", "until_close"]


class Reply:
    """One HTTP response. `body` is sent with its length; `chunks` are sent chunked, each in one HTTP chunk.

    A header set to None is left out. `before` are marks that come ahead of the status line.
    """

    def __init__(
        self,
        status: int = 200,
        headers: Mapping[str, str | None] | None = None,
        body: bytes | str = b"",
        chunks: Iterable[bytes | str | Mark] | None = None,
        *,
        framing: Framing | None = None,
        before: Iterable[Mark] = (),
    ) -> None:
        if body and chunks is not None:
            raise ValueError("a Reply has a body or chunks, not both")
        parts = (body,) if chunks is None else chunks
        self.status = status
        self.headers = dict(headers or {})
        self.parts: tuple[Part, ...] = tuple(p.encode() if isinstance(p, str) else p for p in parts)
        self.framing: Framing = framing or ("length" if chunks is None else "chunked")
        self.before = tuple(before)

    def with_(self, **changes: Any) -> Reply:
        """A copy with `status`, `headers`, `chunks`, `framing` or `before` changed."""
        values: dict[str, Any] = {
            "status": self.status,
            "headers": self.headers,
            "chunks": self.parts,
            "framing": self.framing,
            "before": self.before,
        }
        return Reply(**(values | changes))

    @property
    def content(self) -> bytes:
        """The body as a whole, what no mark lets through included."""
        return b"".join(part for part in self.parts if isinstance(part, bytes))

    @property
    def is_stream(self) -> bool:
        return "event-stream" in (self.headers.get("Content-Type") or "")

    def wire(self) -> Iterator[Part]:
        """What goes over the connection, in order: marks, head, and the framed parts."""
        yield from self.before
        yield self._head()
        for part in self.parts:
            if self.framing == "chunked" and isinstance(part, bytes):
                part = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
            yield part
        if self.framing == "chunked":
            yield b"0\r\n\r\n"
        elif self.framing == "until_close":
            yield Ending.CLOSE

    def _head(self) -> bytes:
        framing = {
            "length": {"Content-Length": str(len(self.content))},
            "chunked": {"Transfer-Encoding": "chunked"},
            "until_close": {"Connection": "close"},
        }[self.framing]
        fields = {"Content-Type": "application/json"} | framing | self.headers
        lines = [f"HTTP/1.1 {self.status} {_reason(self.status)}"]
        lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def json_reply(
    payload: Any, status: int = 200, headers: Mapping[str, str | None] | None = None
) -> Reply:
    """Any JSON as a body."""
    return Reply(status, headers, json.dumps(payload, ensure_ascii=False))


def error(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str | None] | None = None,
) -> Reply:
    """An error as OpenAI-compatible servers write it."""
    told = {"message": message, "type": kind, "param": param, "code": code}
    return json_reply({"error": told}, status, headers)


def sse(*payloads: Any, done: bool = True) -> Reply:
    """A stream of server-sent events: one per payload, a string as it stands, anything else as JSON.

    `done` says whether it ends with the `[DONE]` that clients wait for.
    """
    lines = [p if isinstance(p, str) else json.dumps(p, ensure_ascii=False) for p in payloads]
    frames = [f"data: {line}\n\n" for line in ([*lines, "[DONE]"] if done else lines)]
    return Reply(headers={"Content-Type": "text/event-stream; charset=utf-8"}, chunks=frames)
