"""What becomes of everything that cannot be sent as it is, piece by piece."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.request import (
    UNANSWERED,
    Transcript,
    assistant_message,
    build_request,
    read_calls,
    sent_name,
)
from tests.core.logs import ANY_MESSAGES, JSON, raw_call

USER = {"role": "user", "content": "hi"}
PART = {"type": "text", "text": "x"}


def sent(*messages: Any) -> list[dict[str, Any]]:
    return build_request(Transcript(messages))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("x", "x"),
        (None, ""),
        ([], ""),
        ([PART], [PART]),
        ([PART, "y"], '[{"type":"text","text":"x"},"y"]'),
        ([{"type": 1}], '[{"type":1}]'),
        ([{"text": "x"}], '[{"text":"x"}]'),
        ({"a": 1}, '{"a":1}'),
        (7, "7"),
        (0, "0"),
        (False, "false"),
        ("a\ud800b", "a�b"),
    ],
)
@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_content_is_text_or_typed_parts(role: str, content: Any, told: Any) -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [raw_call("c", "f", "{}")]}
    before = [asked] if role == "tool" else []
    message = {"role": role, "content": content, "tool_call_id": "c"}
    request = sent(*before, message)
    if role == "assistant" and told == "":
        assert request == []
    else:
        assert request[-1]["content"] == told


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ({**USER, "name": None, "extra": 1}, {**USER, "extra": 1}),
        ({**USER, "tool_calls": [raw_call("c", "f", "{}")], "tool_call_id": "c"}, USER),
        ({"role": "user"}, {"role": "user", "content": ""}),
        ({"role": "bard", "content": "x"}, None),
        ({"content": "x"}, None),
        ({"role": ["user"], "content": "x"}, None),
        ("hi", None),
        (None, None),
        ({"role": "tool", "tool_call_id": "c", "content": "stray"}, None),
        ({"role": "tool", "content": "stray"}, None),
        ({"role": "function", "name": "f", "content": "stray"}, None),
        ({"role": "developer", "content": "x"}, {"role": "developer", "content": "x"}),
    ],
)
def test_a_message_keeps_what_its_role_may_have(raw: Any, kept: dict[str, Any] | None) -> None:
    assert sent(raw) == ([kept] if kept else [])


@pytest.mark.parametrize("calls", [[], None, "f", [1], [raw_call("c", "f", "{}"), 1], {"id": "c"}])
def test_an_assistant_whose_calls_are_none_has_said_something_or_nothing(calls: Any) -> None:
    message = {"role": "assistant", "tool_calls": calls, "tool_call_id": "c"}
    assert sent({**message, "content": "x"}) == [{"role": "assistant", "content": "x"}]
    assert sent(message) == []


def test_an_answer_keeps_its_own_fields_and_gets_the_id_that_was_sent() -> None:
    asked = {"role": "assistant", "calls": 1, "tool_calls": [raw_call("c", "f", "{}")]}
    told = {"role": "tool", "tool_call_id": "c", "content": "1", "name": "f", "extra": 2}
    first, answer, again, second = sent(asked, told, asked, told)
    assert (answer, second) == (told, {**told, "tool_call_id": again["tool_calls"][0]["id"]})
    assert first["calls"] == again["calls"] == 1
    assert again["tool_calls"][0]["id"] == "call_1_0"
    assert sent(asked, told, {**told, "content": "again"}) == [first, answer]  # answered once


def test_doubled_and_missing_ids_in_one_group_are_answered_in_order() -> None:
    raw = [raw_call(i, "f", "{}") for i in ("c", "c", "", "d")]
    group = {"role": "assistant", "content": "", "tool_calls": raw}
    told = [{"role": "tool", "tool_call_id": i, "content": i} for i in ("d", "", "c")]
    [asked, *answers] = sent(USER, group, *told)[1:]
    ids = [call["id"] for call in asked["tool_calls"]]
    assert ids == ["c", "call_1_1", "call_1_2", "d"]
    assert [answer["tool_call_id"] for answer in answers] == ids
    assert [answer["content"] for answer in answers] == ["c", UNANSWERED, "", "d"]


def test_an_answer_that_comes_late_finds_its_group_behind_a_later_one() -> None:
    asked = [
        {"role": "assistant", "content": "", "tool_calls": [raw_call(i, "f", "{}")]} for i in "ab"
    ]
    told = [{"role": "tool", "tool_call_id": i, "content": i} for i in "ab"]
    assert sent(*asked, *told) == [asked[0], told[0], asked[1], told[1]]


@pytest.mark.parametrize("role", ["tool", "function"])
def test_an_answer_without_an_id_belongs_to_the_call_without_one(role: str) -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [raw_call("", "f", "{}")]}
    _, answer = sent(asked, {"role": role, "content": "1"})
    assert answer == {"role": "tool", "tool_call_id": "call_0_0", "content": "1"}


def test_the_old_form_of_a_call_gives_way_to_the_new_one() -> None:
    old = {"name": "old", "arguments": "{}"}
    both = {"role": "assistant", "function_call": old, "tool_calls": [raw_call("c", "f", "{}")]}
    [asked, _] = sent(both)
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["f"]
    assert "function_call" not in asked
    [asked, answer] = sent({"role": "assistant", "function_call": old})
    assert asked["tool_calls"] == [raw_call("call_0_0", "old", "{}")]
    assert answer == {"role": "tool", "tool_call_id": "call_0_0", "content": UNANSWERED}


@pytest.mark.parametrize(
    ("contents", "merged"),
    [
        (["A"], "A"),
        (["A", "B", "C"], "A\n\nB\n\nC"),
        (["A", "", "B"], "A\n\nB"),
        ([[PART]], [PART]),
        (["A", [PART], "B"], [{"type": "text", "text": "A"}, PART, {"type": "text", "text": "B"}]),
    ],
)
def test_one_system_message_says_what_all_of_them_said(contents: list[Any], merged: Any) -> None:
    roles = ["developer", "system", "system"]
    messages = [
        {"role": role, "content": content, "name": f"n{i}"}
        for i, (role, content) in enumerate(zip(roles, contents, strict=False))
    ]
    assert sent(USER, *messages) == [{"role": "developer", "content": merged, "name": "n0"}, USER]


@pytest.mark.parametrize(
    ("raw", "call"),
    [
        ({}, ("", "", "{}", {})),
        ({"id": 7, "function": "f"}, ("", "", "{}", {})),
        ({"id": "c", "function": {"name": 7, "arguments": None}}, ("c", "", "{}", {})),
        (raw_call("c\ud800", "f\udc00", "  "), ("c�", "f�", "{}", {})),
        (raw_call("c", "f", {"a": 1}), ("c", "f", '{"a":1}', {"a": 1})),  # type: ignore[arg-type]
        (raw_call("c", "f", '{"a": "\\ud800"}'), ("c", "f", '{"a":"�"}', {"a": "�"})),
        (raw_call("c", "f", '{"a": "\\uDFFF"}'), ("c", "f", '{"a":"�"}', {"a": "�"})),
        (raw_call("c", "f", '{"a": "\ud800"}'), ("c", "f", '{"a":"�"}', {"a": "�"})),
        (raw_call("c", "f", ' {"a" : 1}'), ("c", "f", ' {"a" : 1}', {"a": 1})),
    ],
)
def test_a_call_is_read_whatever_the_model_made_of_it(raw: Any, call: Any) -> None:
    [read] = read_calls(Event("generation", calls=[raw]), Transcript())
    assert (read.received_id, read.name, read.arguments, read.args) == call
    assert read.problem is None
    assert read.call_id == (read.received_id or "call_0_0")
    assert read.to_message()["id"] == read.call_id


def test_what_is_wrong_with_arguments_stays_with_the_call_and_is_not_sent() -> None:
    event = Event("generation", calls=[raw_call("", "f", "[1]"), raw_call("", "g", "{")])
    first, second = read_calls(event, Transcript([USER]))
    assert (first.position, second.position) == (0, 1)
    assert (first.call_id, second.call_id) == ("call_1_0", "call_1_1")
    for call, fault in ((first, "not an array"), (second, "not valid JSON")):
        assert fault in str(call.problem)
        assert (call.arguments, call.args) == ("{}", {})


def test_a_call_keeps_the_providers_fields_but_not_its_place_in_a_stream() -> None:
    raw = {**raw_call("", "f", "{}"), "index": 3, "signature": "s", "nothing": None}
    [call] = read_calls(Event("generation", calls=[raw]), Transcript())
    assert call.provider_fields == {"signature": "s"}
    assert call.to_message() == {**raw_call("call_0_0", "f", "{}"), "signature": "s"}


def test_the_provider_cannot_overwrite_what_a_message_says() -> None:
    fields = {"role": "user", "content": "no", "tool_calls": [], "name": "x", "tool_call_id": "y"}
    event = Event("generation", text="hi", provider_fields={**fields, "mood": "m", "none": None})
    assert assistant_message(event, ()) == {"role": "assistant", "content": "hi", "mood": "m"}


@given(st.text() | st.from_regex(r"[\w-]{1,70}", fullmatch=True))
def test_a_name_is_sent_in_the_form_every_provider_takes(name: str) -> None:
    told = sent_name(name)
    assert told == (re.sub("[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed")
    assert 1 <= len(told) <= 64
    assert told.isascii()
    assert not set(told) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert sent_name(told) == told


def test_names_that_may_be_sent_are_left_alone() -> None:
    assert [sent_name(name) for name in ("get-weather_2", "a.b c", "")] == [
        "get-weather_2",
        "a_b_c",
        "unnamed",
    ]


@given(ANY_MESSAGES, st.integers(0, 9), ANY_MESSAGES)
def test_cutting_and_adding_is_beginning_anew_with_the_whole_list(
    messages: list[Any], kept: int, more: list[Any]
) -> None:
    whole = Transcript(messages)
    list_of = list(whole)
    extended = whole.extended(min(kept, len(whole)), more)
    assert list(extended) == sent(*list_of[:kept], *more)
    assert list(whole) == list_of
    assert whole.extended(len(whole), []) == whole
    assert (whole == extended) == (list_of == list(extended))
    assert whole != list_of


@given(ANY_MESSAGES)
def test_ids_belong_to_the_view_that_has_their_message(messages: list[Any]) -> None:
    whole = Transcript(messages)
    asked = [c["id"] for m in whole for c in m.get("tool_calls", ())]
    assert all(whole.uses_id(call_id) for call_id in asked)
    assert not whole.uses_id("nobody")
    group = {"role": "assistant", "content": "", "tool_calls": [raw_call("new", "f", "{}")]}
    answer = {"role": "tool", "tool_call_id": "new", "content": "1"}
    grown = whole.with_group(group, [answer], None)
    assert grown.uses_id("new")
    assert not whole.uses_id("new")
    regrown = whole.with_group({**group, "tool_calls": [raw_call("other", "f", "{}")]}, [], None)
    assert regrown.uses_id("other")
    assert not regrown.uses_id("new")
    assert not grown.uses_id("other")


@given(ANY_MESSAGES, st.integers(0, 9))
def test_a_digest_tells_the_conversation_and_not_how_it_came_about(
    messages: list[Any], kept: int
) -> None:
    whole = Transcript(messages)
    fresh = Transcript(list(whole))
    assert len(whole.digest()) == 32 if len(whole) else whole.digest() == ""
    assert whole.digest() == fresh.digest() == whole.digest()
    cut = whole.extended(min(kept, len(whole)), [])
    assert (cut.digest() == whole.digest()) == (list(cut) == list(whole))
    grown = cut.with_group({"role": "assistant", "content": "x"}, [], None)
    assert grown.digest() == Transcript([*cut, {"role": "assistant", "content": "x"}]).digest()


@given(JSON)
def test_whatever_the_assistant_said_last_is_its_answer_as_text(content: Any) -> None:
    transcript = Transcript([USER, {"role": "assistant", "content": content}])
    said = list(transcript)[-1]["content"]
    assert Transcript([USER]).last_answer is None
    assert Transcript().last_answer is None
    if len(transcript) == 1:
        assert transcript.last_answer is None
    else:
        text = said if isinstance(said, str) else strict_json.dumps(said)
        assert transcript.last_answer == text
    parts = Transcript([{"role": "assistant", "content": [PART]}])
    assert parts.last_answer == '[{"type":"text","text":"x"}]'


GROUP_IDS = st.lists(st.sampled_from(["c", "c", "d", "", "call_1_0"]), min_size=1, max_size=5)


def group_of(received: list[str], names: list[str]) -> dict[str, Any]:
    raw = [raw_call(i, name, "{}") for i, name in zip(received, names, strict=True)]
    return {"role": "assistant", "content": "", "tool_calls": raw}


def answer_to(call_id: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


@given(GROUP_IDS, st.data())
def test_no_answer_is_lost_and_those_to_one_id_go_to_its_calls_in_the_order_asked(
    received: list[str], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(received))))
    in_order = {i: iter([at for at, other in enumerate(received) if other == i]) for i in received}
    told = [answer_to(received[at], str(next(in_order[received[at]]))) for at in order]
    [asked, *answers] = sent(USER, group_of(received, ["f"] * len(received)), *told)[1:]
    assert [answer["content"] for answer in answers] == [str(at) for at in range(len(received))]
    assert [a["tool_call_id"] for a in answers] == [c["id"] for c in asked["tool_calls"]]


@given(GROUP_IDS, st.data())
def test_an_answer_that_names_its_tool_goes_to_the_call_of_that_tool_whatever_the_ids(
    received: list[str], data: st.DataObject
) -> None:
    names = [f"tool_{at}" for at in range(len(received))]
    order = data.draw(st.permutations(range(len(received))))
    told = [answer_to(received[at], names[at], name=names[at]) for at in order]
    [_, *answers] = sent(USER, group_of(received, names), *told)[1:]
    assert [answer["content"] for answer in answers] == names
    [_, *answers] = sent(USER, group_of(received, names), *[m | {"name": "x"} for m in told])[1:]
    assert sorted(answer["content"] for answer in answers) == names  # no call has that name


def test_an_id_that_is_used_again_is_from_then_on_that_of_the_later_group() -> None:
    once, twice = group_of(["c"], ["f"]), group_of(["c", "c"], ["f", "f"])
    told = [answer_to("c", content) for content in ("1", "2", "3")]
    answers = [m["content"] for m in sent(once, twice, *told) if m["role"] == "tool"]
    assert answers == [UNANSWERED, "1", "2"]
    answers = [m["content"] for m in sent(twice, once, *told) if m["role"] == "tool"]
    assert answers == [UNANSWERED, UNANSWERED, "1"]
