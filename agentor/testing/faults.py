"""What goes wrong between a client and a model server, each by its name.

Most change another reply: `cut(says("Sunny."), after_bytes=40)`, `gzipped(calls(...))`, and they nest. Places in a
reply count in bytes of the body or in chunks (of a stream: its events); with neither, the place is before the
status line. Faults that need no reply (`html`, `rate_limited` ...) are replies of their own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from agentor.testing.replies import Ending, Gate, Mark, Part, Reply, error, json_reply


@dataclass(frozen=True, slots=True)
class Fault:
    """A reply of any kind, and what is done to its bytes once it is known to which request."""

    reply: Any
    change: Callable[[Reply], Reply]


# -- the connection


def cut(reply: Any, *, after_bytes: int | None = None, after_chunks: int | None = None) -> Fault:
    """The connection is closed in the middle of the reply, as when the server dies."""
    return _marked(reply, Ending.CLOSE, after_bytes, after_chunks)


def reset(
    reply: Any = "", *, after_bytes: int | None = None, after_chunks: int | None = None
) -> Fault:
    """The connection is torn down: "connection reset by peer"."""
    return _marked(reply, Ending.RESET, after_bytes, after_chunks)


def held(
    reply: Any, gate: Gate, *, after_bytes: int | None = None, after_chunks: int | None = None
) -> Fault:
    """The server falls silent at this place until the test opens the gate. A server that hangs is one whose
    gate is never opened."""
    return _marked(reply, gate, after_bytes, after_chunks)


def truncated(
    reply: Any, *, after_bytes: int | None = None, after_chunks: int | None = None
) -> Fault:
    """The body stops early and the response still ends in good order, as behind some proxies."""

    def change(whole: Reply) -> Reply:
        head, _ = _split(whole.parts, after_bytes, after_chunks or 0)
        return whole.with_(chunks=head)

    return Fault(reply, change)


def until_close(reply: Any) -> Fault:
    """No length and no chunks: the body ends where the connection ends."""
    return Fault(reply, lambda whole: whole.with_(framing="until_close"))


def sliced(reply: Any, *, at: Iterable[int] = (), every: int | None = None) -> Fault:
    """The same bytes in other chunks: split at these byte offsets, or every so many bytes."""

    def change(whole: Reply) -> Reply:
        size = len(whole.content)
        places = range(every, size, every) if every else sorted(set(at))
        return whole.with_(chunks=_resliced(whole.parts, places), framing="chunked")

    return Fault(reply, change)


def _resliced(parts: tuple[Part, ...], places: Iterable[int]) -> Iterator[Part]:
    """The bytes split at the places only; marks stay where they are."""
    start = 0
    for is_body, run in groupby(parts, lambda part: isinstance(part, bytes)):
        if not is_body:
            yield from run
            continue
        body = b"".join(part for part in run if isinstance(part, bytes))
        inner = [place - start for place in places if start < place < start + len(body)]
        yield from (body[i:j] for i, j in pairwise([0, *inner, len(body)]))
        start += len(body)


def _marked(reply: Any, mark: Mark, after_bytes: int | None, after_chunks: int | None) -> Fault:
    def change(whole: Reply) -> Reply:
        if after_bytes is None and after_chunks is None:
            return whole.with_(before=(*whole.before, mark))
        head, rest = _split(whole.parts, after_bytes, after_chunks)
        return whole.with_(chunks=(*head, mark, *rest))

    return Fault(reply, change)


def _split(
    parts: tuple[Part, ...], after_bytes: int | None, after_chunks: int | None
) -> tuple[list[Part], list[Part]]:
    """The parts before and after a place; a part that the place falls into is divided."""
    head: list[Part] = []
    rest = list(parts)
    left = after_chunks if after_bytes is None else after_bytes
    while rest and left:
        part = rest.pop(0)
        if not isinstance(part, bytes):
            head.append(part)
        elif after_bytes is None:
            head.append(part)
            left -= 1
        else:
            head.append(part[:left])
            rest[:0] = [part[left:]] if part[left:] else []
            left -= min(left, len(part))
    return head, rest


# -- the bytes


def with_status(reply: Any, status: int) -> Fault:
    """Another status on the same body: an error body with 200, an answer with 502."""
    return Fault(reply, lambda whole: whole.with_(status=status))


def with_headers(reply: Any, **headers: str | None) -> Fault:
    """More headers, with `_` for `-`: `with_headers(r, content_type="text/plain")`; None leaves one out."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Fault(reply, lambda whole: whole.with_(headers=whole.headers | named))


