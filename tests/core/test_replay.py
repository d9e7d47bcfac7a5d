"""The fold: every prefix of every log has one meaning, and facts are never forgotten."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import LogCorruptError
from agentor.engine.decide import (
    AskModel,
    CallTools,
    Finish,
    Reopen,
    Wait,
    decide,
    fault_of,
    resumption,
    snap,
)
from agentor.engine.events import Event, Usage, without_repeats
from agentor.engine.replay import (
    RunState,
    evolve,
    final_event,
    is_complete,
    replay,
    replay_messages,
    total_usage,
    verify,
    with_messages,
)
from agentor.engine.request import build_request
from agentor.testing import check_messages
from tests.core.logs import USER, Writer, logs, old_log, raw_call
from tests.core.wide_logs import wide_logs

OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def states_of(log: list[Event]) -> list[RunState]:
    states = [RunState()]
    for event in log:
        states.append(evolve(states[-1], event))
    return states


@given(logs() | wide_logs())
def test_every_prefix_folds_to_a_state_whose_request_is_legal(log: list[Event]) -> None:
    for state in states_of(log)[1:]:
        if isinstance(decide(state, 99), AskModel):
            assert check_messages(build_request(state.transcript)) == []
        follow_up = [*build_request(state.transcript), {"role": "user", "content": "?"}]
        assert check_messages(follow_up) == []


@given(logs() | wide_logs())
def test_folding_one_by_one_or_all_at_once_is_the_same_and_changes_no_older_state(
    log: list[Event],
) -> None:
    states = states_of(log)
    messages = [state.messages for state in states]
    assert states[-1] == replay(log)
    assert [state.messages for state in states] == messages
    for length in range(len(log) + 1):
        assert replay(log[:length]) == states[length]


@given(logs() | wide_logs())
def test_replay_is_the_reduction_of_evolve_and_going_on_from_its_state_leaves_that_state_alone(
    log: list[Event],
) -> None:
    whole = reduce(evolve, log, RunState())
    for length in range(len(log) + 1):
        state = replay(log[:length])
        before = dict(vars(state))
        assert reduce(evolve, log[length:], state) == whole == replay(log)
        assert vars(state) == before


@given(logs())
def test_tokens_and_failures_only_grow(log: list[Event]) -> None:
    states = states_of(log)
    for before, after in pairwise(states):
        assert after.usage.total_tokens >= before.usage.total_tokens
        assert all(after.failures[name] >= count for name, count in before.failures.items())
    generations = [event.usage or Usage() for event in log if event.type == "generation"]
    assert total_usage(log) == sum(generations, Usage())


@given(logs() | wide_logs())
def test_a_batch_joins_the_conversation_whole_or_not_at_all(log: list[Event]) -> None:
    for state in states_of(log):
        if state.batch is not None:
            assert state.batch.missing
            ids = {call.call_id for call in state.batch.calls}
            assert not ids & {m.get("tool_call_id") for m in state.messages}


@given(logs() | wide_logs())
def test_resuming_keeps_the_whole_conversation(log: list[Event]) -> None:
    state = replay(log)
    reopen = resumption(state, 99)
    if reopen is None:
        return
    again = evolve(state, Event("run_start", kept=reopen.kept, messages=[]))
    assert again.messages == state.messages
    assert again.batch is None
    assert again.turn == 0
    assert again.usage == state.usage
    assert isinstance(decide(again, 1), AskModel | Finish)
    assert (
        set(reopen.rewound) == {c.call_id for c in state.batch.calls}
        if state.batch
        else not reopen.rewound
    )


@given(logs())
def test_a_fork_point_never_lies_inside_a_batch(log: list[Event]) -> None:
    states = states_of(log)
    for at in range(1, len(log) + 1):
        snapped = snap(states, at)
        assert snapped <= at
        assert states[snapped].batch is None
        assert all(states[i].batch is not None for i in range(snapped + 1, at + 1))


@given(logs())
def test_the_messages_of_each_generation_are_filled_in_as_they_were_sent(log: list[Event]) -> None:
    state, filled = with_messages(log)
    assert state == replay(log)
    assert filled == log
    for before, event in zip(states_of(log), filled, strict=False):
        if event.type == "generation":
            assert event.messages == before.messages
    others = [(e, f) for e, f in zip(log, filled, strict=True) if e.type != "generation"]
    assert all(event is left_alone for event, left_alone in others)


def test_what_a_generation_was_sent_depends_on_the_server_it_was_sent_to() -> None:
    writer = Writer()
    writer.start(OPENING)
    for source in ("one", "two", "one"):
        call = {**raw_call("", "f", "{}"), "signature": source}
        writer.add("generation", calls=[call], source=source)
        writer.add("tool_result", call_id="", result="ok")
    _, filled = with_messages(writer.events)
    sent = [event.messages for event in filled if event.type == "generation"]
    signed = [
        [c["signature"] for m in ms for c in m.get("tool_calls", ()) if "signature" in c]
        for ms in sent
    ]
    assert signed == [[], [], ["one"]]
    own = [event for event in old_log() if event.type == "generation"]
    assert [e for e in with_messages(old_log())[1] if e.type == "generation"] == own


def test_what_only_its_server_understands_of_an_answer_goes_to_no_other() -> None:
    writer = Writer()
    writer.start(OPENING)
    writer.add("generation", text="hi", source="one", provider_fields={"mood": "m"})
    writer.start([OPENING[1]], kept=3)
    transcript = replay(writer.events).transcript
    assert build_request(transcript, "one")[2] == {
        "role": "assistant",
        "content": "hi",
        "mood": "m",
    }
    assert build_request(transcript, "two")[2] == {"role": "assistant", "content": "hi"}


def test_a_conversation_that_the_log_tells_anew_as_a_whole_keeps_fields_from_other_servers() -> (
    None
):
    fields = {"source": "one", "provider_fields": {"mood": "m"}}
    writer = Writer()
    writer.start(OPENING)
    writer.add("generation", calls=[raw_call("a", "f", "{}")], **fields)
    writer.add("tool_result", call_id="a", result="ok")
    whole = replay(writer.events).messages
    told = [{"role": "system", "content": "Be kind."}, *whole, OPENING[1]]
    anew = {"run_start": {}, "generation": {"text": "so"}}  # by our own, by an older version
    for event_type, others in anew.items():
        event = Event(event_type, messages=told, **others)  # type: ignore[arg-type]
        transcript = replay([*writer.events, event]).transcript
        assert "mood" in str(transcript.request("one"))
        assert "mood" not in str(transcript.request("two"))


@pytest.mark.parametrize("settled", [False, True])
def test_what_follows_at_once_does_not_forget_whose_fields_came_before(settled: bool) -> None:
    fields = {"source": "one", "provider_fields": {"mood": "m"}}
    writer = Writer()
    writer.start(OPENING)
    if settled:  # what was said meanwhile follows the batch
        writer.add("generation", calls=[raw_call("a", "f", "{}")], **fields)
        writer.start([OPENING[1]], kept=2, settling=["a"])
        writer.add("tool_result", call_id="a", result="ok")
    else:  # a correction follows the answer
        writer.add("generation", text="hi", correction="As JSON.", **fields)
    transcript = replay(writer.events).transcript
    assert transcript.request("one")[2]["mood"] == "m"
    assert "mood" not in str(transcript.request("two"))


def test_a_log_of_the_first_version_replays_at_every_prefix() -> None:
    log = old_log()
    lengths = [len(replay_messages(log[:n])) for n in range(len(log) + 1)]
    assert lengths == [0, 2, 2, 2, 2, 2, 5, 6, 6, 6]
    assert [is_complete(log[:n]) for n in range(len(log) + 1)] == [False] * 9 + [True]
    assert total_usage(log) == Usage(4, 5, 9)
    assert verify(log) == []
    assert replay(log).failures == {"pay": 1}
    for state in states_of(log)[1:]:
        assert check_messages([*state.messages, OPENING[1]]) == []


def test_the_messages_of_an_old_generation_are_the_conversation() -> None:
    log = old_log()
    told = [*OPENING, {"role": "user", "content": "The tool 'pay' is unavailable."}]
    log[6] = log[6].with_(messages=told)
    assert replay_messages(log)[:3] == told


def test_a_resume_as_the_first_version_wrote_it_starts_from_its_whole_list() -> None:
    log = [*old_log()[:4], Event("run_start", messages=OPENING)]
    state = replay(log)
    assert state.messages == OPENING
    assert state.segments == 2
    assert isinstance(decide(state, 1), AskModel)


def test_final_event_is_the_last_end_whatever_follows_it() -> None:
    log = old_log()
    assert final_event(log[:3]) is None
    assert final_event([*log, Event("run_start", kept=2, messages=[])]) == log[-1]


@given(wide_logs(), st.lists(USER, max_size=2))
def test_what_a_fork_is_asked_is_unanswered_until_the_next_segment_begins(
    log: list[Event], messages: list[dict[str, Any]]
) -> None:
    parent = replay(log)
    plain = replay([*log, Event("fork", forked_from="p")])
    asked = replay([*log, Event("fork", forked_from="p", messages=messages, agent="B")])
    assert asked.agent == "B"
    assert asked.asked == (*parent.asked, *messages)
    assert asked.messages == plain.messages  # the next run_start says where it goes
    assert (plain.status, plain.answer, plain.agent) == (parent.status, parent.answer, parent.agent)
    if messages:
        ended = (asked.status, asked.answer, asked.text, asked.error, asked.ended_at)
        assert ended == (None,) * 5
        assert resumption(asked, 9) is not None
    start = Event("run_start", kept=len(asked.transcript), messages=messages)
    assert evolve(asked, start).asked == ()


def test_a_fork_of_a_fork_that_was_not_told_yet_is_asked_both() -> None:
    forks = [Event("fork", messages=[{"role": "user", "content": text}]) for text in ("one", "two")]
    forks.insert(1, Event("fork"))
    assert [m["content"] for m in replay([*old_log(), *forks]).asked] == ["one", "two"]
    cancelled = replay([*old_log(), *forks, Event("run_end", status="cancelled")])
    assert len(cancelled.asked) == 2  # a resume by hand tells them


def test_a_fork_event_is_provenance_only() -> None:
    log = [*old_log(), Event("fork", forked_from="parent")]
    assert is_complete(log)
    assert replay(log).forked_from == "parent"
    assert isinstance(decide(replay(log), 9), Wait)


def test_a_hole_in_the_seqs_is_damage_that_names_the_run_and_the_seq() -> None:
    log = [Event("run_start", messages=OPENING, seq=1), Event("message", text="x", seq=3)]
    with pytest.raises(
        LogCorruptError, match=r"run 'r' is damaged at seq 2.*next event has seq 3"
    ) as caught:
        replay(log, "r")
    assert (caught.value.run_id, caught.value.seq) == ("r", 2)
    assert verify(log, "r") == [str(caught.value)]
    with pytest.raises(LogCorruptError, match="'r'"):
        with_messages(log, "r")


def test_keeping_more_messages_than_there_are_is_damage() -> None:
    with pytest.raises(LogCorruptError, match="keeps 3 messages") as caught:
        replay([Event("run_start", messages=OPENING), Event("run_start", kept=3, messages=[])])
    assert caught.value.seq == 2


def test_a_new_segment_has_neither_an_end_nor_an_answer_that_was_told() -> None:
    ended = [
        Event("run_start", messages=OPENING),
        Event("generation", text="hi"),
        Event("message", text="hi"),
        Event("run_end", status="completed", text="hi", ended_at=9.0),
    ]
    assert (replay(ended).said, replay(ended).ended_at) == (True, 9.0)
    again = replay([*ended, Event("run_start", kept=2, messages=OPENING)])
    assert (again.said, again.ended_at, again.status, again.text) == (False, None, None, None)


def test_verify_sees_a_conversation_that_is_not_the_one_that_was_sent() -> None:
    writer = Writer()
    writer.start(OPENING)
    digest = replay(writer.events).transcript.digest()
    writer.add("generation", text="hi", digest=digest)
    writer.add("run_end", status="completed", text="hi")
    assert verify(writer.events) == []
    changed = [OPENING[0], {"role": "user", "content": "U"}]
    tampered = [writer.events[0].with_(messages=changed), *writer.events[1:]]
    assert verify(tampered) == [
        "seq 2: the conversation is not the one that this generation was sent"
    ]


def test_verify_names_what_it_skips() -> None:
    writer = Writer()
    writer.start(OPENING)
    writer.add("from_the_future")
    writer.add("tool_result", name="x", call_id="nobody", result="y")
    assert [problem.split(":")[0] for problem in verify(writer.events)] == ["seq 2", "seq 3"]
    assert replay(writer.events).unknown == 1
    unknown = ["there is no run_start, so the conversation is not known"]
    assert verify([Event("fork", forked_from="x")]) == unknown
    assert verify([Event("generation", messages=OPENING, text="hi")]) == []  # it is known
    assert verify([Event("run_start", messages=[])]) == []


@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        ({"text": "hi"}, Finish("completed", text="hi", say=True)),
        ({"text": None}, AskModel()),
        ({"text": "hi", "correction": "As JSON."}, AskModel()),
        ({"calls": [raw_call("c", "f", "{}")]}, CallTools),
        ({"text": "h", "finish_reason": "length"}, "failed"),
        ({"provider_fields": {"refusal": "no"}}, "failed"),
    ],
)
def test_what_follows_from_a_generation(fields: dict[str, Any], decision: Any) -> None:
    writer = Writer()
    writer.start(OPENING)
    writer.add("generation", **fields)
    decided = decide(replay(writer.events), 5)
    match decision:
        case str():
            assert isinstance(decided, Finish)
            assert decided.status == decision
            assert decided.fault
            assert fault_of(replay(writer.events)) == decided
        case type():
            assert isinstance(decided, decision)
        case _:
            assert decided == decision


def test_what_was_said_is_not_said_again() -> None:
    writer = Writer()
    writer.start(OPENING)
    writer.add("generation", text="hi")
    writer.add("message", text="hi")
    assert decide(replay(writer.events), 5) == Finish("completed", text="hi", say=False)
    assert resumption(replay(writer.events), 5) is None


def test_a_second_mismatch_fails_and_a_resume_asks_the_correction_again() -> None:
    writer = Writer()
    writer.start(OPENING)
    writer.add("generation", text="hi", correction="As JSON.")
    writer.add("generation", text="ho", correction="As JSON.")
    state = replay(writer.events)
    assert decide(state, 5) == Finish("failed", error="As JSON.", fault="mismatch")
    assert state.messages[-1] == {"role": "user", "content": "As JSON."}
    assert resumption(state, 5) == Reopen(kept=6)
    writer.start([], kept=6)
    assert decide(replay(writer.events), 5) == AskModel()


def test_a_conversation_that_ends_with_an_answer_is_finished_not_asked() -> None:
    log = [Event("run_start", messages=[*OPENING, {"role": "assistant", "content": "done"}])]
    assert decide(replay(log), 5) == Finish("completed", text="done", say=True)


def test_an_ended_segment_waits_for_a_new_one() -> None:
    log = [Event("run_start", messages=OPENING), Event("run_end", status="max_turns")]
    assert decide(replay(log), 5) == Wait("max_turns")
    assert resumption(replay(log), 5) == Reopen(kept=2)


def long_log(turns: int) -> list[Event]:
    writer = Writer()
    writer.start(OPENING)
    for turn in range(turns):
        writer.add("generation", calls=[raw_call(f"c{turn}", "f", "{}")], usage=Usage(1, 1, 2))
        writer.add("tool_call", name="f", call_id=f"c{turn}", args={})
        writer.add("tool_result", name="f", call_id=f"c{turn}", result="ok")
    return writer.events


@pytest.mark.slow
def test_a_run_of_ten_thousand_turns_replays_well_under_a_second() -> None:
    log = long_log(10_000)
    started = process_time()
    state = replay(log)
    assert process_time() - started < 3  # a quarter of a second on an idle machine
    assert len(state.transcript) == 20_002


def test_folding_copies_no_conversation_per_event() -> None:
    log = long_log(200)
    shared = {id(state.transcript._shared) for state in states_of(log)[1:]}
    assert len(shared) == 1


@given(wide_logs(), st.data())
def test_a_log_means_the_same_when_parts_of_it_were_written_twice(
    log: list[Event], data: st.DataObject
) -> None:
    doubled = list(log)
    for _ in range(data.draw(st.integers(0, 3))):
        end = data.draw(st.integers(1, len(doubled)))
        begin = data.draw(st.integers(0, end - 1))
        again = [Event.from_json(event.to_json()) for event in doubled[begin:end]]
        doubled = [*doubled[:end], *again, *doubled[end:]]
    assert without_repeats(doubled) == log
    assert replay(doubled) == replay(log)
    assert verify(doubled) == verify(log)


def test_what_differs_under_one_seq_was_written_by_two_and_is_damage() -> None:
    log = [event.with_(seq=seq) for seq, event in enumerate(old_log(), 1)]
    other = log[1].with_(text="another")
    for damaged in ([*log[:2], other], [*log, other], [*log[:2], other, *log[1:]]):
        assert other in without_repeats(damaged)
        with pytest.raises(LogCorruptError):
            replay(damaged)
        assert "damaged" in verify(damaged)[-1]


def test_events_without_a_seq_are_never_taken_for_repeats() -> None:
    assert without_repeats([Event("message", text="x")] * 3) == [Event("message", text="x")] * 3
    one = Event("message", text="x", seq=1)
    assert without_repeats([one, one, Event("message"), one]) == [one, Event("message")]
