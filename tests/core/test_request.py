"""A request is legal whatever it is made of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine.events import Event
from agentor.engine.request import (
    UNANSWERED,
    Transcript,
    assistant_message,
    build_request,
    read_calls,
    sent_name,
    tool_message,
)
from agentor.testing import check_messages
from tests.core.logs import ANY_MESSAGES, RAW_CALLS, raw_call

USER = {"role": "user", "content": "hi"}


def breaches(messages: list[dict[str, Any]]) -> list[str]:
    """What is illegal in a conversation, its two ends aside: those are for the decision, not for the builder."""
    return check_messages([*messages, {"role": "user", "content": "and now?"}])


@given(ANY_MESSAGES)
def test_any_list_of_messages_becomes_a_legal_conversation(messages: list[dict[str, Any]]) -> None:
    assert breaches(build_request(Transcript(messages))) == []


@given(ANY_MESSAGES, ANY_MESSAGES, st.integers(0, 9))
def test_a_conversation_stays_legal_when_it_is_cut_and_extended(
    messages: list[dict[str, Any]], more: list[dict[str, Any]], kept: int
) -> None:
    transcript = Transcript(messages)
    extended = transcript.extended(min(kept, len(transcript)), more)
    assert breaches(build_request(extended)) == []


@given(ANY_MESSAGES)
def test_what_is_legal_is_left_as_it_is(messages: list[dict[str, Any]]) -> None:
    legal = build_request(Transcript(messages))
    assert build_request(Transcript(legal)) == legal


@given(ANY_MESSAGES, st.text(max_size=3), RAW_CALLS)
def test_a_generation_with_calls_joins_any_conversation_legally(
    messages: list[dict[str, Any]], text: str, raw_calls: list[dict[str, Any]]
) -> None:
    transcript = Transcript(messages)
    event = Event("generation", text=text, calls=raw_calls)
    calls = read_calls(event, transcript)
    answers = [tool_message(call, "done") for call in calls]
    joined = transcript.with_group(assistant_message(event, calls), answers, None)
    assert breaches(build_request(joined)) == []


@given(ANY_MESSAGES, ANY_MESSAGES, ANY_MESSAGES)
def test_growing_a_conversation_changes_no_older_view_of_it(
    messages: list[dict[str, Any]], left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> None:
    root = Transcript(messages)
    before, digest = list(root), root.digest()
    branches = [root.extended(len(root), added) for added in (left, right, left)]
    assert list(root) == before
    assert root.digest() == digest
    assert branches[0] == branches[2]
    assert branches[0].digest() == branches[2].digest()
    assert list(branches[1]) == build_request(Transcript([*before, *right]))


def test_a_missing_answer_is_filled_in_and_a_stray_one_left_out() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [raw_call("a", "f", "{}"), raw_call("b", "f", "{}")]},
        {"role": "tool", "tool_call_id": "stray", "content": "?"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]
    assert build_request(Transcript(messages))[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": UNANSWERED},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]


def test_answers_are_told_in_the_order_asked_directly_after_their_group() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [raw_call("a", "f", "{}"), raw_call("b", "f", "{}")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        USER,
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    told = [message.get("content") for message in build_request(Transcript(messages))]
    assert told == ["", "1", "2", "hi"]


def test_system_messages_become_one_in_front() -> None:
    messages = [{"role": "system", "content": "A"}, USER, {"role": "system", "content": "B"}]
    assert build_request(Transcript(messages)) == [{"role": "system", "content": "A\n\nB"}, USER]


def test_system_messages_with_parts_become_one_with_parts() -> None:
    part = {"type": "text", "text": "B"}
    messages = [{"role": "system", "content": "A"}, {"role": "system", "content": [part]}, USER]
    [system, _] = build_request(Transcript(messages))
    assert system["content"] == [{"type": "text", "text": "A"}, part]


def test_the_old_function_call_form_is_brought_up_to_date() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "42"},
    ]
    _, asked, told = build_request(Transcript(messages))
    assert asked["tool_calls"][0]["id"] == told["tool_call_id"] != ""
    assert told["content"] == "42"


def test_ids_that_repeat_across_turns_are_made_unique_and_keep_their_answers() -> None:
    group = [
        {"role": "assistant", "content": "", "tool_calls": [raw_call("c", "f", "{}")]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    again = [group[0], {**group[1], "content": "2"}]
    request = build_request(Transcript([USER, *group, *again]))
    assert [m["content"] for m in request if m["role"] == "tool"] == ["1", "2"]
    assert breaches(request) == []


def test_bad_arguments_and_names_are_never_sent() -> None:
    event = Event(
        "generation", calls=[raw_call("", "löschen!", '{"a": 1'), raw_call("x", "", "[]")]
    )
    calls = read_calls(event, Transcript([USER]))
    sent = assistant_message(event, calls)["tool_calls"]
    assert [call["function"] for call in sent] == [
        {"name": "l_schen_", "arguments": "{}"},
        {"name": "unnamed", "arguments": "{}"},
    ]
    assert calls[0].problem is not None
    assert sent_name("x" * 100) == "x" * 64


def test_valid_arguments_are_sent_as_the_model_wrote_them() -> None:
    event = Event("generation", calls=[raw_call("x", "f", '{ "b":1,\t"a" : "\\u00e9" }')])
    [call] = read_calls(event, Transcript([USER]))
    assert call.arguments == '{ "b":1,\t"a" : "\\u00e9" }'


def test_unknown_fields_of_messages_and_calls_survive() -> None:
    call = {**raw_call("x", "f", "{}"), "extra_content": {"google": {"thought_signature": "s"}}}
    event = Event(
        "generation", calls=[call], provider_fields={"reasoning_content": "hm", "content": "no"}
    )
    message = assistant_message(event, read_calls(event, Transcript([USER])))
    assert message["tool_calls"][0]["extra_content"] == call["extra_content"]
    assert message["reasoning_content"] == "hm"
    assert message["content"] == ""


def test_provider_fields_go_back_only_to_the_server_that_sent_them() -> None:
    event = Event("generation", text="hm", provider_fields={"reasoning_content": "secret"})
    spoken = Transcript([USER]).with_group(assistant_message(event, ()), (), "one.example")
    assert build_request(spoken, "one.example")[1]["reasoning_content"] == "secret"
    assert build_request(spoken, "two.example")[1] == {"role": "assistant", "content": "hm"}
    assert build_request(spoken, None)[1] == {"role": "assistant", "content": "hm"}


def test_a_request_is_the_callers_to_change() -> None:
    transcript = Transcript([USER])
    build_request(transcript).append({"role": "user", "content": "more"})
    assert build_request(transcript) == [USER]


@pytest.mark.parametrize("content", [None, "", []])
def test_an_assistant_message_with_nothing_in_it_is_not_sent(content: Any) -> None:
    assert build_request(Transcript([USER, {"role": "assistant", "content": content}])) == [USER]


@given(st.lists(ANY_MESSAGES, min_size=2, max_size=2))
def test_equal_digests_mean_equal_conversations(two: list[list[dict[str, Any]]]) -> None:
    one, other = (Transcript(messages) for messages in two)
    assert (one.digest() == other.digest()) == (one == other)


def test_each_server_gets_back_what_it_sent_and_nothing_of_another() -> None:
    def spoken(transcript: Transcript, source: str) -> Transcript:
        call = {**raw_call("x", "f", "{}"), "thought_signature": source}
        event = Event("generation", calls=[call], provider_fields={"reasoning": source})
        calls = read_calls(event, transcript)
        answers = [tool_message(call, "ok") for call in calls]
        return transcript.with_group(assistant_message(event, calls), answers, source)

    first = spoken(Transcript([USER]), "one")
    both = spoken(first, "two")
    for source in ("one", "two", None):
        own = [m for m in build_request(both, source) if "reasoning" in m]
        assert [m["reasoning"] for m in own] == ([source] if source else [])
        signed = [m for m in build_request(both, source) if "thought_signature" in str(m)]
        assert signed == own
    for source in ("one", "two"):
        cut = build_request(first, source)
        assert cut == build_request(both, source)[:3]
    assert build_request(spoken(first, "two"), "two") == build_request(both, "two")
    plain = Transcript(build_request(both, None))
    assert build_request(plain, "one") == build_request(both, None)


@pytest.mark.parametrize("fields", [{"reasoning": "r"}, None])
@pytest.mark.parametrize("signature", [{"signature": "s"}, {}])
def test_fields_of_a_message_and_of_its_calls_are_each_reason_enough(
    fields: dict[str, Any] | None, signature: dict[str, Any]
) -> None:
    plain = raw_call("x", "f", "{}")
    event = Event("generation", calls=[{**plain, **signature}], provider_fields=fields)
    calls = read_calls(event, Transcript())
    spoken = Transcript().with_group(assistant_message(event, calls), [], "one")
    bare = {"role": "assistant", "content": "", "tool_calls": [plain]}
    full = {**bare, **(fields or {}), "tool_calls": [{**plain, **signature}]}
    assert build_request(spoken, "one") == [full]
    assert build_request(spoken, "two") == [bare]


def test_an_older_view_that_grows_keeps_the_servers_of_its_own_messages() -> None:
    event = Event("generation", text="hm", provider_fields={"reasoning": "r"})
    told = assistant_message(event, ())
    older = Transcript([USER]).with_group(told, (), "one")
    older.with_group(told, (), "two")  # the tip moves on
    asked = {**USER, "extra": 1}  # of the caller's own, not a server's
    branch = older.extended(len(older), [asked])
    assert build_request(branch, "one") == [USER, told, asked]
    assert build_request(branch, "two") == [USER, {"role": "assistant", "content": "hm"}, asked]


def test_a_part_of_a_request_is_that_part_of_the_whole() -> None:
    event = Event("generation", text="hm", provider_fields={"reasoning": "r"})
    told = assistant_message(event, ())
    talk = Transcript([USER])
    for source in ("one", "two", "one"):
        talk = talk.with_group(told, (), source).extended(len(talk) + 1, [USER])
    for source in ("one", "two", "three", None):
        whole = talk.request(source)
        assert [talk.request(source, after=n) for n in range(8)] == [whole[n:] for n in range(8)]


def test_a_conversation_continues_itself_and_what_it_has_grown_from() -> None:
    root = Transcript([USER])
    grown = root.extended(1, [USER])
    assert [a.continues(b) for a in (root, grown) for b in (root, grown)] == [
        True,
        False,
        True,
        True,
    ]
    assert not Transcript([USER, USER]).continues(root)
    assert not root.is_sent_as([USER])  # others have gone on from it
    assert grown.is_sent_as([USER, USER])


def test_a_branch_has_the_digest_of_its_own_messages() -> None:
    root = Transcript([USER])
    assert Transcript().digest() == ""
    digests = {root.digest()}
    for text in ("left", "right", "third"):
        said = {"role": "assistant", "content": text}
        branch = root.extended(1, [said])
        assert branch.digest() == Transcript([USER, said]).digest()
        assert len(branch.digest()) == 32
        digests.add(branch.digest())
    assert len(digests) == 4


CALL = raw_call("c", "f", "{}")
ASKED = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]


@pytest.mark.parametrize(
    ("added", "is_cheap"),
    [
        (USER, True),
        ({"role": "assistant", "content": "x"}, True),
        ({"role": "assistant", "content": "x", "tool_calls": []}, True),
        ({"role": "assistant", "content": "x", "tool_calls": [CALL]}, False),
        ({"role": "assistant", "function_call": CALL["function"]}, False),
        ({"role": "tool", "tool_call_id": "c", "content": "2"}, False),
        ({"role": "system", "content": "x"}, False),
        ({"content": "x"}, False),
    ],
)
def test_only_what_depends_on_nothing_before_it_is_added_without_a_look(
    added: dict[str, Any], is_cheap: bool
) -> None:
    whole = Transcript(ASKED)
    grown = whole.extended(3, [added])
    assert grown == Transcript([*ASKED, added])
    assert (grown._shared is whole._shared) == is_cheap
    assert list(whole.extended(1, [added])) == build_request(Transcript([USER, added]))
    assert whole == Transcript(ASKED)
    assert whole.extended(3, []) is whole


def test_transcripts_are_equal_by_what_they_say() -> None:
    assert list(Transcript(ASKED)) == ASKED
    assert Transcript(ASKED) == Transcript(ASKED)
    assert Transcript(ASKED) != Transcript(ASKED[:1])
    assert Transcript(ASKED) != ASKED


def test_an_id_is_free_again_where_its_call_was_forgotten() -> None:
    root = Transcript([USER])
    root.with_group(ASKED[1], ASKED[2:], None)
    branch = root.extended(1, [USER, USER])
    assert len(branch) == 3
    assert not branch.uses_id("c")
    [call] = read_calls(Event("generation", calls=[CALL]), branch)
    assert call.call_id == "c"
    assert Transcript(ASKED).uses_id("c")


def test_an_id_of_ours_is_one_that_nobody_else_has() -> None:
    taken = [
        {"role": "assistant", "content": "", "tool_calls": [raw_call("call_2_0", "f", "{}")]},
        {"role": "tool", "tool_call_id": "call_2_0", "content": "1"},
    ]
    transcript = Transcript(taken)
    event = Event("generation", calls=[raw_call("", "f", "{}"), raw_call("call_2_0_", "f", "{}")])
    assert [call.call_id for call in read_calls(event, transcript)] == ["call_2_0_", "call_2_1"]
    assert [call.received_id for call in read_calls(event, transcript)] == ["", "call_2_0_"]


@given(ANY_MESSAGES)
def test_a_conversation_has_a_system_message_or_none_in_front(messages: list[Any]) -> None:
    transcript = Transcript(messages)
    roles = [message["role"] for message in transcript]
    assert transcript.has_system == bool({"system", "developer"} & set(roles[:1]))
    assert not {"system", "developer"} & set(roles[1:])


def test_a_name_that_is_no_text_is_left_out() -> None:
    for name, kept in (("Ada", {"name": "Ada"}), (7, {}), (["Ada"], {})):
        assert build_request(Transcript([{**USER, "name": name}])) == [{**USER, **kept}]


# Servers and their fields -----------------------------------------------------------------------------------------


def spoken_by(source: str | None, after: Transcript) -> Transcript:
    """The transcript with a group that carries fields of a server's own, in the message and in its call."""
    call = {**raw_call(f"x{len(after)}", "f", "{}"), "thought_signature": f"of {source}"}
    event = Event("generation", calls=[call], provider_fields={"reasoning": f"of {source}"})
    calls = read_calls(event, after)
    answers = [tool_message(call, "told") for call in calls]
    return after.with_group(assistant_message(event, calls), answers, source)


