"""Whatever bytes come from outside: a clear error or a sound value, never a crash, never a hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.readers import TARGETS

CORPUS = Path(__file__).resolve().parent / "corpus"
FINDS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["{}", '{"city": "x"}', "stop", "length", "c1", "user", "tool", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def objects(known: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of the known fields, each of its own kind or of any."""
    return st.fixed_dictionaries({}, optional={name: kind | JSON for name, kind in known.items()})


TYPES = st.sampled_from(
    [
        "run_start",
        "generation",
        "tool_call",
        "tool_result",
        "message",
        "run_end",
        "fork",
        "approval",
        "cancel",
        "?",
    ]
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "function"])
FUNCTION = objects({"name": st.sampled_from(["get_weather", "", "no"]), "arguments": st.text()})
CALL = objects(
    {"id": st.sampled_from(["c1", ""]), "index": st.integers(-1, 2), "function": FUNCTION}
)
MESSAGE = objects(
    {
        "role": ROLES,
        "content": st.text(),
        "tool_calls": st.lists(CALL, max_size=2),
        "tool_call_id": st.just("c1"),
    }
)
EVENT = objects(
    {
        "type": TYPES,
        "seq": st.integers(0, 4),
        "text": st.text(),
        "messages": st.lists(MESSAGE, max_size=3),
        "calls": st.lists(CALL, max_size=2),
        "kept": st.integers(-1, 4),
        "call_id": st.just("c1"),
        "name": st.just("get_weather"),
        "error": st.text(),
        "result": st.text(),
        "usage": objects({"input_tokens": st.integers(), "total_tokens": st.integers()}),
        "finish_reason": st.just("length"),
        "provider_fields": JSON,
        "rewound": st.lists(JSON, max_size=2),
        "limits": JSON,
        "status": st.sampled_from(["completed", "failed", "approved"]),
        "args": JSON,
    }
)
DELTA = objects(
    {
        "content": st.text(),
        "reasoning_content": st.text(),
        "tool_calls": st.lists(CALL, max_size=2),
        "function_call": FUNCTION,
        "refusal": st.text(),
    }
)
CHOICE = objects(
    {
        "index": st.integers(0, 1),
        "delta": DELTA,
        "message": DELTA,
        "finish_reason": st.sampled_from(["stop", "tool_calls", "length"]),
    }
)
BODY = objects({"choices": st.lists(CHOICE, max_size=2), "usage": JSON, "error": JSON})


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode()


def cut(lines: list[bytes]) -> st.SearchStrategy[bytes]:
    """The lines, whole or torn somewhere, with a byte changed or not."""
    whole = b"".join(lines)

    def torn(place: int, byte: int | None) -> bytes:
        kept = bytearray(whole)
        if byte is not None and kept:
            kept[place % len(kept)] = byte
            return bytes(kept)
        return whole[:place]

    places = st.integers(0, max(len(whole), 1))
    return st.just(whole) | st.builds(torn, places, st.none() | st.integers(0, 255))


EVENT_LINES = st.lists(EVENT.map(lambda value: text_of(value) + b"\n"), max_size=5)
SSE_LINES = st.lists(
    BODY.map(lambda value: b"data: " + text_of(value) + b"\n\n")
    | st.sampled_from(
        [b"data: [DONE]\n\n", b": ping\r\n", b"event: error\n", b"data: {\r", b"\xef\xbb\xbf"]
    ),
    max_size=6,
)
INPUTS: dict[str, st.SearchStrategy[bytes]] = {
    "event": st.binary(max_size=60) | EVENT.map(text_of).flatmap(lambda text: cut([text])),
    "event_dict": JSON.map(text_of) | EVENT.map(text_of),
    "log": st.binary(max_size=60) | EVENT_LINES.flatmap(cut),
    "server_events": st.binary(max_size=60) | SSE_LINES.flatmap(cut),
    "reply": st.binary(max_size=60) | SSE_LINES.flatmap(cut) | BODY.map(text_of),
    "arguments": st.binary(max_size=60) | JSON.map(text_of).flatmap(lambda text: cut([text])),
    "database": st.binary(min_size=3, max_size=30),
    "rows": st.binary(min_size=3, max_size=30),
}
EXAMPLES = {"database": 60, "rows": 60, "log": 80, "reply": 300}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_clear_error_or_a_sound_value(name: str) -> None:
    @settings(
        max_examples=EXAMPLES.get(name, 150),
        deadline=5_000,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(INPUTS[name])
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("path", FINDS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_past_finds_stay_mended(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_reader_has_inputs_and_every_corpus_a_reader() -> None:
    assert set(INPUTS) == set(TARGETS)
    assert {path.parent.name for path in FINDS} <= set(TARGETS)
    assert FINDS


BIG: dict[str, list[bytes]] = {
    "event": [
        b'{"type":' * 100_000,
        b'{"type": "x", "seq": ' + b"9" * 100_000 + b"}",
        b"[" * 1_000_000,
    ],
    "log": [b"\n" * 1_000_000, b'{"type":"message"}\n' * 20_000, b"{" * 1_000_000],
    "server_events": [b"data: x\n" * 50_000, b"\r" * 100_000, b"data" * 100_000],
    "reply": [
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"a"}}]}}]}\n\n'
        * 5_000,
        b"{" * 1_000_000,
        b"data: " + b"[" * 1_000_000,
    ],
    "arguments": [b"{" * 1_000_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"9" * 1_000_000],
}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, each in BIG.items() for n in range(len(each))]
)
def test_big_input_is_read_in_time_that_grows_no_faster_than_it(name: str, number: int) -> None:
    TARGETS[name](BIG[name][number])
