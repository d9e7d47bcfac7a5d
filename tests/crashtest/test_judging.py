"""The alarm rings: whatever a crash could have spoilt is found in what a run leaves behind, without any process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from agentor import MemoryStore
from agentor.crashtest.evidence import Evidence
from agentor.crashtest.journal import Mark
from agentor.crashtest.judging import Reference, varying
from agentor.crashtest.noting import notes
from agentor.crashtest.orders import Outcome
from agentor.crashtest.points import Point
from agentor.crashtest.processes import Ended
from agentor.crashtest.recorded import open_calls, recorded, side_by_side
from agentor.crashtest.report import Case, Report, tool_reports
from agentor.engine.calling import RECONCILE_FAILED
from agentor.engine.effects import NO_VERDICT
from agentor.engine.events import Event, Usage
from agentor.engine.replay import Spending, replay
from tests.core.logs import logs
from tests.engine.agents import ANSWER, agent

WELL = Ended(0, False, Outcome("ended"))
KILLED = Ended(-9, False, None)
STORE = MemoryStore()
agent(STORE).run("What is the weather?", run_id="r")
LOG = STORE.load("r")
# Of a log without these nothing is asked that it could say of itself: what a test has put in it is to be found elsewhere.
UNCHECKED: dict[str, Any] = {"digest": None, "definition": None, "defined": None}


def mark(
    kind: str, tool: str = "get_weather", key: str = "k", args: str = "{}", **facts: Any
) -> Mark:
    return Mark(1, kind, 1, tool=tool, key=key, args=args, **facts)  # type: ignore[arg-type]


MARKS = (mark("start"), mark("return"))
# That the calls of the log were seen to start, whatever a test says of its own: only the keys mean anything.
SEEN = tuple(mark("start", "seen", each.key) for each in recorded(LOG, ""))
CRASH = Mark(1, "killed", 3, text="before commit 3 (tool_result get_weather)")


def evidence(
    log: Sequence[Event] = LOG,
    marks: Sequence[Mark] = MARKS,
    processes: Sequence[Ended] = (KILLED, WELL),
    **more: Any,
) -> Evidence:
    return Evidence(log, (*SEEN, *marks, CRASH), processes, **more)


def judged(case: Evidence, effect: str | None = "read", **more: Any) -> Case:
    first = Evidence(LOG, (*SEEN, *MARKS), [WELL])
    return Reference(first, {"get_weather": effect}, 60.0, **more).judge(case)


def changed(change: Callable[[Event], Event]) -> list[Event]:
    return [change(event) for event in LOG]


def test_a_run_that_is_as_it_was_is_safe() -> None:
    case = judged(evidence())
    assert (case.verdict, case.problems, case.notes) == ("safe", (), ())
    assert case.name == "before commit 3 (tool_result get_weather)"


def test_another_answer_is_found() -> None:
    log = changed(lambda event: event.with_(text="No.") if event.text == ANSWER else event)
    case = judged(evidence(log))
    assert f"the answer is 'No.', not {ANSWER!r}" in case.problems


def test_another_status_is_found_and_says_why() -> None:
    log = [*LOG[:-1], LOG[-1].with_(status="failed", error="it broke")]
    assert "the run ends failed (it broke), not completed" in judged(evidence(log)).problems


def test_other_usage_is_found() -> None:
    def doubled(event: Event) -> Event:
        return event.with_(usage=event.usage + event.usage) if event.usage else event

    assert judged(evidence(changed(doubled))).problems == ("the usage is 90 tokens, not 45",)


def test_a_run_that_does_not_tell_all_it_has_used_is_found() -> None:
    case = evidence()
    case.__dict__["state"] = replace(case.state, spending={("m", 0): Spending(1, Usage(10, 5, 15))})
    told = "the usage that the run tells is 15 tokens, and its answers took 45"
    assert told in judged(case).problems


def test_a_lost_event_is_found() -> None:
    log = [event for event in LOG if event.type != "tool_result"]
    assert judged(evidence([e.with_(seq=n) for n, e in enumerate(log, 1)])).verdict == "unsafe"


def test_an_illegal_conversation_is_found() -> None:
    """What is sent is legal by construction, so it takes a log that says itself what was sent."""
    log = [LOG[0], LOG[1].with_(messages=[{"role": "user", "content": None}]), *LOG[2:]]
    assert any(
        problem.startswith("the conversation is not legal: messages[0].content")
        for problem in judged(evidence(log)).problems
    )


def test_a_log_that_does_not_replay_as_it_was_sent_is_found() -> None:
    log = changed(lambda event: event.with_(digest="x") if event.digest else event)
    assert any("not the one that this generation" in p for p in judged(evidence(log)).problems)


def answering(text: str) -> tuple[list[Event], str]:
    """The log with another answer of the first tool call, and that call's id."""
    first = next(event for event in LOG if event.type == "tool_result")
    log = changed(lambda event: event.with_(result=text) if event == first else event)
    return [event.with_(**UNCHECKED) for event in log], first.call_id or ""