def gzipped(reply: Any) -> Fault:
    """The body compressed; of a stream, every event flushed by itself."""

    def change(whole: Reply) -> Reply:
        press = zlib.compressobj(wbits=31)
        parts = [
            press.compress(part) + press.flush(zlib.Z_SYNC_FLUSH)
            if isinstance(part, bytes)
            else part
            for part in whole.parts
        ]
        headers = whole.headers | {"Content-Encoding": "gzip"}
        return whole.with_(chunks=[*parts, press.flush()], headers=headers)

    return Fault(reply, change)


# -- the stream of events


def crlf(reply: Any) -> Fault:
    """Lines of the stream end in CR LF."""
    return _per_frame(reply, lambda frame: [frame.replace(b"\n", b"\r\n")])


def with_comments(reply: Any, comment: str = "ping") -> Fault:
    """A comment line before every event of the stream, as servers send to keep a connection alive."""
    return _per_frame(reply, lambda frame: [f": {comment}\n\n".encode(), frame])


def with_pings(reply: Any) -> Fault:
    """An `event: ping` before every event of the stream."""
    return _per_frame(reply, lambda frame: [b'event: ping\ndata: {"type": "ping"}\n\n', frame])


def without_done(reply: Any) -> Fault:
    """The stream ends without `[DONE]`."""
    return _per_frame(reply, lambda frame: [] if _is_done(frame) else [frame])


def done_twice(reply: Any) -> Fault:
    """The stream ends with two `[DONE]`."""
    return _per_frame(reply, lambda frame: [frame, frame] if _is_done(frame) else [frame])


def error_event(
    reply: Any,
    message: str = "The server had an error",
    *,
    after_chunks: int = 1,
    named: bool = True,
) -> Fault:
    """The stream breaks off with an error event: `event: error`, or (named=False) a bare data line."""
    told = {"error": {"message": message, "type": "server_error", "param": None, "code": None}}
    frame = f"{'event: error' + chr(10) if named else ''}data: {json.dumps(told)}\n\n".encode()

    def change(whole: Reply) -> Reply:
        head, _ = _split(whole.parts, None, after_chunks)
        return whole.with_(chunks=[*head, frame])

    return Fault(reply, change)


def _per_frame(reply: Any, change: Callable[[bytes], list[bytes]]) -> Fault:
    def frames(parts: tuple[Part, ...]) -> Iterator[Part]:
        for part in parts:
            yield from change(part) if isinstance(part, bytes) else [part]

    def changed(whole: Reply) -> Reply:
        return whole.with_(chunks=frames(whole.parts)) if whole.is_stream else whole

    return Fault(reply, changed)


def _is_done(frame: bytes) -> bool:
    return frame.strip() == b"data: [DONE]"


# -- replies of their own


def rate_limited(retry_after: str | None = "0") -> Reply:
    """429, with a Retry-After in seconds or as a date."""
    message = "Rate limit reached for requests"
    headers = {"Retry-After": retry_after}
    return error(429, message, kind="requests", code="rate_limit_exceeded", headers=headers)


def server_error(status: int = 500) -> Reply:
    return error(
        status, "The server had an error while processing your request", kind="server_error"
    )


def unauthorized() -> Reply:
    return error(401, "Incorrect API key provided", code="invalid_api_key")


def html(status: int = 200) -> Reply:
    """A page in place of an answer, as a proxy or a login wall sends."""
    page = "<!doctype html><html><body><h1>Just a moment...</h1></body></html>"
    return Reply(status, {"Content-Type": "text/html; charset=utf-8"}, page)


def error_with_200(message: str = "upstream is overloaded") -> Reply:
    """An error body under status 200, as some gateways send."""
    return json_reply({"error": {"message": message, "code": 503}})
