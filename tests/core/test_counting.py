"""What the fold counts is what one gets by counting the events of the log by hand."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import given

from agentor.engine.batch import NO_FAILURES
from agentor.engine.events import Event, RunStatus, Usage
from agentor.engine.replay import CUT_REASONS, Spending, replay, verify, with_messages
from tests.core.logs import raw_call
from tests.core.wide_logs import wide_logs

T = TypeVar("T")


def of(event_type: str, log: Iterable[Event]) -> list[Event]:
    return [event for event in log if event.type == event_type]


def since_it_was_asked(segment: list[Event]) -> list[Event]:
    """What follows the last fork with an input: what came before is no answer to that."""
    asked = [at for at, event in enumerate(segment) if event.type == "fork" and event.messages]
    return segment[asked[-1] + 1 :] if asked else segment


def last(values: Iterable[T | None]) -> T | None:
    """The last that is given."""
    return next((value for value in reversed(list(values)) if value is not None), None)


def segment_of(log: list[Event]) -> list[Event]:
    """What follows the last run_start."""
    return log[max(i for i, event in enumerate(log) if event.type == "run_start") + 1 :]


def test_every_event_is_one_seq_whether_it_means_something_or_not() -> None:
    asked = Event("generation", calls=[raw_call("a", "f", "{}")])
    closed = [
        *(Event(name, call_id="nobody") for name in ("approval", "tool_call", "tool_result")),
        *(Event(name) for name in ("stop", "stop", "cancel", "fork", "message", "unheard_of")),
    ]
    opened = [
        Event("approval", call_id="nobody"),
        Event("approval", call_id="a", status="asked"),
        Event("approval", call_id="a", status="settled"),
        *(Event("fork", forked_from=run_id) for run_id in ("p", "q")),
        *(Event(name, call_id="a") for name in ("tool_call", "tool_call", "tool_result")),
    ]
    start = Event("run_start", messages=[{"role": "user", "content": "u"}])
    log = [start, *closed, start, asked, *opened, Event("run_end")]
    assert [replay(log[:length]).seq for length in range(len(log) + 1)] == [*range(len(log) + 1)]
    folded = [replay(log[:length]) for length in (1, 4, 5, 6, 11, 15, 16, len(log))]
    attempts = [(state.attempts, state.attempting) for state in folded]
    begun, none = (1, True), (0, False)
    assert attempts == [begun, begun, none, none, begun, begun, none, none]


@given(wide_logs())
def test_starts_are_counted_and_the_last_that_names_something_names_it(log: list[Event]) -> None:
    state, starts = replay(log), of("run_start", log)
    begun = [event for event in starts if not event.queued]
    assert (state.seq, state.segments) == (len(log), len(starts))
    assert state.started_at == next((e.started_at for e in begun if e.started_at), None)
    named = [event for event in log if event.type in ("run_start", "fork")]
    assert state.agent == last(event.agent for event in named)
    speakers = [event for event in log if event.type in ("run_start", "generation")]
    assert state.model == last(event.model for event in speakers)
    assert state.forked_from == last(event.forked_from for event in of("fork", log))
    assert state.definition == starts[-1].definition
    told = {event.definition for event in starts if event.defined is not None}
    assert state.definitions == told - {None}
    assert state.has_start


@given(wide_logs())
def test_attempts_are_the_starts_that_failed_or_died_since_an_end_in_good_order(
    log: list[Event],
) -> None:
    good = [i for i, event in enumerate(log, start=1) if is_good_order(event)]
    since = log[good[-1] if good else 0 :]
    marks = [event for event in since if event.type in ("run_start", "stop", "run_end")]
    begun = [event.type == "run_start" and not event.queued for event in marks]
    stopped = [event.type == "stop" for event in [*marks[1:], Event("message")]][: len(marks)]
    attempts = [b and not s for b, s in zip(begun, stopped, strict=True)]
    assert replay(log).attempts == sum(attempts)
    assert replay(log).attempting == (begun[-1:] == [True])


def is_good_order(event: Event) -> bool:
    is_end = event.type == "run_end" and event.status not in (None, "failed")
    return is_end or event.type == "fork"


@pytest.mark.parametrize("status", typing.get_args(RunStatus))
def test_of_all_ends_only_a_failure_counts_against_a_run(status: str) -> None:
    start = Event("run_start", messages=[{"role": "user", "content": "u"}])
    failed = [start, Event("run_end", status="failed")] * 3
    state = replay([*failed, start, Event("run_end", status=status)])
    assert (state.attempts, state.attempting) == (4 if status == "failed" else 0, False)
    assert replay([*failed, start, Event("run_end", status=status), start]).attempting


@given(wide_logs())
def test_a_segment_counts_its_turns_and_has_the_status_of_its_last_end(log: list[Event]) -> None:
    state, segment = replay(log), segment_of(log)
    assert state.turn == len(of("generation", segment))
    ended = of("run_end", since_it_was_asked(segment))
    facts = (state.status, state.text, state.error, state.ended_at)
    if ended:
        end = ended[-1]
        assert facts == (end.status or "failed", end.text, end.error, end.ended_at)
    else:
        assert facts == (None,) * 4
    said = [event.type for event in segment if event.type in ("generation", "message")]
    assert state.said == (said[-1:] == ["message"])


@given(wide_logs())
def test_answers_that_will_not_do_are_counted_in_their_segment(log: list[Event]) -> None:
    state, generations = replay(log), of("generation", segment_of(log))
    answers = [e for e in generations if not e.calls and e.finish_reason not in CUT_REASONS]
    assert state.mismatches == sum(bool(event.correction) for event in answers)
    assert state.empty_answers == sum(not (e.text or e.correction) for e in answers)
    generations = of("generation", since_it_was_asked(segment_of(log)))
    last_one = generations[-1] if generations and not generations[-1].calls else None
    assert (state.answer is None) == (last_one is None)
    if state.answer is not None and last_one is not None:
        is_cut = last_one.finish_reason in CUT_REASONS
        assert state.answer.text == (last_one.text or "")
        assert state.answer.cut == (last_one.finish_reason if is_cut else None)
        assert state.answer.mismatch == last_one.correction


@given(wide_logs())
def test_tokens_are_the_sum_of_all_generations_and_of_those_of_each_model_and_size(
    log: list[Event],
) -> None:
    state, told = replay(log), [event for event in log if event.usage is not None]
    assert state.usage == sum((event.usage for event in told if event.usage), Usage())
    calls, sums = Counter[Any](), dict[Any, Usage]()
    for event in told:
        assert event.usage is not None
        key = event.model or "", event.usage.input_tokens // 1000
        calls[key] += 1
        sums[key] = sums.get(key, Usage()) + event.usage
    assert state.spending == {key: Spending(calls[key], sums[key]) for key in sums}


@given(wide_logs())
def test_failures_are_the_results_with_an_error_of_the_tools_own(log: list[Event]) -> None:
    state = replay(log)
    failed = [e for e in of("tool_result", log) if e.error not in (None, *NO_FAILURES)]
    counts = Counter(event.name for event in failed)
    assert state.failures == counts
    for limit in (1, 2, 3):
        assert state.withdrawn(limit) == {n for n, count in counts.items() if count >= limit}


def test_a_failure_counts_wherever_it_stands_once_for_each_result() -> None:
    asked = Event("generation", calls=[raw_call(i, "f", "{}") for i in "ab"])
    failed = Event("tool_result", name="f", call_id="a", error="E: no")
    log = [failed, asked, failed.with_(call_id="nobody"), failed, failed.with_(call_id="b")]
    counts = [replay(log[:length]).failures for length in range(len(log) + 1)]
    assert counts == [{}, {"f": 1}, {"f": 1}, {"f": 2}, {"f": 3}, {"f": 4}]
    for harmless in (*({"error": error} for error in NO_FAILURES), {"error": None}, {"name": None}):
        assert replay([*log, failed.with_(**harmless)]).failures == {"f": 4}


@given(wide_logs())
def test_verify_counts_the_strangers_and_finds_nothing_else(log: list[Event]) -> None:
    filled = [  # with the digest of what was sent, and as nobody's in particular
        event.with_(digest=replay(log[:i]).transcript.digest())
        if event.type == "generation"
        else event.with_(definition=None, defined=None)
        for i, event in enumerate(log)
    ]
    state, sent = with_messages(filled)
    assert state == replay(filled)
    of_ours = [new.with_(definition=e.definition) for new, e in zip(filled, log, strict=True)]
    assert set(verify(filled)) <= set(verify(of_ours))  # which may deny each other's parts
    strangers = [event for event in log if event.type == "from_the_future"]
    assert state.unknown == len(strangers)
    problems = verify(filled)
    for event in strangers:
        kept = f"seq {event.seq}: an event of the unknown type 'from_the_future' (kept, skipped)"
        assert kept in problems
    results = [problem for problem in problems if "that no call asked for (skipped)" in problem]
    assert len(problems) == len(strangers) + len(results)
    assert all(event.messages for event in of("generation", sent))