def test_another_answer_of_a_tool_that_was_not_under_way_is_found() -> None:
    log, _ = answering("fog")
    assert judged(evidence(log)).problems == (
        "get_weather answered 'fog', not 'sunny in London', after the crash; "
        "does it keep something in the process's memory?",
    )


def test_another_answer_of_a_call_that_was_under_way_is_told() -> None:
    log, call_id = answering("fog")
    case = judged(evidence(log, open_calls=frozenset({call_id})))
    assert (case.problems, case.notes) == (
        (),
        ("get_weather answered 'fog', not 'sunny in London'",),
    )


def test_a_tool_that_answers_differently_anyhow_is_not_spoken_of() -> None:
    log, call_id = answering("fog")
    found = varying(Evidence(LOG, (), [WELL]), Evidence(log, (), [WELL]))
    assert found == {call_id}
    case = judged(evidence(log), varying=found)
    assert (case.problems, case.notes) == ((), ())


@pytest.mark.parametrize(
    ("effect", "second", "verdict"),
    [
        (None, (mark("start"),), "unsafe"),
        ("read", (mark("start"), mark("return")), "safe"),
        ("transactional", (mark("start"), mark("return")), "safe"),
        ("idempotent", (mark("start"), mark("return")), "safe"),
        ("idempotent", (mark("start", key="other"),), "unsafe"),
        ("once", (mark("start"), mark("return")), "unsafe"),
        ("once", (mark("start"), mark("return", failed=True)), "unsafe"),
        ("once", (mark("start"),), "safe"),
    ],
)
def test_what_a_second_start_means_is_for_the_tool_to_say(
    effect: str | None, second: tuple[Mark, ...], verdict: str
) -> None:
    case = judged(evidence(marks=(*MARKS, *second)), effect)
    assert case.verdict == verdict
    assert [(again.starts, again.harmful) for again in case.again] == [(2, verdict == "unsafe")]


def test_a_once_tool_that_takes_effect_and_raises_has_ended_however_often_it_does() -> None:
    failing = (mark("start"), mark("return", failed=True))
    first = Evidence(LOG, (*SEEN, *failing), [WELL])
    case = Reference(first, {"get_weather": "once"}, 60.0).judge(evidence(marks=failing * 2))
    assert case.problems == (
        "get_weather {} came to its end twice, although it is declared as once: it failed, and may have taken effect "
        "before",
    )
    assert [again.harmful for again in case.again] == [True]


# The answers to the second batch, first that of call_2.
BOTH = sorted(LOG[7:9], key=lambda event: event.call_id or "")


def given_up(answered: int) -> list[Event]:
    """The log of a run whose second batch was given up with so many answers, and asked for again."""
    kept = len(replay(LOG[:4]).messages)
    given_up = Event("run_start", messages=[], kept=kept)
    log = [*LOG[:7], *BOTH[:answered], given_up, *LOG[4:]]
    return [event.with_(seq=n, **UNCHECKED) for n, event in enumerate(log, 1)]


