"""What one part of a log says and another part denies is told; a log that is right is not accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentor.engine import strict_json
from agentor.engine.batch import REJECTED
from agentor.engine.events import MOST, Event, Usage
from agentor.engine.replay import replay, verify
from tests.core.logs import Writer, old_log, raw_call

OPENING = [{"role": "user", "content": "go"}]
DEFINED = {"tools": {"look": {"description": "Look."}, "pay": {"effect": "once"}}}
CALLS = [raw_call("c1", "look", '{"n": 1}'), raw_call("c2", "pay", '{"n": 2}')]

Log = list[Event]


class Ours(Writer):
    """Writes a log as this engine does."""

    def begin(self) -> None:
        digest = strict_json.digest(DEFINED)
        self.start(OPENING, definition=digest, defined=DEFINED)

    def says(self, **fields: Any) -> None:
        digest = replay(self.events).transcript.digest()
        self.add("generation", digest=digest, usage=Usage(10, 5, 15), **fields)

    def calls(self, number: int, args: dict[str, Any] | None = None, **fields: Any) -> None:
        name = ("look", "pay")[number - 1]
        given = {"n": number} if args is None else args
        self.add("tool_call", name=name, call_id=f"c{number}", args=given, **fields)

    def answers(self, number: int, **fields: Any) -> None:
        told = {"name": ("look", "pay")[number - 1], "call_id": f"c{number}", "result": "ok"}
        self.add("tool_result", **(told | fields))

    def ends(self, text: str | None = "done", status: str = "completed") -> None:
        spent = replay(self.events).usage
        self.add("run_end", status=status, text=text, usage=spent)


def right() -> Ours:
    """run_start, generation, two starts, two results, generation, message, run_end: seq 1 to 9."""
    log = Ours()
    log.begin()
    log.says(calls=CALLS)
    log.calls(1)
    log.calls(2, effect="once")
    log.answers(2)
    log.answers(1)
    log.says(text="done")
    log.add("message", text="done")
    log.ends()
    return log


def changed(seq: int, **fields: Any) -> Callable[[Log], Log]:
    return lambda log: [*log[: seq - 1], log[seq - 1].with_(**fields), *log[seq:]]


def without(seq: int) -> Callable[[Log], Log]:
    """The event is taken out, and the rest numbered anew."""
    return lambda log: [
        e.with_(seq=at) for at, e in enumerate([*log[: seq - 1], *log[seq:]], start=1)
    ]


def then(*more: Event) -> Callable[[Log], Log]:
    return lambda log: [*log, *more]


CHANGES: dict[str, tuple[Callable[[Log], Log], list[str]]] = {
    "the arguments of a start": (
        changed(3, args={"n": 999}),
        ["seq 3: call 'c1' is started with other arguments than it was given"],
    ),
    "one for true": (
        changed(3, args={"n": True}),
        ["seq 3: call 'c1' is started with other arguments than it was given"],
    ),
    "no arguments": (
        changed(3, args=None),
        ["seq 3: call 'c1' is started with other arguments than it was given"],
    ),
    "the name of a start": (
        changed(3, name="xook"),
        ["seq 3: a start of 'xook' as call 'c1', which is of 'look'"],
    ),
    "the id of a start": (
        changed(3, call_id="zzz"),
        [
            "seq 3: a start of call 'zzz', which the generation did not ask for (skipped)",
            "seq 6: a result of call 'c1', which was not started",
        ],
    ),
    "the effect of a start": (
        changed(4, effect=None),
        ["seq 4: call 'c2' is started with another effect than its tool declares"],
    ),
    "an effect that the tool does not declare": (
        changed(3, effect="once"),
        ["seq 3: call 'c1' is started with another effect than its tool declares"],
    ),
    "the name of a result": (
        changed(5, name="xay"),
        ["seq 5: a result of 'xay' as call 'c2', which is of 'pay'"],
    ),
    "a start taken out": (without(3), ["seq 5: a result of call 'c1', which was not started"]),
    "the digest of a generation": (
        changed(2, digest=None),
        ["seq 2: a generation without its digest: what it was sent cannot be checked"],
    ),
    "the usage of a generation": (
        changed(2, usage=Usage(10, 5, 99999)),
        ["seq 9: the usage is not the sum of the generations (100,014 tokens in all)"],
    ),
    "the usage of the end": (
        changed(9, usage=Usage(1, 1, 2)),
        ["seq 9: the usage is not the sum of the generations (30 tokens in all)"],
    ),
    "the status of the end": (
        changed(9, status="failed"),
        ["seq 9: the status is 'failed', and yet there is an answer"],
    ),
    "the text of the end": (
        changed(9, text="dome"),
        ["seq 9: the text is not that of the answer before it"],
    ),
    "the text of the message": (
        changed(8, text="dome"),
        ["seq 8: the text is not that of the answer before it"],
    ),
    "the text of the answer": (
        changed(7, text="dome"),
        [f"seq {seq}: the text is not that of the answer before it" for seq in (8, 9)],
    ),
    "no text of the end": (
        changed(9, text=None),
        ["seq 9: the text is not that of the answer before it"],
    ),
    "an answer that was cut off": (
        changed(7, finish_reason="length"),
        [f"seq {seq}: there is no answer before this" for seq in (8, 9)],
    ),
    "a tool of the agent": (
        changed(1, defined={"tools": {"pax": {"effect": "once"}}}),
        [
            "seq 1: what is said of the agent (`defined`) does not fit its digest (`definition`)",
            "seq 4: call 'c2' is started with another effect than its tool declares",
        ],
    ),
    "a start that nobody asked for": (
        then(Event("tool_call", name="pay", call_id="c2", args={"n": 2})),
        ["seq 10: a start of 'pay' that no generation asked for (skipped)"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_part_of_the_log_denies_is_told(change: str) -> None:
    spoilt, told = CHANGES[change]
    log = right().events
    assert verify(log) == []
    assert verify(spoilt(log)) == told


def test_an_id_that_no_call_has_is_told_of_a_result() -> None:
    log = right().events[:4]
    stray = Event("tool_result", name="pay", call_id="zzz", result="ok")
    assert verify([*log, stray]) == [
        "seq 5: a result of call 'zzz', which the generation did not ask for (skipped)"
    ]


def test_an_end_while_calls_are_open_is_no_completed_run() -> None:
    log = right()
    log.events = log.events[:4]
    log.ends()
    assert verify(log.events) == ["seq 5: there is no answer before this"]


@pytest.mark.parametrize("status", ["max_turns", "failed", "cancelled", "paused", "parked"])
def test_an_end_without_an_answer_has_none_before_it(status: str) -> None:
    log = right()
    log.events = log.events[:6]
    log.ends(text=None, status=status)
    assert verify(log.events) == []


def test_calls_that_were_not_started_may_have_results() -> None:
    refused = Ours()
    refused.begin()
    refused.says(calls=CALLS)
    refused.calls(1, error="unknown tool 'look'")
    refused.answers(1, result="Error", error="unknown tool 'look'")
    refused.add("approval", call_id="c2", name="pay", status="asked")
    refused.add("approval", call_id="c2", status="rejected")
    refused.answers(2, result="Error", error=REJECTED)
    assert verify(refused.events) == []


def test_a_call_that_the_parent_of_a_fork_may_start_may_have_a_result_in_the_fork() -> None:
    fork = Ours()
    fork.begin()
    fork.says(calls=CALLS)
    fork.add("fork", forked_from="parent")
    fork.answers(2)
    assert verify(fork.events) == []


def test_a_call_is_started_with_the_arguments_that_a_person_gave() -> None:
    log = Ours()
    log.begin()
    log.says(calls=CALLS)
    log.calls(1)
    log.add("approval", call_id="c2", name="pay", status="asked")
    log.add("approval", call_id="c2", status="approved", args={"n": 7})
    asked = len(log.events)
    log.calls(2, args={"n": 7}, effect="once")
    assert verify(log.events) == []
    assert verify(changed(asked + 1, args={"n": 2})(log.events)) == [
        f"seq {asked + 1}: call 'c2' is started with other arguments than it was given"
    ]


def test_an_answer_of_an_earlier_segment_may_be_that_of_a_run_that_is_gone_on_with() -> None:
    log = right()
    log.events = log.events[:7]
    log.ends(text=None, status="cancelled")
    kept = len(replay(log.events).transcript)
    log.start([], kept=kept, definition=strict_json.digest(DEFINED))
    log.add("message", text="done")
    log.ends()
    assert verify(log.events) == []


def test_an_answer_of_no_words_has_no_text() -> None:
    log = Ours()
    log.begin()
    log.says()
    log.says()
    log.add("message", text="")
    log.ends(text="")
    assert verify(log.events) == []


def test_a_sum_that_is_larger_than_what_is_recorded_is_no_contradiction() -> None:
    log = right()
    log.events = log.events[:8]
    log.events[1] = log.events[1].with_(usage=Usage(MOST, MOST, MOST))
    log.ends()
    read = [Event.from_json(event.to_json()) for event in log.events]
    assert verify(read) == []


@pytest.mark.parametrize("defined", [None, {"tools": []}, {"tools": {"pay": "damaged"}}, {}])
def test_of_an_agent_of_which_the_log_says_nothing_to_go_by_no_effect_is_asked(
    defined: dict[str, Any] | None,
) -> None:
    digest = strict_json.digest(DEFINED if defined is None else defined)
    log = changed(1, defined=defined, definition=digest)(right().events)
    without_effects = [event.with_(effect=None) for event in log]
    assert verify(without_effects) == []


def test_a_generation_of_which_no_usage_is_known_counts_nothing() -> None:
    log = right()
    log.events = changed(2, usage=None)(log.events[:8])
    log.ends()
    assert verify(log.events) == []
    assert verify(changed(9, usage=None)(log.events)) == []


def test_of_what_others_have_written_nothing_is_asked() -> None:
    assert verify(old_log()) == []
    log = [event.with_(definition=None, defined=None) for event in right().events]
    for spoilt, _ in CHANGES.values():
        told = [each for each in verify(spoilt(log)) if "`defined`" not in each]
        assert told == []


def test_the_calls_of_an_older_generation_are_named_as_the_model_named_them() -> None:
    older = [Event("run_start", messages=OPENING, definition="d"), old_log()[1]]
    stray = Event("tool_call", name="other", call_id="c1", args={})
    assert [each for each in verify([*older, stray]) if "start" in each] == []
