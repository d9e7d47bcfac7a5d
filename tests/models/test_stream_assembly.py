"""Every shape of a stream means one reply, however its text is cut."""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_shapes import SHAPES, TOOLS, Expected, Shape, asks, call, delta

from agentor.engine.assembly import Assembly, assemble
from agentor.engine.reply import ReplyReader
from agentor.engine.responses import ModelResponse

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def own_ids() -> Any:
    numbers = itertools.count()
    return lambda: f"ours{next(numbers)}"


def put_together(chunks: tuple[dict[str, Any], ...]) -> ModelResponse:
    return assemble(chunks, TOOLS, own_ids())


def agrees(response: ModelResponse, expected: Expected) -> None:
    calls = [
        (None if "ours" in each.id else each.id, each.name, each.arguments)
        for each in response.tool_calls
    ]
    assert calls == list(expected.calls)
    assert (response.content or None) == expected.content
    assert response.finish_reason == expected.finish_reason
    assert response.reasoning == expected.reasoning
    assert response.usage.total_tokens == expected.tokens
    assert response.extra == expected.extra


@every_shape
def test_a_shape_means_its_one_reply(shape: Shape) -> None:
    agrees(put_together(shape.chunks), shape.expected)


def test_the_table_has_shapes_enough_and_no_name_twice() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES) > 80


@every_shape
def test_a_shape_means_the_same_with_every_piece_of_text_cut_at_every_place(shape: Shape) -> None:
    for chunks in recut(shape):
        agrees(put_together(chunks), shape.expected)


@every_shape
def test_what_is_shown_on_the_way_is_what_is_there_at_the_end(shape: Shape) -> None:
    for chunks in [shape.chunks, *recut(shape)]:
        assembly = Assembly(TOOLS, own_ids())
        pieces = [*map(assembly.add, chunks), assembly.end()]
        shown = [piece for piece in pieces if piece is not None]
        response = assembly.response()
        assert "".join(piece.delta or "" for piece in shown) == (response.content or "")
        if not response.extra.get("reasoning_details"):
            thought = "".join(piece.reasoning_delta or "" for piece in shown)
            assert thought == (response.reasoning or "")


@every_shape
def test_assembling_does_not_change_the_chunks(shape: Shape) -> None:
    before = copy.deepcopy(shape.chunks)
    put_together(shape.chunks)
    assert shape.chunks == before


@every_shape
def test_a_shape_means_the_same_with_its_bytes_cut_at_every_place(shape: Shape) -> None:
    for ascii_only in (True, False):  # escapes to cut through, and characters of several bytes
        if (not ascii_only and "half a letter" in shape.name) or "outside" in shape.name:
            continue  # halves can be written as escapes only
        body = stream_of(shape.chunks, ascii_only)
        whole = read(body)
        for place in range(1, len(body)):
            assert read(body[:place], body[place:]) == whole
        assert read(*(body[i : i + 1] for i in range(len(body)))) == whole


def stream_of(chunks: tuple[dict[str, Any], ...], ascii_only: bool) -> bytes:
    lines = [f"data: {json.dumps(chunk, ensure_ascii=ascii_only)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def read(*pieces: bytes) -> tuple[Any, ...]:
    """What a reader makes of a body in these pieces, own ids aside."""
    reader = ReplyReader(TOOLS)
    shown = [chunk for piece in pieces for chunk in reader.feed(piece)] + reader.end()
    response = reader._assembly.response()
    named = [(c.name, c.arguments, c.extra) for c in response.tool_calls]
    text = "".join(chunk.delta or "" for chunk in shown)
    return text, response.content, named, response.usage, response.extra, reader.finished


def recut(shape: Shape) -> Iterator[tuple[dict[str, Any], ...]]:
    """The same stream, with one of its texts in two chunks instead of one, for every place in it."""
    chunks = shape.chunks
    for number, chunk in enumerate(chunks if shape.splittable else ()):
        for path, text in list(texts_of(chunk)):
            for place in range(1, units(text)):
                first, second = halves(chunk, path, text, place)
                yield (*chunks[:number], first, second, *chunks[number + 1 :])


def texts_of(chunk: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Where text that flows stands in a chunk."""
    for number, choice in enumerate(chunk.get("choices") or ()):
        fields = choice.get("delta") or {}
        for name in ("content", "reasoning_content", "refusal"):
            if isinstance(fields.get(name), str):
                yield ("choices", number, "delta", name), fields[name]
        for place, piece in enumerate(fields.get("tool_calls") or ()):
            if isinstance(piece["function"].get("arguments"), str):
                path = ("choices", number, "delta", "tool_calls", place, "function", "arguments")
                yield path, piece["function"]["arguments"]


def halves(
    chunk: dict[str, Any], path: tuple[Any, ...], text: str, place: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two chunks that say together what the chunk says; what is not cut comes with the first one.

    A call that is cut is followed at once by its other half: the calls behind it come with the second chunk.
    """
    head, tail = text_cut(text, place)
    first, second = copy.deepcopy(chunk), copy.deepcopy(chunk)
    first["choices"][path[1]]["finish_reason"] = None
    fields, rest = first["choices"][path[1]]["delta"], second["choices"][path[1]]["delta"]
    if path[3] == "tool_calls":
        at = path[4]
        fields["tool_calls"] = fields["tool_calls"][: at + 1]
        fields["tool_calls"][at]["function"]["arguments"] = head
        keys = {k: v for k, v in rest["tool_calls"][at].items() if k in ("id", "index")}
        rest["tool_calls"] = [
            {**keys, "function": {"arguments": tail}},
            *rest["tool_calls"][at + 1 :],
        ]
        second["choices"][path[1]]["delta"] = {"tool_calls": rest["tool_calls"]}
    else:
        fields[path[3]] = head
        fields.pop("tool_calls", None)
        kept = {k: v for k, v in rest.items() if k == "tool_calls"}
        second["choices"][path[1]]["delta"] = {path[3]: tail, **kept}
    second["choices"] = second["choices"][path[1] : path[1] + 1]
    second.pop("usage", None)
    return first, second


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def text_cut(text: str, place: int) -> tuple[str, str]:
    """Cut as JSON escapes may cut: between the halves of a surrogate pair, too."""
    raw = text.encode("utf-16-le", "surrogatepass")
    head, tail = raw[: 2 * place], raw[2 * place :]
    return head.decode("utf-16-le", "surrogatepass"), tail.decode("utf-16-le", "surrogatepass")


def test_unknown_fields_of_a_call_come_through_in_the_call() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    pieces = (
        asks(call("", "now", index=0, id="a", extra_content=signed)),
        asks(call("{}", index=0, provider_specific_fields={"x": 1})),
        delta("tool_calls"),
    )
    (made,) = put_together(pieces).tool_calls
    assert made.extra == {"extra_content": signed, "provider_specific_fields": {"x": 1}}


def test_a_whole_message_keeps_its_unknown_fields_to_the_letter() -> None:
    fields = {
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "a", "signature": None},
            {"type": "reasoning.text", "index": 0, "text": "b", "tags": []},
        ],
        "mood": {"valence": 0.5, "words": ["calm", "calm"]},
    }
    response = put_together(({"choices": [{"message": {"content": "Hi", **fields}}]},))
    assert response.extra == fields