@pytest.mark.parametrize(("answered", "verdict"), [(0, "safe"), (1, "unsafe")])
def test_a_transactional_call_given_up_is_harmed_if_its_result_was_committed(
    answered: int, verdict: str
) -> None:
    """Nothing of it is there without its result; with it, all of it is there twice."""
    log = given_up(answered)
    paris = [each.key for each in recorded(log, "") if "Paris" in each.asked.args]
    started = [mark("start", args='{"city":"Paris"}', key=key) for key in (*paris, "lost")[:2]]
    case = judged(evidence(log, marks=(*MARKS, *started)), "transactional")
    assert case.verdict == verdict
    assert [again.harmful for again in case.again] == [verdict == "unsafe"]
    if verdict == "unsafe":
        assert "was committed twice" in case.problems[0]


def test_a_result_of_a_call_that_no_process_has_started_is_found() -> None:
    """Only a reconcile can give one: it says that the call has happened, and nobody will make it any more."""
    born = f"r.{LOG[0].nonce}"
    weather = (
        {"key": f"{born}:2:0", "args": '{"city":"London"}'},
        {"key": f"{born}:5:0", "args": "{}"},
    )
    marks = tuple(mark("start", **facts) for facts in weather)
    reference = Reference(
        Evidence(LOG, (*SEEN, *marks), [WELL], run_id="r"), {"get_weather": "once"}, 60.0
    )
    assert reference.judge(evidence(marks=marks, run_id="r")).verdict == "safe"
    case = reference.judge(evidence(marks=marks[1:], run_id="r"))
    assert (case.never_ran, case.problems) == (
        ("get_weather",),
        ('reconcile said that a call had happened which never ran: get_weather {"city":"London"}',),
    )


@pytest.mark.parametrize("in_first", [True, False])
@pytest.mark.parametrize("effect", [None, "read", "idempotent", "transactional", "once"])
def test_a_result_of_a_call_that_was_never_seen_to_start_is_not_safe(
    effect: str | None, in_first: bool
) -> None:
    """Nobody can say how often it ran. Only a once tool has a reconcile, which may have said so of a killed one."""
    hidden = [seen for seen in SEEN if not (seen.key or "").endswith(":2:0")]
    first = Evidence(LOG, [*(hidden if in_first else SEEN), *MARKS], [WELL])
    case = Reference(first, {"get_weather": effect}, 60.0).judge(
        Evidence(LOG, (*hidden, *MARKS, CRASH), [KILLED, WELL])
    )
    (problem,) = case.problems
    assert case.verdict == "unsafe"
    if effect == "once" and not in_first:
        assert (case.never_ran, case.unseen) == (("get_weather",), ())
    else:
        assert problem.startswith('get_weather {"city":"London"} has a result, and nobody saw it')
        assert (case.never_ran, case.unseen) == ((), ("get_weather",))
        (tool,) = tool_reports({"get_weather": effect}, {}, [case])
        assert (tool.verdict, tool.unseen_in, tool.mend) == ("unsafe", 1, None)


def failing(call_id: str, error: str) -> list[Event]:
    """The log with a failure for the answer to a call."""
    told = {"error": error, "result": f"Error: {error}"}

    def fail(event: Event) -> Event:
        is_meant = event.type == "tool_result" and event.call_id == call_id
        return event.with_(**told) if is_meant else event

    return [event.with_(**UNCHECKED) for event in changed(fail)]


@pytest.mark.parametrize("varying", [frozenset(), frozenset({"call_1"})])
@pytest.mark.parametrize("open_calls", [frozenset(), frozenset({"call_1"})])
def test_a_failure_in_place_of_an_answer_is_found_also_of_a_call_that_was_under_way_or_varies(
    varying: frozenset[str], open_calls: frozenset[str]
) -> None:
    case = judged(
        evidence(failing("call_1", "OSError: stale"), open_calls=open_calls), varying=varying
    )
    assert case.problems == (
        "get_weather fails: it answered 'Error: OSError: stale', not 'sunny in London'",
    )


