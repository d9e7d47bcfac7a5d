"""Any legal conversation passes the checker, and any single thing that breaks a rule is caught."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentor.testing import check_messages, check_request
from agentor.testing.checker import _ROLE_KEYS, PROVIDER_CALL_FIELDS, PROVIDER_FIELDS

Message = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.from_regex(r"\A[a-zA-Z0-9_-]{1,8}\Z")
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    leaves | texts,
    lambda v: st.lists(v, max_size=2) | st.dictionaries(texts, v, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(texts, values, max_size=3).map(json.dumps)


@st.composite
def conversations(draw: Draw) -> list[Message]:
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append(
            {"role": draw(st.sampled_from(["system", "developer"])), "content": draw(texts)}
        )
    ids = (f"call_{number}" for number in range(100))
    for kind in [*draw(st.lists(st.sampled_from(["user", "said", "batch"]), max_size=4)), "last"]:
        if kind == "said":
            messages.append({"role": "assistant", "content": draw(texts.filter(bool))})
        elif kind == "user" or (kind == "last" and draw(st.booleans())):
            messages.append({"role": "user", "content": draw(texts)})
        else:
            messages += draw(batches(ids))
    return messages


@st.composite
def batches(draw: Draw, ids: Iterator[str]) -> list[Message]:
    made = [
        {
            "id": next(ids),
            "type": "function",
            "function": {"name": name, "arguments": draw(arguments)},
        }
        for name in draw(st.lists(names, min_size=1, max_size=3))
    ]
    asking = {"role": "assistant", "content": draw(texts), "tool_calls": made}
    answers = [{"role": "tool", "tool_call_id": c["id"], "content": draw(texts)} for c in made]
    return [asking, *answers]


@given(conversations())
def test_a_legal_conversation_passes(messages: list[Message]) -> None:
    assert check_messages(messages) == []


# -- one way each to break a rule; a function changes the messages in place


def one(draw: Draw, found: list[Any]) -> Any:
    assume(found)
    return draw(st.sampled_from(found))


def of_role(messages: list[Message], *roles: str) -> list[Message]:
    return [message for message in messages if message["role"] in roles]


def all_calls(messages: list[Message]) -> list[Message]:
    return [call for message in messages for call in message.get("tool_calls", ())]


def place_of(messages: list[Message], message: Message) -> int:
    return next(index for index, other in enumerate(messages) if other is message)


def lose_an_answer(draw: Draw, messages: list[Message]) -> None:
    del messages[place_of(messages, one(draw, of_role(messages, "tool")))]


def repeat_an_answer(draw: Draw, messages: list[Message]) -> None:
    answer = one(draw, of_role(messages, "tool"))
    messages.insert(draw(st.integers(place_of(messages, answer), len(messages))), dict(answer))


def swap_two_answers(draw: Draw, messages: list[Message]) -> None:
    pairs = [
        i
        for i in range(len(messages) - 1)
        if messages[i]["role"] == messages[i + 1]["role"] == "tool"
    ]
    i = one(draw, pairs)
    messages[i : i + 2] = [messages[i + 1], messages[i]]


def lose_the_asking(draw: Draw, messages: list[Message]) -> None:
    del messages[place_of(messages, one(draw, [m for m in messages if "tool_calls" in m]))]


def lose_a_call(draw: Draw, messages: list[Message]) -> None:
    asking = one(draw, [m for m in messages if "tool_calls" in m])
    asking["tool_calls"].remove(one(draw, asking["tool_calls"]))


def interrupt_a_batch(draw: Draw, messages: list[Message]) -> None:
    answer = one(draw, of_role(messages, "tool"))
    other = draw(
        st.sampled_from([{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}])
    )
    messages.insert(place_of(messages, answer), other)


def change_a_call_id(draw: Draw, messages: list[Message]) -> None:
    call = one(draw, all_calls(messages))
    others = [other["id"] for other in all_calls(messages) if other is not call]
    call["id"] = draw(st.sampled_from(["", None, 7, "new", *others]))


def change_an_answered_id(draw: Draw, messages: list[Message]) -> None:
    answer = one(draw, of_role(messages, "tool"))
    others = [c["id"] for c in all_calls(messages) if c["id"] != answer["tool_call_id"]]
    answer["tool_call_id"] = draw(st.sampled_from(["", None, 7, "new", *others]))


def spoil_the_content(draw: Draw, messages: list[Message]) -> None:
    message = one(draw, messages)
    bad = [
        None,
        7,
        True,
        [],
        [7],
        {"type": "text", "text": "x"},
        [{"type": "text"}],
        [{"text": "x"}],
    ]
    message["content"] = draw(st.sampled_from(bad))


def empty_an_assistant(draw: Draw, messages: list[Message]) -> None:
    said = [m for m in of_role(messages, "assistant") if "tool_calls" not in m]
    one(draw, said)["content"] = draw(st.sampled_from(["", None]))


def empty_the_list_of_calls(draw: Draw, messages: list[Message]) -> None:
    one(draw, of_role(messages, "assistant"))["tool_calls"] = draw(st.sampled_from([[], None]))


def spoil_the_role(draw: Draw, messages: list[Message]) -> None:
    one(draw, messages)["role"] = draw(texts.filter(lambda t: t not in _ROLE_KEYS) | st.none())


def add_a_key(draw: Draw, messages: list[Message]) -> None:
    known = PROVIDER_FIELDS.union(
        PROVIDER_CALL_FIELDS, *_ROLE_KEYS.values(), ["id", "type", "function"]
    )
    key = draw(texts.filter(lambda text: text not in known))
    one(draw, [*messages, *all_calls(messages)])[key] = draw(values)


def cut_arguments_off(draw: Draw, messages: list[Message]) -> None:
    function = one(draw, all_calls(messages))["function"]
    function["arguments"] = function["arguments"][
        : draw(st.integers(0, len(function["arguments"]) - 1))
    ]


def arguments_of_another_kind(draw: Draw, messages: list[Message]) -> None:
    other = draw(values.filter(lambda value: not isinstance(value, dict)))
    written = draw(st.booleans()) and not isinstance(other, str)
    spoilt = json.dumps(other) if written or isinstance(other, str) else other
    one(draw, all_calls(messages))["function"]["arguments"] = spoilt


def double_a_key_of_arguments(draw: Draw, messages: list[Message]) -> None:
    key = json.dumps(draw(texts))
    text = f"{{{key}: {draw(arguments)}, {key}: 1}}"
    one(draw, all_calls(messages))["function"]["arguments"] = text


def spoil_a_function_name(draw: Draw, messages: list[Message]) -> None:
    function = one(draw, all_calls(messages))["function"]
    name, stain = (
        function["name"],
        draw(texts.filter(lambda t: not re.fullmatch(r"[a-zA-Z0-9_-]*", t))),
    )
    place = draw(st.integers(0, len(name)))
    function["name"] = draw(
        st.sampled_from([name[:place] + stain + name[place:], "", "x" * 65, None])
    )


def a_second_system_message(draw: Draw, messages: list[Message]) -> None:
    extra = {"role": draw(st.sampled_from(["system", "developer"])), "content": "x"}
    first = 0 if messages[0]["role"] in ("system", "developer") else 1
    messages.insert(draw(st.integers(first, len(messages))), extra)


def an_assistant_at_the_end(draw: Draw, messages: list[Message]) -> None:
    messages.append({"role": "assistant", "content": draw(texts.filter(bool))})


def a_lone_surrogate(draw: Draw, messages: list[Message]) -> None:
    holder = one(draw, [m for m in messages if isinstance(m["content"], str)])
    place = draw(st.integers(0, len(holder["content"])))
    half = draw(st.characters(categories=["Cs"]))
    holder["content"] = holder["content"][:place] + half + holder["content"][place:]


def a_number_json_lacks(draw: Draw, messages: list[Message]) -> None:
    number = draw(st.sampled_from([float("nan"), float("inf"), 10**400]))
    one(draw, messages)["reasoning_details"] = [{"score": number}]


MUTATIONS = [
    lose_an_answer,
    repeat_an_answer,
    swap_two_answers,
    lose_the_asking,
    lose_a_call,
    interrupt_a_batch,
    change_a_call_id,
    change_an_answered_id,
    spoil_the_content,
    empty_an_assistant,
    empty_the_list_of_calls,
    spoil_the_role,
    add_a_key,
    cut_arguments_off,
    arguments_of_another_kind,
    double_a_key_of_arguments,
    spoil_a_function_name,
    a_second_system_message,
    an_assistant_at_the_end,
    a_lone_surrogate,
    a_number_json_lacks,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_single_breach_is_caught_wherever_it_is(mutate: Callable[..., None]) -> None:
    @settings(max_examples=40)
    @given(conversations(), st.data())
    def caught(messages: list[Message], data: st.DataObject) -> None:
        mutate(data.draw, messages)
        assert check_messages(messages), "this passed"

    caught()


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text()
    | st.binary(max_size=2)
    | st.sampled_from(["assistant", "tool", "user", "function", "text", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "id", "type", "function", "name", "arguments"]
            )
            | st.text(max_size=2),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(junk, max_size=3) | junk)
def test_junk_is_told_and_never_crashes_the_checker(messages: Any) -> None:
    assert all(isinstance(breach, str) for breach in check_messages(messages))


schema_words = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "$ref",
        "$defs",
        "anyOf",
        "enum",
        "additionalProperties",
        "function",
        "parameters",
        "strict",
        "name",
        "json_schema",
        "schema",
        "object",
        "string",
    ]
)
schemas = st.recursive(
    st.none()
    | st.booleans()
    | schema_words
    | st.sampled_from(["#", "#/$defs/type", "json_schema"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(schema_words, inner, max_size=4),
    max_leaves=12,
)


@given(schemas, schemas, schemas)
def test_junk_beside_the_messages_never_crashes_the_checker(
    tools: Any, choice: Any, wanted: Any
) -> None:
    function = {"name": "look", "parameters": tools, "strict": True}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}, tools],
        "tool_choice": choice,
        "response_format": {"type": "json_schema", "json_schema": wanted},
    }
    assert check_request(body)
