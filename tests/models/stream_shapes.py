"""The shapes that streamed replies come in, each with the one reply that it means.

A shape is the deltas of a stream as servers really send them, most of them wrong in some way. `Expected.calls`
are (id, name, arguments); an id of None stands for one of our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TOOLS = ("get_weather", "get_time", "now", "get")
LONDON = '{"city": "London"}'
PARIS = '{"city": "Paris"}'


@dataclass(frozen=True)
class Expected:
    content: str | None = None
    calls: tuple[tuple[str | None, str, str], ...] = ()
    finish_reason: str | None = "tool_calls"
    reasoning: str | None = None
    tokens: int = 0  # total
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    name: str
    chunks: tuple[dict[str, Any], ...]
    expected: Expected
    splittable: bool = True  # whether its pieces of text mean the same in smaller pieces


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(arguments: Any = None, name: Any = None, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**fields, "function": {key: v for key, v in function.items() if v is not None}}


def asks(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return delta(tool_calls=list(calls), **fields)


STOP = delta("stop")
TOOL_CALLS = delta("tool_calls")
ROLE = delta(role="assistant", content="")
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
ONE = ((("a", "get_weather", LONDON)),)
OURS = ((None, "get_weather", LONDON),)
BOTH = (("a", "get_weather", LONDON), ("b", "get_weather", PARIS))
OURS_BOTH = ((None, "get_weather", LONDON), (None, "get_weather", PARIS))


def _text() -> Iterator[Shape]:
    said = Expected("Hello there", finish_reason="stop")
    words = (delta(content="Hello"), delta(content=" there"))
    yield Shape("text as it should come", (ROLE, *words, STOP), said)
    yield Shape("no role at all", (*words, STOP), said)
    yield Shape("the role on every chunk", (ROLE, *words, ROLE, STOP), said)
    yield Shape("finish on the last words", (words[0], delta("stop", content=" there")), said)
    yield Shape(
        "null and empty text between", (*words, delta(content=None), delta(content=""), STOP), said
    )
    yield Shape(
        "text as a list of parts",
        (delta(content=[{"type": "text", "text": "Hello"}]), words[1], STOP),
        said,
    )
    yield Shape("choices missing on a chunk", ({"id": "x"}, *words, {}, STOP), said)
    yield Shape("choices null or empty", ({"choices": None}, *words, {"choices": []}, STOP), said)
    yield Shape(
        "delta null",
        ({"choices": [{"delta": None}]}, *words, {"choices": [{"finish_reason": "stop"}]}),
        said,
    )
    yield Shape(
        "no index on the choice",
        (*({"choices": [{"delta": {"content": text}}]} for text in ("Hello", " there")), STOP),
        said,
    )
    yield Shape(
        "two choices, the first one is followed",
        (
            {
                "choices": [
                    {"index": 0, "delta": {"content": "Hello"}},
                    {"index": 1, "delta": {"content": "Other"}},
                ]
            },
            {"choices": [{"index": 1, "delta": {"content": "wise"}, "finish_reason": "length"}]},
            words[1],
            STOP,
        ),
        said,
    )
    yield Shape(
        "empty finish reasons on the way",
        (delta("", content="Hello"), delta("", content=" there"), STOP),
        said,
    )
    yield Shape(
        "a finish reason nobody knows",
        (*words, delta("eos_token")),
        Expected("Hello there", finish_reason="eos_token"),
    )
    yield Shape("no finish reason", words, Expected("Hello there", finish_reason=None))
    yield Shape(
        "a cut that a later reason does not undo",
        (*words, delta("length"), STOP),
        Expected("Hello there", finish_reason="length"),
    )
    yield Shape(
        "nothing but a finish", (delta(role="assistant"), STOP), Expected(finish_reason="stop")
    )
    yield Shape(
        "a whole message in place of deltas",
        (
            {
                "choices": [
                    {
                        "message": {"role": "assistant", "content": "Hello there"},
                        "finish_reason": "stop",
                    }
                ]
            },
        ),
        said,
        splittable=False,
    )
    yield Shape(
        "the whole message once more at the end",
        (*words, {"choices": [{"message": {"content": "Hello there"}, "finish_reason": "stop"}]}),
        said,
    )
    yield Shape(
        "letters outside the basic plane",
        (delta(content="Wetter: \ud83c"), delta(content="\udf1e é"), STOP),
        Expected("Wetter: \U0001f31e é", finish_reason="stop"),
    )
    yield Shape(
        "half a letter that never gets its other half",
        (delta(content="a\ud83c"), delta(content="b"), STOP),
        Expected("a\ufffdb", finish_reason="stop"),
    )
    yield Shape(
        "text beside a call",
        (
            delta(content="Let me see."),
            asks(call(LONDON, "get_weather", index=0, id="a")),
            TOOL_CALLS,
        ),
        Expected("Let me see.", ONE),
    )


def _usage() -> Iterator[Shape]:
    word = delta(content="Hi")
    said = Expected("Hi", finish_reason="stop", tokens=15)
    yield Shape("usage on a chunk of its own", (word, STOP, {"choices": [], "usage": USAGE}), said)
    yield Shape("usage without choices", (word, STOP, {"usage": USAGE}), said)
    yield Shape(
        "usage that grows on every chunk",
        ({**word, "usage": {**USAGE, "total_tokens": 11}}, {**STOP, "usage": USAGE}),
        said,
    )
    yield Shape(
        "usage null and zero afterwards",
        (
            {**word, "usage": USAGE},
            {**STOP, "usage": None},
            {
                "choices": [],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            },
        ),
        said,
    )
    yield Shape(
        "usage inside the choice",
        (word, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}),
        said,
    )
    yield Shape("usage under a vendor's name", (word, {**STOP, "x_groq": {"usage": USAGE}}), said)
    yield Shape(
        "usage under other names and without a sum",
        (word, STOP, {"usage": {"input_tokens": 10, "output_tokens": 5}}),
        said,
    )


def _one_call() -> Iterator[Shape]:
    one = Expected(calls=ONE)
    first, second = '{"city": ', '"London"}'
    opened = asks(call("", "get_weather", index=0, id="a", type="function"))
    yield Shape(
        "a call as it should come",
        (opened, asks(call(first, index=0)), asks(call(second, index=0)), TOOL_CALLS),
        one,
    )
    yield Shape(
        "a whole call in one delta",
        (asks(call(LONDON, "get_weather", index=0, id="a")), TOOL_CALLS),
        one,
    )
    yield Shape(
        "no index", (asks(call(first, "get_weather", id="a")), asks(call(second)), TOOL_CALLS), one
    )
    yield Shape(
        "index only on the first delta",
        (asks(call(first, "get_weather", id="a", index=0)), asks(call(second)), TOOL_CALLS),
        one,
    )
    yield Shape(
        "index only after the first delta",
        (asks(call(first, "get_weather", id="a")), asks(call(second, index=0)), TOOL_CALLS),
        one,
    )
    yield Shape(
        "id on every chunk",
        (
            asks(call(first, "get_weather", id="a", index=0)),
            asks(call(second, id="a", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "id on every chunk and no index",
        (asks(call(first, "get_weather", id="a")), asks(call(second, id="a")), TOOL_CALLS),
        one,
    )
    yield Shape(
        "a new id on every chunk",
        (
            asks(call(first, "get_weather", id="a", index=0)),
            asks(call(second, id="b", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "an empty id on every later chunk",
        (
            asks(call(first, "get_weather", id="a", index=0)),
            asks(call(second, id="", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "the id comes late",
        (
            asks(call(first, "get_weather", index=0)),
            asks(call(second, id="a", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "an id that is a number",
        (asks(call(LONDON, "get_weather", id=7, index=0)), TOOL_CALLS),
        Expected(calls=(("7", "get_weather", LONDON),)),
    )
    yield Shape(
        "no id",
        (asks(call(first, "get_weather", index=0)), asks(call(second, index=0)), TOOL_CALLS),
        Expected(calls=OURS),
    )
    yield Shape(
        "neither id nor index",
        (asks(call(first, "get_weather")), asks(call(second)), TOOL_CALLS),
        Expected(calls=OURS),
    )
    yield Shape(
        "the name on every chunk",
        (
            asks(call(first, "get_weather", id="a", index=0)),
            asks(call(second, "get_weather", id="a", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "the name once more after the arguments, without an id",
        (
            asks(call(LONDON, "get_weather", id="a", index=0)),
            asks(call("", "get_weather", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "an empty or null name later",
        (
            opened,
            asks({"index": 0, "function": {"name": "", "arguments": first}}),
            asks({"index": 0, "function": {"name": None, "arguments": second}}),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "the name in pieces",
        (
            asks(call("", "get_", id="a", index=0)),
            asks(call(None, "wea", index=0)),
            asks(call(LONDON, "ther", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "the name so far on every chunk",
        (
            asks(call("", "get_wea", id="a", index=0)),
            asks(call(LONDON, "get_weather", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "a name in pieces that no tool has",
        (asks(call("", "fly", id="a", index=0)), asks(call("{}", "_home", index=0)), TOOL_CALLS),
        Expected(calls=(("a", "fly", "{}"),)),
    )
    yield Shape(
        "the name after the arguments",
        (asks(call(LONDON, index=0, id="a")), asks(call(None, "get_weather", index=0)), TOOL_CALLS),
        one,
    )
    yield Shape(
        "no function around name and arguments",
        (asks({"id": "a", "name": "get_weather", "arguments": LONDON}), TOOL_CALLS),
        one,
        splittable=False,
    )
    yield Shape(
        "arguments null at first",
        (
            asks({"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": None}}),
            asks(call(LONDON, index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "no arguments at all",
        (asks(call(None, "now", index=0, id="a")), TOOL_CALLS),
        Expected(calls=(("a", "now", ""),)),
    )
    yield Shape(
        "arguments as an object",
        (asks(call({"city": "London"}, "get_weather", id="a", index=0)), TOOL_CALLS),
        Expected(calls=(("a", "get_weather", '{"city":"London"}'),)),
    )
    yield Shape(
        "arguments as an object, twice",
        (
            asks(call({"city": "London"}, "get_weather", id="a", index=0)),
            asks(call({"city": "London"}, id="a", index=0)),
            TOOL_CALLS,
        ),
        Expected(calls=(("a", "get_weather", '{"city":"London"}'),)),
    )
    yield Shape(
        "arguments as a list",
        (asks(call([1], "get_weather", id="a", index=0)), TOOL_CALLS),
        Expected(calls=(("a", "get_weather", "[1]"),)),
    )
    yield Shape(
        "all arguments once more at the end",
        (
            opened,
            asks(call(first, index=0)),
            asks(call(second, index=0)),
            asks(call(LONDON, index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "the whole call once more at the end",
        (
            opened,
            asks(call(LONDON, index=0)),
            asks(call(LONDON, "get_weather", index=0, id="a")),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "the whole call once more, without its id",
        (
            opened,
            asks(call(LONDON, index=0)),
            asks(call(LONDON, "get_weather", index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "an empty object ahead of the arguments",
        (
            asks(call("{}", "get_weather", index=0, id="a")),
            asks(call(first, index=0)),
            asks(call(second, index=0)),
            TOOL_CALLS,
        ),
        one,
    )
    yield Shape(
        "escapes and braces in the arguments",
        (
            asks(call('{"city": "}\\"{\\\\', "get_weather", index=0, id="a")),
            asks(call('\\u00e9\\n"}', index=0)),
            TOOL_CALLS,
        ),
        Expected(calls=(("a", "get_weather", '{"city": "}\\"{\\\\\\u00e9\\n"}'),)),
    )
    yield Shape(
        "broken arguments stay as they came",
        (asks(call('{"city": "Lon', "get_weather", index=0, id="a")), TOOL_CALLS),
        Expected(calls=(("a", "get_weather", '{"city": "Lon'),)),
    )
    yield Shape(
        "calls that finish with stop",
        (asks(call(LONDON, "get_weather", index=0, id="a")), STOP),
        Expected(calls=ONE, finish_reason="stop"),
    )
    yield Shape(
        "a call without a finish",
        (asks(call(LONDON, "get_weather", index=0, id="a")),),
        Expected(calls=ONE, finish_reason=None),
    )
    yield Shape(
        "tool_calls null, then an object in place of a list",
        (
            delta(content=None, tool_calls=None),
            delta(tool_calls=call(LONDON, "get_weather", index=0, id="a")),
            TOOL_CALLS,
        ),
        one,
        splittable=False,
    )
    yield Shape(
        "a function_call of the old kind",
        (
            delta(function_call={"name": "get_weather", "arguments": first}),
            delta(function_call={"arguments": second}),
            delta("function_call"),
        ),
        Expected(calls=OURS, finish_reason="function_call"),
        splittable=False,
    )
    yield Shape(
        "fields only the provider knows, on the call",
        (
            asks(
                call(
                    LONDON,
                    "get_weather",
                    index=0,
                    id="a",
                    extra_content={"google": {"thought_signature": "c2ln"}},
                )
            ),
            TOOL_CALLS,
        ),
        one,
    )


def _several_calls() -> Iterator[Shape]:
    both = Expected(calls=BOTH)
    a, b = call("", "get_weather", index=0, id="a"), call("", "get_weather", index=1, id="b")
    yield Shape(
        "two calls, one after the other",
        (asks(a), asks(call(LONDON, index=0)), asks(b), asks(call(PARIS, index=1)), TOOL_CALLS),
        both,
    )
    yield Shape(
        "two calls interleaved",
        (
            asks(a, b),
            asks(call('{"city": ', index=0), call('{"city": ', index=1)),
            asks(call('"Paris"}', index=1)),
            asks(call('"London"}', index=0)),
            TOOL_CALLS,
        ),
        both,
    )
    yield Shape(
        "two calls interleaved by id",
        (
            asks(call("", "get_weather", id="a"), call("", "get_weather", id="b")),
            asks(call(LONDON, id="a"), call(PARIS, id="b")),
            TOOL_CALLS,
        ),
        both,
    )
    yield Shape(
        "the index is always 0",
        (
            asks(a),
            asks(call(LONDON, index=0)),
            asks(call("", "get_weather", index=0, id="b")),
            asks(call(PARIS, index=0)),
            TOOL_CALLS,
        ),
        both,
    )
    yield Shape(
        "the index is always 0 and the first call never got arguments",
        (
            asks(call("", "now", index=0, id="a")),
            asks(call(PARIS, "get_weather", index=0, id="b")),
            TOOL_CALLS,
        ),
        Expected(calls=(("a", "now", ""), ("b", "get_weather", PARIS))),
    )
    yield Shape(
        "the index is always 0 and the name comes late",
        (
            asks(a),
            asks(call(LONDON, index=0)),
            asks(call("", index=0, id="b")),
            asks(call("", "get_weather", index=0)),
            asks(call(PARIS, index=0)),
            TOOL_CALLS,
        ),
        both,
    )
    yield Shape(
        "whole calls at index 0 without ids",
        (
            asks(call(LONDON, "get_weather", index=0)),
            asks(call(PARIS, "get_weather", index=0)),
            TOOL_CALLS,
        ),
        Expected(calls=OURS_BOTH),
    )
    yield Shape(
        "whole calls without ids and index",
        (asks(call(LONDON, "get_weather"), call(PARIS, "get_weather")), TOOL_CALLS),
        Expected(calls=OURS_BOTH),
    )
    yield Shape(
        "calls of two tools without ids and index, in pieces",
        (
            asks(call("{", "now")),
            asks(call("}")),
            asks(call(None, "get_weather")),
            asks(call(PARIS)),
            TOOL_CALLS,
        ),
        Expected(calls=((None, "now", "{}"), (None, "get_weather", PARIS))),
    )
    yield Shape(
        "indices without ids",
        (
            asks(call("", "get_weather", index=0), call("", "get_weather", index=1)),
            asks(call(PARIS, index=1), call(LONDON, index=0)),
            TOOL_CALLS,
        ),
        Expected(calls=OURS_BOTH),
    )
    yield Shape(
        "indices that do not begin at 0",
        (
            asks(call(LONDON, "get_weather", index=3, id="a")),
            asks(call(PARIS, "get_weather", index=7, id="b")),
            TOOL_CALLS,
        ),
        both,
    )
    yield Shape(
        "one id for two calls at two indices",
        (
            asks(call("", "get_weather", index=0, id="a")),
            asks(call(LONDON, index=0, id="a")),
            asks(call("", "get_weather", index=1, id="a")),
            asks(call(PARIS, index=1, id="a")),
            TOOL_CALLS,
        ),
        Expected(calls=(("a", "get_weather", LONDON), (None, "get_weather", PARIS))),
    )
    yield Shape(
        "a whole message whose two calls share id and index",
        (
            {
                "choices": [
                    {
                        "finish_reason": "tool_calls",
                        "message": {
                            "tool_calls": [
                                call(LONDON, "get_weather", index=0, id="a"),
                                call(LONDON, "get_weather", index=0, id="a"),
                            ]
                        },
                    }
                ]
            },
        ),
        Expected(calls=(("a", "get_weather", LONDON), (None, "get_weather", LONDON))),
        splittable=False,
    )
    yield Shape(
        "an entry that is no object",
        (
            {
                "choices": [
                    {"delta": {"tool_calls": [None, 3, call(LONDON, "get_weather", id="a")]}}
                ]
            },
            TOOL_CALLS,
        ),
        Expected(calls=ONE),
        splittable=False,
    )


def _reasoning() -> Iterator[Shape]:
    end = (delta(content="Hi"), STOP)

    def thought(**extra: Any) -> Expected:
        return Expected("Hi", finish_reason="stop", reasoning="Hm, so", extra=extra)

    for name in ("reasoning_content", "reasoning", "thinking"):
        yield Shape(
            f"reasoning under {name}",
            (delta(**{name: "Hm,"}), delta(**{name: " so"}), *end),
            thought(**{name: "Hm, so"}),
        )
    yield Shape(
        "the same reasoning under two names",
        (
            delta(reasoning="Hm,", reasoning_content="Hm,"),
            delta(reasoning=" so", reasoning_content=" so"),
            *end,
        ),
        thought(reasoning="Hm, so", reasoning_content="Hm, so"),
    )
    details = [{"type": "reasoning.text", "index": 0, "text": "Hm,", "format": "v1"}]
    more = [{"type": "reasoning.text", "index": 0, "text": " so", "format": "v1"}]
    sealed = [{"type": "reasoning.encrypted", "index": 1, "data": "c2ln", "id": None}]
    yield Shape(
        "reasoning in details",
        (
            delta(reasoning_details=details),
            delta(reasoning_details=more),
            delta(reasoning_details=sealed),
            *end,
        ),
        thought(
            reasoning_details=[
                {"type": "reasoning.text", "index": 0, "text": "Hm, so", "format": "v1"},
                *sealed,
            ]
        ),
    )
    yield Shape(
        "reasoning as parts of the content",
        (
            delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, so"}]}]),
            *end,
        ),
        thought(),
    )
    yield Shape(
        "an empty reasoning is kept",
        (delta(reasoning_content=""), *end),
        Expected("Hi", finish_reason="stop", extra={"reasoning_content": ""}),
    )
    yield Shape(
        "a refusal",
        (delta(refusal="I "), delta(refusal="cannot."), STOP),
        Expected(finish_reason="stop", extra={"refusal": "I cannot."}),
    )
    yield Shape(
        "annotations and a field nobody knows",
        (
            delta(annotations=[{"type": "url", "url": "u1"}], mood="calm"),
            delta(annotations=[{"type": "url", "url": "u2"}], mood="calm"),
            *end,
        ),
        Expected(
            "Hi",
            finish_reason="stop",
            extra={
                "annotations": [{"type": "url", "url": "u1"}, {"type": "url", "url": "u2"}],
                "mood": "calm",
            },
        ),
    )
    yield Shape(
        "audio in pieces",
        (
            delta(audio={"id": "au", "transcript": "He"}),
            delta(audio={"transcript": "llo"}),
            delta(audio={"expires_at": 7}),
            STOP,
        ),
        Expected(
            finish_reason="stop",
            extra={"audio": {"id": "au", "transcript": "Hello", "expires_at": 7}},
        ),
    )


SHAPES = (*_text(), *_usage(), *_one_call(), *_several_calls(), *_reasoning())