@given(ANY_MESSAGES, ANY_MESSAGES, st.data())
def test_whatever_a_conversation_is_rebuilt_from_its_fields_go_only_to_the_server_that_sent_them(
    before: list[Any], more: list[Any], data: st.DataObject
) -> None:
    whole = spoken_by("two", spoken_by("one", Transcript(before)))
    kept = data.draw(st.sampled_from([0, len(whole) - 2, len(whole)]))
    again = [] if kept else [{"role": "system", "content": "Be kind."}, *whole]
    once = whole.extended(kept, [*again, *more])
    rebuilt = once.extended(0, [*once])
    everything = str(list(rebuilt))
    for source in ("one", "two", "three", None):
        received = str(build_request(rebuilt, source))
        for other in ("one", "two"):
            assert (f"of {other}" in received) == (other == source and f"of {other}" in everything)


def test_fields_of_which_nobody_knows_where_they_come_from_go_along() -> None:
    before = Transcript([{"role": "user", "content": "hi"}])
    after = spoken_by("one", before)
    stranger = {"role": "assistant", "content": "", "reasoning": "of nobody"}
    strange = {**stranger, "tool_calls": [raw_call("y", "f", "{}")]}
    assert "of nobody" in str(build_request(after.extended(0, [*after, strange]), "two"))
    foreign = spoken_by(None, before)
    assert "of None" in str(build_request(foreign.extended(0, [*foreign]), "two"))


def test_a_view_knows_nothing_of_what_was_said_after_it() -> None:
    before = Transcript([{"role": "user", "content": "hi"}])
    after = spoken_by("one", before)
    assert "of one" not in str(build_request(after.extended(0, [*after]), "two"))
    assert "of one" in str(build_request(before.extended(0, [*after]), "two"))