def test_not_to_know_is_no_failure() -> None:
    log = failing("call_1", "outcome unknown")
    case = judged(evidence(log, open_calls=frozenset({"call_1"})), varying=frozenset({"call_1"}))
    assert (case.verdict, case.problems) == ("in doubt", ())


@pytest.mark.parametrize(("under_way", "verdict"), [((), "unsafe"), (("call_1",), "safe")])
def test_a_failure_that_is_gone_is_told_and_held_against_what_was_answered_already(
    under_way: tuple[str, ...], verdict: str
) -> None:
    marks = (mark("start", key=f".{LOG[0].nonce}:2:0"), mark("return"))
    first = Evidence(failing("call_1", "OSError: busy"), (*SEEN, *marks), [WELL])
    reference = Reference(first, {}, 60.0, varying=frozenset({"call_1"}))
    case = reference.judge(evidence(marks=marks, open_calls=frozenset(under_way)))
    assert case.verdict == verdict
    assert any("get_weather no longer fails" in told for told in (*case.problems, *case.notes))


def test_a_call_with_nothing_saved_is_found() -> None:
    case = judged(evidence([], processes=(KILLED, Ended(0, False, Outcome("no run")))))
    assert (case.status, case.verdict) == ("no run", "unsafe")


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (Ended(-9, True, None), "resumed, the process did not end within 60 s"),
        (Ended(3, False, None), "resumed, the process ended with exit code 3 by itself"),
        (
            Ended(0, False, Outcome("raised", "ValueError: no")),
            "resumed, it failed: ValueError: no",
        ),
    ],
)
def test_a_resume_that_does_not_come_to_its_end_is_found(last: Ended, told: str) -> None:
    assert judged(evidence(processes=(KILLED, last))).problems == (told,)


ELSEWHERE = [
    (
        Ended(-9, False, None),
        "the process was ended by SIGKILL, and not by the crash test: if memory",
    ),
    (Ended(-6, False, None), "the process was ended by SIGABRT, and not by the crash test ("),
    (Ended(-40, False, None), "the process was ended by signal 40, and not by the crash test ("),
    (Ended(7, False, None), "the process ended with exit code 7 by itself ("),
    (Ended(0, False, Outcome("raised", "ValueError: no")), "it failed: ValueError: no ("),
    (Ended(-9, True, None), "the process did not end within 60 s ("),
]


@pytest.mark.parametrize(("ended", "told"), ELSEWHERE)
def test_a_process_that_ends_elsewhere_than_at_its_point_is_a_problem_that_says_where_and_how(
    ended: Ended, told: str
) -> None:
    point = Point("before commit", 3)
    case = judged(Evidence(LOG, MARKS, [replace(ended, missed=point)]))
    (problem,) = case.problems
    assert problem.startswith(told)
    assert problem.endswith(" (it was to be killed before commit 3)")
    assert case.verdict == "unsafe"


def test_only_a_good_end_outlives_a_point() -> None:
    point = Point("before commit", 3)
    assert Evidence(LOG, MARKS, [replace(WELL, missed=point)]).outlived == point
    assert Evidence(LOG, MARKS, [Ended(3, False, None, point)]).outlived is None
    assert evidence().outlived is None