def test_the_readable_part_of_reasoning_details_is_the_reasoning() -> None:
    details = [{"type": "reasoning.summary", "summary": "So"}, {"type": "x", "data": "c2ln"}]
    assert put_together((delta(reasoning_details=details),)).reasoning == "So"


@pytest.mark.parametrize(
    ("counts", "cached", "reasoning"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4}}, 4, 0),
        ({"prompt_cache_hit_tokens": 4}, 4, 0),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, 0, 3),
        ({"output_tokens_details": {"reasoning_tokens": 3}, "prompt_tokens_details": None}, 0, 3),
        ({"completion_tokens": True, "total_tokens": float("inf"), "cached_tokens": "4"}, 0, 0),
    ],
)
def test_token_counts_are_found_under_the_names_servers_use(
    counts: dict[str, Any], cached: int, reasoning: int
) -> None:
    usage = put_together(({"usage": {"prompt_tokens": 10, "completion_tokens": 5} | counts},)).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.reasoning_tokens) == (
        10,
        cached,
        reasoning,
    )
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
pieces_of_calls = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, None, "0", -1, 1.5]),
        "id": st.sampled_from(["a", "b", "", None, 3]),
        "extra_content": json_values,
        "function": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["get", "_weather", "", None, 7]),
                "arguments": st.sampled_from(["{", "}", "{}", '"', "\\", "x", "", None, {}, [1]])
                | json_values,
            },
        ),
    },
)
any_deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": json_values,
        "reasoning_content": json_values,
        "tool_calls": st.none() | st.lists(pieces_of_calls | json_values, max_size=3),
        "function_call": json_values,
        "unknown": json_values,
    },
)
any_chunks = st.lists(
    st.builds(
        lambda given, reason: {"choices": [{"delta": given, "finish_reason": reason}]},
        any_deltas,
        st.sampled_from([None, "stop", "", 3]),
    )
    | st.dictionaries(st.sampled_from(["choices", "usage", "x_groq"]), json_values),
    max_size=8,
)


@given(any_chunks)
def test_whatever_comes_the_reply_is_clean_and_its_ids_differ(chunks: list[dict[str, Any]]) -> None:
    response = assemble(chunks, TOOLS)
    ids = [made.id for made in response.tool_calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    told = [[made.name, made.arguments, made.extra] for made in response.tool_calls]
    text = [response.content, response.reasoning, response.extra, told]
    json.dumps(text, allow_nan=False, ensure_ascii=False).encode()


def seconds(chunks: list[dict[str, Any]]) -> float:
    begin = time.process_time()
    assemble(chunks, TOOLS)
    return time.process_time() - begin


@pytest.mark.parametrize(
    "style",
    [
        {"index": 0},
        {"id": "a", "index": 0, "name": "get_weather"},
        {"name": "get_weather"},
        {},
    ],
    ids=str,
)
def test_ten_thousand_deltas_into_one_call_cost_what_they_are_long(style: dict[str, Any]) -> None:
    def pieces(count: int) -> list[dict[str, Any]]:
        opened = asks(call('{"text": "', "get_weather", index=0, id="a"))
        return [
            opened,
            *[asks(call("x" * 100, **style)) for _ in range(count)],
            asks(call('"}', **style)),
        ]

    (made,) = assemble(pieces(10_000), TOOLS).tool_calls
    assert len(json.loads(made.arguments)["text"]) == 1_000_000
    short, long = min(seconds(pieces(2_000)) for _ in range(3)), seconds(pieces(20_000))
    assert long < 40 * short + 0.1  # ten times the work; a square would be a hundred times


def test_a_megabyte_of_text_in_fifty_thousand_deltas_costs_less_than_a_second() -> None:
    body = stream_of((*[delta(content="x" * 20)] * 50_000, delta("stop")), True)
    pieces = [body[i : i + 4096] for i in range(0, len(body), 4096)]
    begin = time.process_time()
    reader = ReplyReader()
    shown = sum(len(chunk.delta or "") for piece in pieces for chunk in reader.feed(piece))
    assert reader.response().content == "x" * 1_000_000
    assert shown == 1_000_000
    assert time.process_time() - begin < 1.0
