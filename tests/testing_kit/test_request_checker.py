"""The checker says what is wrong with a request, and says nothing about a right one."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from agentor.testing import check_messages, check_request

Body = dict[str, Any]
Change = Callable[[Body], object]


def call(call_id: str, name: str = "get_weather", arguments: str = '{"city": "London"}') -> Body:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def tool(name: str) -> Body:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"$ref": "#/$defs/Day"}},
        "required": ["city"],
        "$defs": {"Day": {"enum": ["today", "tomorrow"], "type": "string"}},
    }
    return {
        "type": "function",
        "function": {"name": name, "description": "Weather.", "parameters": parameters},
    }


def legal() -> Body:
    """One request with everything in it."""
    strict_schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "inner": {"$ref": "#/$defs/Inner"}},
        "required": ["text", "inner"],
        "additionalProperties": False,
        "$defs": {
            "Inner": {
                "type": "object",
                "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                "required": ["n"],
                "additionalProperties": False,
            }
        },
    }
    return {
        "model": "test-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "tools": [tool("get_weather"), tool("get_time")],
        "tool_choice": {"type": "function", "function": {"name": "get_time"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Answer", "strict": True, "schema": strict_schema},
        },
        "messages": [
            {"role": "system", "content": "Be brief. 😀"},
            {"role": "user", "content": "London and Paris?"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "Two cities.",
                "tool_calls": [call("a"), call("b", arguments="{}")],
            },
            {"role": "tool", "tool_call_id": "a", "content": "rain"},
            {"role": "tool", "tool_call_id": "b", "content": ""},
            {"role": "assistant", "content": "Rain.", "refusal": None, "annotations": []},
            {"role": "user", "name": "ann", "content": [{"type": "text", "text": "And Oslo?"}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Let me see."}],
                "tool_calls": [call("c") | {"extra_content": {"google": {}}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "snow"}]},
        ],
    }


def set_at(*path: Any, to: Any) -> Change:
    def change(body: Body) -> None:
        *steps, last = path
        for step in steps:
            body = body[step]
        body[last] = to

    return change


def drop(*path: Any) -> Change:
    def change(body: Body) -> None:
        *steps, last = path
        for step in steps:
            body = body[step]
        del body[last]

    return change


def swap(i: int, j: int) -> Change:
    def change(body: Body) -> None:
        messages = body["messages"]
        messages[i], messages[j] = messages[j], messages[i]

    return change


def insert(index: int, message: Body) -> Change:
    return lambda body: body["messages"].insert(index, message)


FIRST_CALL = ("messages", 2, "tool_calls", 0)
FUNCTION = ("tools", 0, "function")
FORMAT = ("response_format", "json_schema")
USER = {"role": "user", "content": "hello"}
UNANSWERABLE = {"role": "assistant", "content": "", "tool_calls": [call("z")]}
DEEP = '{"a":' * 201 + "1" + "}" * 201

BREACHES: dict[str, tuple[Change, str]] = {
    # the body
    "no model": (drop("model"), "model: missing or empty"),
    "empty model": (set_at("model", to=""), "model: missing or empty"),
    "unknown key": (set_at("kept", to=3), "unknown key 'kept'"),
    "stream not bool": (set_at("stream", to="yes"), "stream: not true or false"),
    "stream_options unstreamed": (set_at("stream", to=False), "stream_options: only allowed"),
    "no messages": (drop("messages"), "messages: missing or empty"),
    "empty messages": (set_at("messages", to=[]), "messages: missing or empty"),
    "NaN": (set_at("temperature", to=math.nan), "temperature: a number that is not finite"),
    "infinity": (set_at("temperature", to=-math.inf), "temperature: a number that is not finite"),
    "giant number": (set_at("seed", to=10**400), "seed: a number that is not finite"),
    "lone surrogate": (
        set_at("messages", 1, "content", to="\ud83d"),
        "messages[1].content: a lone",
    ),
    "lone surrogate in a key": (set_at("metadata", to={"\udc00": ""}), "a key with a lone"),
    "key not a string": (set_at("metadata", to={1: ""}), "key 1 is not a string"),
    "bytes": (set_at("user", to=b"x"), "user: bytes is not a JSON type"),
    # messages
    "message not an object": (set_at("messages", 1, to="hi"), "messages[1]: str is not a message"),
    "unknown role": (set_at("messages", 1, "role", to="human"), "'human' is not one of"),
    "no role": (drop("messages", 1, "role"), "None is not one of"),
    "role is a list": (set_at("messages", 1, "role", to=["user"]), "is not one of"),
    "our own key": (set_at("messages", 1, "turn", to=1), "unknown key 'turn'"),
    "calls of a user": (set_at("messages", 1, "tool_calls", to=[call("q")]), "'tool_calls' in a"),
    "empty name": (set_at("messages", 6, "name", to=""), "messages[6].name: not a non-empty"),
    "second system message": (insert(1, {"role": "developer", "content": "x"}), "2 system or dev"),
    "system message not first": (swap(0, 1), "the system message is not the first"),
    "null user content": (set_at("messages", 1, "content", to=None), "messages[1].content: null"),
    "null system content": (set_at("messages", 0, "content", to=None), "messages[0].content: null"),
    "null tool content": (set_at("messages", 3, "content", to=None), "messages[3].content: null"),
    "content a number": (set_at("messages", 1, "content", to=7), "messages[1].content: 7"),
    "content an object": (set_at("messages", 3, "content", to={"a": 1}), "messages[3].content: {"),
    "empty parts": (set_at("messages", 6, "content", to=[]), "messages[6].content: []"),
    "part without type": (set_at("messages", 6, "content", 0, to={"text": "x"}), "of type None"),
    "part without text": (drop("messages", 6, "content", 0, "text"), "content[0].text: missing"),
    "image from a tool": (
        set_at("messages", 8, "content", 0, to={"type": "image_url", "image_url": {"url": "x"}}),
        "'image_url' is not allowed in a message of role tool",
    ),
    "image without url": (
        set_at(
            "messages", 6, "content", 0, to={"type": "image_url", "image_url": {"detail": "low"}}
        ),
        "image_url.url: missing or empty",
    ),
    "ends with an assistant": (
        lambda body: body["messages"].append({"role": "assistant", "content": "Done."}),
        "may not end with an assistant message",
    ),
    # assistant messages
    "neither content nor calls": (set_at("messages", 5, "content", to=None), "neither content nor"),
    "empty assistant": (set_at("messages", 5, "content", to=""), "neither content nor"),
    "empty list of calls": (set_at("messages", 5, "tool_calls", to=[]), "tool_calls: not a list"),
    "null list of calls": (set_at("messages", 5, "tool_calls", to=None), "tool_calls: not a list"),
    "null beside calls": (set_at("messages", 2, "content", to=None), "null or missing beside"),
    "no content beside calls": (drop("messages", 2, "content"), "null or missing beside"),
    # calls
    "call not an object": (set_at(*FIRST_CALL, to="a"), "str is not a tool call"),
    "empty id": (set_at(*FIRST_CALL, "id", to=""), "tool_calls[0].id: missing or empty"),
    "null id": (set_at(*FIRST_CALL, "id", to=None), "tool_calls[0].id: missing or empty"),
    "no type": (drop(*FIRST_CALL, "type"), 'type: None is not "function"'),
    "unknown call key": (set_at(*FIRST_CALL, "index", to=0), "unknown key 'index' in a tool call"),
    "no function": (drop(*FIRST_CALL, "function"), "function: missing"),
    "unknown function key": (set_at(*FIRST_CALL, "function", "x", to=0), "unknown key 'x'"),
    "empty function name": (set_at(*FIRST_CALL, "function", "name", to=""), "'' does not match"),
    "bad function name": (set_at(*FIRST_CALL, "function", "name", to="a b"), "does not match"),
    "name with newline": (set_at(*FIRST_CALL, "function", "name", to="ab\n"), "does not match"),
    "name too long": (set_at(*FIRST_CALL, "function", "name", to="a" * 65), "does not match"),
    "id twice in a message": (set_at(*FIRST_CALL, "id", to="b"), "'b' is used twice"),
    "id twice in all": (set_at("messages", 7, "tool_calls", 0, "id", to="a"), "'a' is used twice"),
    # arguments
    **{
        f"arguments {name}": (set_at(*FIRST_CALL, "function", "arguments", to=text), told)
        for name, text, told in [
            ("an object", {"city": "London"}, "dict is not a string"),
            ("null", None, "NoneType is not a string"),
            ("empty", "", "not strict JSON"),
            ("a list", "[1]", "JSON, but not an object"),
            ("a number", "1", "JSON, but not an object"),
            ("null text", "null", "JSON, but not an object"),
            ("cut off", '{"city": "Lon', "not strict JSON"),
            ("with a tail", "{} {}", "not strict JSON"),
            ("with a doubled key", '{"a": 1, "a": 2}', "key 'a' given twice"),
            ("with an inner doubled key", '{"x": [{"a": 1, "a": 2}]}', "key 'a' given twice"),
            ("with NaN", '{"a": NaN}', "NaN is not JSON"),
            ("with -Infinity", '{"a": -Infinity}', "-Infinity is not JSON"),
            ("beyond a double", '{"a": 1e999}', "not finite"),
            ("with a giant integer", '{"a": ' + "9" * 5000 + "}", "an integer of 5000 digits"),
            ("nested too deeply", DEEP, "nested deeper than 200"),
            ("nested far too deeply", '{"a":' + "[" * 100_000, "nested deeper than 200"),
            ("with a lone surrogate", '{"a": "\\ud83d"}', "a: a lone surrogate"),
            ("with a raw newline", '{"a": "\n"}', "not strict JSON"),
        ]
    },
    # answers
    "no answer": (drop("messages", 4), "comes before call 'b' is answered"),
    "no answer at the end": (drop("messages", 8), "call 'c' is never answered"),
    "no tool_call_id": (drop("messages", 3, "tool_call_id"), "tool_call_id: missing or empty"),
    "answers out of order": (swap(3, 4), "answers 'b' out of order, before 'a'"),
    "answered twice": (
        insert(5, {"role": "tool", "tool_call_id": "a", "content": "x"}),
        "call 'a' was answered before",
    ),
    "answer without call": (
        insert(5, {"role": "tool", "tool_call_id": "x", "content": "x"}),
        "answers call 'x', which nobody made",
    ),
    "answer after a user message": (insert(3, USER), "comes before call 'a' is answered"),
    "answer before its call": (swap(2, 3), "answers call 'a', which nobody made"),
    "unanswered before a user": (insert(5, UNANSWERABLE), "comes before call 'z' is answered"),
    # tools
    "empty tools": (set_at("tools", to=[]), "tools: not a list with at least one tool"),
    "null tools": (set_at("tools", to=None), "tools: not a list with at least one tool"),
    "too many tools": (lambda b: b["tools"].extend(tool(f"t{i}") for i in range(127)), "129 tools"),
    "two tools of one name": (
        set_at(*FUNCTION, "name", to="get_time"),
        "two tools named 'get_time'",
    ),
    "tool of no type": (drop("tools", 0, "type"), 'tools[0]: not an object with type "function"'),
    "tool without function": (drop("tools", 0, "function"), "tools[0].function: missing"),
    "tool with our key": (set_at(*FUNCTION, "effect", to="once"), "unknown key 'effect'"),
    "bad tool name": (set_at(*FUNCTION, "name", to="get weather"), "'get weather' does not match"),
    "description null": (set_at(*FUNCTION, "description", to=None), "description: not a string"),
    "strict a word": (set_at(*FUNCTION, "strict", to="yes"), "strict: not true or false"),
    "array root": (set_at(*FUNCTION, "parameters", to={"type": "array"}), "root is not a schema"),
    "no root type": (drop(*FUNCTION, "parameters", "type"), "root is not a schema"),
    "properties a list": (
        set_at(*FUNCTION, "parameters", "properties", to=[]),
        "properties: not an",
    ),
    "property no schema": (
        set_at(*FUNCTION, "parameters", "properties", "city", to="string"),
        "properties.city: str is not a schema",
    ),
    "unknown type": (
        set_at(*FUNCTION, "parameters", "properties", "city", "type", to="str"),
        "'str' is no JSON type",
    ),
    "dangling reference": (drop(*FUNCTION, "parameters", "$defs"), "points at nothing"),
    "empty enum": (set_at(*FUNCTION, "parameters", "$defs", "Day", "enum", to=[]), "enum: not a"),
    "required unknown": (set_at(*FUNCTION, "parameters", "required", to=["x"]), "'x' is not among"),
    "required doubled": (
        set_at(*FUNCTION, "parameters", "required", to=["city", "city"]),
        "required: a name given twice",
    ),
    "strict tool, open schema": (set_at(*FUNCTION, "strict", to=True), "additionalProperties is"),
    "choice without tools": (drop("tools"), "tool_choice: only allowed with tools"),
    "parallel without tools": (drop("tools"), "parallel_tool_calls: only allowed with tools"),
    "choice unknown": (set_at("tool_choice", to="any"), "'any' is neither none, auto"),
    "choice of no tool": (
        set_at("tool_choice", "function", "name", to="nothing"),
        "'nothing' is not one of the tools",
    ),
    "parallel a word": (set_at("parallel_tool_calls", to="no"), "not true or false"),
    # response_format
    "format unknown": (set_at("response_format", to={"type": "xml"}), "not text, json_object or"),
    "format null": (set_at("response_format", to=None), "not text, json_object or json_schema"),
    "json_object unasked": (
        set_at("response_format", to={"type": "json_object"}),
        "needs the word JSON",
    ),
    "no json_schema": (drop(*FORMAT), "json_schema: missing"),
    "no schema": (drop(*FORMAT, "schema"), "schema: missing"),
    "bad format name": (set_at(*FORMAT, "name", to="My Answer"), "'My Answer' does not match"),
    "strict, open object": (
        drop(*FORMAT, "schema", "additionalProperties"),
        "additionalProperties is not false",
    ),
    "strict, inner open object": (
        set_at(*FORMAT, "schema", "$defs", "Inner", "additionalProperties", to=True),
        "$defs.Inner: strict, but additionalProperties is not false",
    ),
    "strict, optional property": (
        set_at(*FORMAT, "schema", "required", to=["text"]),
        "['inner'] are not required",
    ),
    "unknown format key": (set_at(*FORMAT, "x", to=1), "unknown key 'x'"),
}


def test_a_request_with_everything_in_it_is_legal() -> None:
    assert check_request(legal()) == []


@pytest.mark.parametrize("name", BREACHES)
def test_each_breach_is_named(name: str) -> None:
    change, told = BREACHES[name]
    body = legal()
    change(body)
    assert any(told in breach for breach in check_request(body)), check_request(body)


def test_every_breach_is_told_not_only_the_first() -> None:
    body = legal()
    drop("model")(body)
    swap(3, 4)(body)
    set_at("messages", 1, "content", to=None)(body)
    assert len(check_request(body)) == 3


def test_checking_leaves_the_request_as_it_was() -> None:
    body = legal()
    check_request(body)
    assert body == legal()


@pytest.mark.parametrize("value", [None, [], "text", 7, True])
def test_what_is_no_object_is_no_request(value: Any) -> None:
    assert "not an object" in check_request(value)[0]


@pytest.mark.parametrize("value", [None, [], "text", {}, [None], [[]], [{}]])
def test_what_is_no_conversation_is_told_and_does_not_crash(value: Any) -> None:
    assert check_messages(value)


def test_a_value_that_contains_itself_is_told_and_does_not_hang() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "contains itself" in check_messages(loop)[0]


@pytest.mark.parametrize(
    "change",
    [
        drop("messages", 0),
        set_at("messages", 0, "role", to="developer"),
        set_at("messages", 1, "content", to=""),
        set_at("messages", 5, to={"role": "assistant", "content": None, "refusal": "No."}),
        set_at("messages", 5, "function_call", to=None),
        set_at("tool_choice", to="required"),
        drop(*FUNCTION, "parameters"),
        set_at("response_format", to={"type": "text"}),
        set_at(*FORMAT, "strict", to=False),
        set_at(*FIRST_CALL, "function", "arguments", to=' {"a": [1.5, null, "\\ud83d\\ude00"]} '),
        set_at(*FIRST_CALL, "function", "arguments", to='{"a":' * 200 + "1" + "}" * 200),
        set_at(
            *FIRST_CALL, "function", "arguments", to='{"brackets in text": "' + "[" * 999 + '"}'
        ),
        set_at(*FIRST_CALL, "function", "arguments", to='{"quote": "\\"", "n": ' + "9" * 300 + "}"),
    ],
)
def test_the_lesser_used_forms_are_legal_too(change: Change) -> None:
    body = legal()
    change(body)
    assert check_request(body) == []


def test_json_object_is_legal_when_the_messages_ask_for_json() -> None:
    body = legal()
    set_at("response_format", to={"type": "json_object"})(body)
    set_at("messages", 0, "content", to="Answer in JSON.")(body)
    assert check_request(body) == []


def test_further_keys_may_be_allowed_by_name() -> None:
    body = legal()
    set_at("draft_model", to="small")(body)
    set_at("messages", 5, "signature", to="abc")(body)
    set_at(*FIRST_CALL, "signature", to="abc")(body)
    assert len(check_request(body)) == 3
    assert check_request(body, allow={"draft_model", "signature"}) == []


def test_a_legal_request_is_legal_after_a_trip_through_json() -> None:
    assert check_request(json.loads(json.dumps(legal()))) == []


def test_the_conversation_alone_is_checked_by_the_same_rules() -> None:
    messages = copy.deepcopy(legal()["messages"])
    assert check_messages(messages) == []
    messages.pop()
    assert any("'c' is never answered" in breach for breach in check_messages(messages))
