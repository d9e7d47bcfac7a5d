"""Server-sent events are the same events however lines end and however bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine.sse import EventDecoder, ServerEvent


def decode(*pieces: bytes) -> list[ServerEvent]:
    decoder = EventDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.close()


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        (b"data:a\n\ndata:  b\n\n", [("", "a"), ("", " b")]),
        (b"event: error\ndata: a\n\n", [("error", "a")]),
        (b"data: a\nevent: late\n\ndata: b\n\n", [("late", "a"), ("", "b")]),
        (b"data: a\ndata: b\n\n", [("", "a\nb")]),
        (b": ping\n\n:\n\ndata: a\n\n", [("", "a")]),
        (b"id: 1\nretry: 5\nunknown: x\ndata: a\n\n", [("", "a")]),
        (b"data\n\n", [("", "")]),
        (b"\n\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [("", "a")]),
        (b"data: a", [("", "a")]),
        (b"data: a\n", [("", "a")]),
        (b"event: ping\n\n", [("ping", "")]),
        ("data: é\u2028\x85\x0b\n\n".encode(), [("", "é\u2028\x85\x0b")]),
        (b"data: \xff\n\n", [("", "\ufffd")]),
        (b"", []),
    ],
)
def test_a_body_holds_these_events(body: bytes, events: list[tuple[str, str]]) -> None:
    expected = [ServerEvent(*event) for event in events]
    for lines in (body, body.replace(b"\n", b"\r\n"), body.replace(b"\n", b"\r")):
        assert decode(lines) == expected
        for place in range(len(lines)):
            assert decode(lines[:place], lines[place:]) == expected
        assert decode(*(lines[i : i + 1] for i in range(len(lines)))) == expected


line = st.sampled_from(["data: a", "data", "event: x", ":", "id: 4", "", "", "data: é", "x"])
ending = st.sampled_from(["\n", "\r\n", "\r"])


@given(st.lists(st.tuples(line, ending)), st.lists(st.integers(0, 80)))
def test_no_cut_changes_the_events(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    body = "".join(text + end for text, end in lines).encode()
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[i:j] for i, j in itertools.pairwise(places)]
    assert decode(*pieces) == decode(body)