def test_every_planned_point_is_a_case_or_told_as_outlived() -> None:
    def planned(*ends: Ended, **more: Any) -> Evidence:
        return evidence(processes=ends, **more)

    first, second = Point("after commit", 2), Point("before commit", 1)
    runs = [
        planned(KILLED, WELL),
        Evidence(LOG, (*SEEN, *MARKS), [replace(WELL, missed=first)]),
        planned(KILLED, replace(WELL, missed=second)),
        planned(KILLED, Ended(-9, False, None, second)),
        Evidence(LOG, (*SEEN, *MARKS, *MARKS), [replace(WELL, missed=first)]),  # and pays twice
    ]
    reference = Reference(Evidence(LOG, (*SEEN, *MARKS), [WELL]), {"get_weather": None}, 60.0)
    cases, outlived = reference.judge_all(runs)
    assert [(case.points, case.verdict) for case in cases] == [
        ("before commit 3", "safe"),
        ("before commit 3, then not before commit 1", "unsafe"),
        ("not after commit 2", "unsafe"),
    ]
    assert outlived == ("after commit 2", "before commit 3, then before commit 1")
    report = Report("a:b", "A", "completed", "", {}, (), cases, outlived=outlived)
    assert report.to_dict()["outlived"] == list(outlived)
    assert "the run ended before it came there: after commit 2; before commit 3, then" in str(
        report
    )


def test_a_doubt_excuses_only_what_follows_from_it() -> None:
    """The model's words are replayed, so an answer that differs has another reason; a parked run has no answer."""
    doubt = LOG[3].with_(error="outcome unknown", result="Error: not known")
    log = [*LOG[:3], doubt, *LOG[4:]]
    other = [e.with_(text="No.") if e.text == ANSWER else e for e in log]
    reference = evidence([e.with_(**UNCHECKED) for e in other], open_calls=frozenset({"call_1"}))
    assert judged(reference).verdict == "unsafe"
    assert judged(reference, live=True).verdict == "in doubt"


# What is read off a log ---------------------------------------------------------------------------------------------


def test_tokens_of_a_turn_given_up_are_not_of_the_conversation() -> None:
    batch_open = LOG[:3]
    assert batch_open[-1].type == "tool_call"
    given_up = Event("run_start", seq=4, messages=[], kept=len(replay(batch_open).messages))
    before, after = evidence(batch_open), evidence([*batch_open, given_up])
    assert before.usage_of_the_conversation() == LOG[1].usage
    assert after.usage_of_the_conversation() == Usage()
    assert open_calls(batch_open) == {"call_1"}
    assert open_calls([*batch_open, given_up]) == set()


@given(logs())
def test_the_conversation_never_costs_more_than_the_run(log: list[Event]) -> None:
    found = evidence(log)
    assert found.usage_of_the_conversation().total_tokens <= found.state.usage.total_tokens


@given(logs())
def test_calls_side_by_side_are_those_that_share_a_generation(log: list[Event]) -> None:
    if not any(event.type == "generation" and len(event.calls or ()) > 1 for event in log):
        assert side_by_side(log) == set()
    assert side_by_side(LOG) == {"call_2", "call_3"}


@given(logs())
def test_no_two_results_answer_one_call(log: list[Event]) -> None:
    keys = [each.key for each in recorded(log, "r")]
    assert len(keys) == len(set(keys)) <= sum(event.type == "tool_result" for event in log)


def test_an_identical_case_under_another_name_is_judged_alike() -> None:
    assert judged(replace(evidence(), marks=MARKS)).name == "not killed"


# What is told, and what would be told twice -----------------------------------------------------------------------


def test_a_call_in_doubt_is_not_said_to_answer_or_to_fail_otherwise() -> None:
    log = failing("call_1", "outcome unknown")
    case = evidence(log, open_calls=frozenset({"call_1"}))
    failed_before = Evidence(failing("call_1", "OSError: busy"), (*SEEN, *MARKS), [WELL])
    for first in (Evidence(LOG, (*SEEN, *MARKS), [WELL]), failed_before):
        found = Reference(first, {"get_weather": "once"}, 60.0).judge(case)
        assert (found.in_doubt, found.problems, found.notes) == (("get_weather",), (), ())


def test_a_run_that_is_parked_in_doubt_is_told_as_in_doubt_and_no_more() -> None:
    reason = "it was started before and may have taken effect"
    asked = Event("approval", call_id="call_1", name="get_weather", status="asked", reason=reason)
    paused = Event("run_end", status="paused", seq=5)
    case = judged(evidence([*LOG[:3], asked.with_(seq=4), paused]), "once")
    assert (case.status, case.verdict) == ("paused", "in doubt")
    assert (case.in_doubt, case.notes) == (("get_weather",), ())


