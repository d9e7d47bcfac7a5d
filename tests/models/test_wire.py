"""What of a conversation a server gets to see; the conversation itself is never changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from agentor.engine import wire

SIGNED = {
    "id": "a",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}


def assistant(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One"},
    assistant("old", reasoning_content="old thought", refusal=None, mood="calm"),
    {"role": "user", "content": "Two"},
    assistant("", tool_calls=[SIGNED], reasoning="new thought", reasoning_details=[{"text": "t"}]),
    {"role": "tool", "tool_call_id": "a", "content": "done"},
]


def reasoning_sent(messages: list[dict[str, Any]]) -> list[list[str]]:
    return [
        sorted(wire.REASONING_FIELDS & message.keys())
        for message in messages
        if message["role"] == "assistant"
    ]


@pytest.mark.parametrize(
    ("echo", "expected"),
    [
        ("tool_loop", [[], ["reasoning", "reasoning_details"]]),
        ("always", [["reasoning_content"], ["reasoning", "reasoning_details"]]),
        ("never", [[], []]),
    ],
)
def test_reasoning_goes_back_as_far_as_the_setting_says(echo: Any, expected: Any) -> None:
    assert reasoning_sent(wire.outgoing(TALK, echo_reasoning=echo)) == expected


def test_a_conversation_that_goes_on_with_a_user_takes_no_reasoning_along() -> None:
    assert reasoning_sent(wire.outgoing([*TALK, {"role": "user", "content": "Three"}])) == [[], []]


def test_signatures_of_calls_and_unknown_fields_go_back_always() -> None:
    sent = wire.outgoing(TALK, echo_reasoning="never")
    assert sent[4]["tool_calls"] == [SIGNED]
    assert sent[2]["mood"] == "calm"


def test_fields_that_only_come_out_are_not_sent_in() -> None:
    fields = {"refusal": "no", "annotations": [], "audio": {"id": "x"}, "mood": "calm"}
    (sent,) = wire.outgoing([assistant("a", **fields)], echo_reasoning="always")
    assert sent == assistant("a", mood="calm")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_are_sent_under_the_role_that_is_set(role: Any) -> None:
    for given in ("system", "developer"):
        messages = [{"role": given, "content": "x"}, {"role": "user", "content": "y"}]
        sent = wire.outgoing(messages, instructions_role=role)
        assert [message["role"] for message in sent] == [role, "user"]
        assert wire.outgoing(messages) == messages


def test_the_messages_given_are_not_changed() -> None:
    before = copy.deepcopy(TALK)
    wire.outgoing(TALK, echo_reasoning="never", instructions_role="developer")
    wire.without_fields(TALK, frozenset({"reasoning", "extra_content", "mood", "content", "id"}))
    wire.with_schema(TALK, {"type": "object"})
    wire.with_role(TALK, "developer")
    assert before == TALK


def test_provider_fields_are_those_the_api_does_not_know() -> None:
    assert wire.provider_fields(TALK) == {
        *("reasoning_content", "refusal", "mood", "reasoning", "reasoning_details"),
        "extra_content",
    }


def test_provider_fields_can_be_left_out_of_messages_and_calls_but_nothing_else_can() -> None:
    names = frozenset({"reasoning", "extra_content", "content", "role", "id", "function"})
    sent = wire.without_fields(TALK, names)
    plain = {name: value for name, value in SIGNED.items() if name != "extra_content"}
    assert sent[4] == assistant("", tool_calls=[plain], reasoning_details=[{"text": "t"}])
    assert sent[5] == TALK[5]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], 0),
        ([{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}], 0),
        ([{"role": "user", "content": "x"}], 0),
    ],
)
def test_a_schema_can_be_told_in_the_instructions(messages: Any, place: int) -> None:
    sent = wire.with_schema(messages, {"title": "Answer"})
    assert sent[place]["role"] in ("system", "developer")
    assert '{"title":"Answer"}' in str(sent[place]["content"])
    told = [message for message in sent if message["role"] in ("system", "developer")]
    assert len(told) == 1
    if messages[0]["role"] != "user":
        assert "Be brief." in str(sent[place]["content"])