def asked_of(call_id: str, seq: int, reason: str | None = None) -> list[Event]:
    """What a run ends with that waits for a person."""
    asked = Event("approval", call_id=call_id, status="asked", reason=reason, seq=seq)
    return [asked, Event("run_end", status="paused", seq=seq + 1)]


def test_a_run_that_waits_for_another_reason_is_not_excused_by_a_doubt_before() -> None:
    log = [*failing("call_1", "outcome unknown")[:7], *asked_of("call_3", 8)]
    case = judged(evidence(log), "once")
    assert case.in_doubt == ("get_weather",)
    assert (case.verdict, case.problems[0]) == ("unsafe", "the run ends paused, not completed")


def test_a_run_that_waits_earlier_in_doubt_is_no_other_than_one_that_waits_for_consent() -> None:
    first = Evidence([*LOG[:7], *asked_of("call_3", 8)], (*SEEN, *MARKS), [WELL])
    doubt = asked_of("call_1", 4, "it was started before and may have taken effect")
    case = Reference(first, {"get_weather": "once"}, 60.0).judge(evidence([*LOG[:3], *doubt]))
    assert (case.verdict, case.problems) == ("in doubt", ())


def test_one_message_and_one_token_are_not_told_as_several() -> None:
    log = [LOG[0].with_(messages=[{"role": "user", "content": "Hi."}])]
    assert "the conversation has 1 message, not 8" in judged(evidence(log)).problems


def tool_result(name: str, error: str | None) -> Event:
    return Event("tool_result", name=name, call_id=name, error=error, result=f"{error}")


def told_of(*results: Event, keyless: Sequence[str] = (), starts: bool = True) -> list[str]:
    log = [event.with_(seq=n) for n, event in enumerate([LOG[0], *results], 1)]
    first = Evidence(log, MARKS if starts else (), [WELL])
    outcome = Outcome("ended", keyless=list(keyless))
    return list(notes(first, Reference(first, {}, 60.0), outcome))


def test_a_tool_that_fails_without_a_crash_is_named_with_its_error() -> None:
    told = told_of(tool_result("pay", "no such table: orders"), tool_result("look", None))
    assert told == ["pay fails without a crash, too: it answered 'no such table: orders'"]
    assert told_of(tool_result("pay", "outcome unknown"), tool_result("ask", "not approved")) == []


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ((), "No tool was called"),
        ((tool_result("nosuch", "no such tool"),), "for no call could be made as the model asked"),
    ],
)
def test_that_nothing_was_started_says_whether_anything_was_asked_for(
    results: tuple[Event, ...], why: str
) -> None:
    *_, last = told_of(*results, starts=False)
    assert why in last


def test_an_idempotent_tool_that_cannot_pass_its_key_on_is_told() -> None:
    (told,) = told_of(keyless=["pay"])
    assert "takes no ctx, so it cannot pass ctx.idempotency_key on" in told


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("OSError: no (such) host", "in doubt"),
        (f"TypeError: {NO_VERDICT}True", "unsafe"),
    ],
)
def test_a_reconcile_that_is_broken_is_named_and_one_that_answers_no_verdict_is_a_problem(
    reason: str, verdict: str
) -> None:
    log = failing("call_1", "outcome unknown")
    told = f"Error: not known{RECONCILE_FAILED.format(reason)}"
    log = [e.with_(result=told) if e.error == "outcome unknown" else e for e in log]
    case = judged(evidence(log, open_calls=frozenset({"call_1"})), "once")
    assert (case.verdict, case.reconcile_failed) == (verdict, ("get_weather",))
    named = {"unsafe": case.problems, "in doubt": case.notes}[verdict]
    assert len(named) == 1
    assert named[0].startswith("get_weather: ")
    assert reason in named[0]
