"""What `agentor show` says of a log."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, MemoryStore, function_tool
from agentor.cli import console
from agentor.cli.timeline import Before, Line, call_text, duration, timeline, what_resume_would_do
from agentor.engine.events import STORED_TYPES, Event, Usage
from agentor.engine.replay import replay
from agentor.plan import plan_from_log
from agentor.testing import ScriptedModel, calls, says

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"London"}'}}
]  # fmt: skip
START = Event(
    "run_start",
    agent="Weather Agent",
    model="gpt-4o-mini",
    messages=[{"role": "user", "content": "What is the weather in London?"}],
)
ASKS = Event("generation", turn=1, calls=CALLS, finish_reason="tool_calls", usage=Usage(10, 5, 15))
CALL = Event("tool_call", name="get_weather", args={"city": "London"}, call_id="c1", turn=1)
RESULT = Event(
    "tool_result", name="get_weather", call_id="c1", result="sunny", started_at=1.0, ended_at=1.25
)
ANSWERS = Event("generation", turn=2, text="It is sunny.", finish_reason="stop")
MESSAGE = Event("message", text="It is sunny.")
END = Event("run_end", status="completed", text="It is sunny.")
WHOLE = [START, ASKS, CALL, RESULT, ANSWERS, MESSAGE, END]


def shown(*events: Event) -> list[tuple[str, str, str]]:
    return [(line.label, line.text, line.note) for line in timeline(events)]


def test_turns_are_counted_on_after_a_resume_which_begins_to_count_anew() -> None:
    again = START.with_(kept=3, messages=None)
    log = [START, ASKS, CALL, RESULT, again, ASKS, CALL, RESULT, ANSWERS]
    turns = [label for label, _, _ in shown(*log) if label.startswith("turn")]
    assert turns == ["turn 1", "turn 2", "turn 3"]
    before = functools.reduce(Before.after, log[:5], Before())
    assert [line.label for line in timeline(log[5:6], before)] == ["turn 2"]


def test_a_whole_run_reads_as_a_story() -> None:
    assert shown(*WHOLE) == [
        ("started", "Weather Agent · gpt-4o-mini", ""),
        ("user", "What is the weather in London?", ""),
        ("turn 1", "asks for get_weather", "15 tokens"),
        ("call", 'get_weather(city="London")', ""),
        ("get_weather gave", "sunny", "250 ms"),
        ("turn 2", "It is sunny.", ""),
        ("answer", "as above", ""),
        ("completed", "", ""),
    ]


def test_lines_carry_the_seq_of_their_event() -> None:
    assert [line.seq for line in timeline(WHOLE)] == [1, None, 2, 3, 4, 5, 6, 7]


def test_a_failing_tool_shows_its_error() -> None:
    failed = RESULT.with_(result="Error: RuntimeError: down", error="RuntimeError: down")
    assert shown(failed) == [("get_weather failed", "RuntimeError: down", "250 ms")]


def test_a_call_whose_outcome_nobody_knows_has_not_failed() -> None:
    unknown = RESULT.with_(result="Error: ...", error="outcome unknown")
    assert shown(unknown) == [("get_weather in doubt", "outcome unknown", "250 ms")]


def test_an_unusual_finish_is_shown() -> None:
    (line,) = timeline([ANSWERS.with_(finish_reason="length")])
    assert (line.note, line.tone) == ("length", "bad")


def test_a_resume_names_what_it_gives_up() -> None:
    again = Event("run_start", kept=2, rewound=["c1", "c2"], messages=[])
    assert shown(again) == [("resumed", "keeps 2 messages, gives up c1, c2", "")]


def test_a_fork_names_its_parent() -> None:
    assert shown(Event("fork", forked_from="abc", forked_at=4)) == [
        ("forked", "from abc at seq 4", "")
    ]


def test_a_resume_names_what_it_goes_on_with() -> None:
    again = Event("run_start", kept=1, settling=["c1"], messages=[])
    assert shown(again) == [("resumed", "keeps 1 message, goes on with c1", "")]


def test_a_queued_run_is_not_said_to_have_started() -> None:
    assert shown(START.with_(queued=True))[0] == ("queued", "Weather Agent · gpt-4o-mini", "")


ASKED = Event("approval", status="asked", name="pay", call_id="c1")


@pytest.mark.parametrize(
    ("event", "label", "text", "tone"),
    [
        (ASKED, "asks a person", "to approve pay (c1)", "plain"),
        (ASKED.with_(reason="it may have run"), "asks a person", "to approve pay (c1): it may have run", "plain"),
        (ASKED.with_(status="approved", by="ada"), "approved", "pay (c1) by ada", "good"),
        (ASKED.with_(status="approved", args={"amount": 2}), "approved", "pay (c1), as pay(amount=2)", "good"),
        (ASKED.with_(status="rejected", by="ada", reason="too much"), "rejected", "pay (c1) by ada: too much", "bad"),
        (Event("cancel", by="ada"), "cancel", "asked for by ada", "quiet"),
        (Event("cancel"), "cancel", "asked for by somebody", "quiet"),
        (Event("run_end", status="paused"), "paused", "", "plain"),
        (Event("run_end", status="cancelled", error="Cancelled."), "cancelled", "Cancelled.", "plain"),
        (Event("run_end", status="parked", error="Gave up"), "parked", "Gave up", "bad"),
    ],
)  # fmt: skip
def test_what_people_and_workers_did_is_told(
    event: Event, label: str, text: str, tone: str
) -> None:
    (line,) = timeline([event])
    assert (line.label, line.text, line.tone) == (label, text, tone)


def test_an_event_from_the_future_is_shown_as_unknown() -> None:
    assert shown(Event("teleport")) == [("teleport", "a type this version does not know", "")]


@pytest.mark.parametrize(
    ("saved", "promise"),
    [
        (WHOLE[:1], "asks the model; no tool runs again"),
        (WHOLE[:2], "goes back to the request"),
        (WHOLE[:3], "goes back to the request"),
        (WHOLE[:4], "asks the model; no tool runs again"),
        (WHOLE[:5], "writes the end"),
        (WHOLE[:6], "writes the end"),
        (WHOLE[:7], "nothing"),
        ([START, Event("run_end", status="max_turns")], "fresh turn budget"),
        ([START, Event("run_end", status="failed")], "fresh turn budget"),
        ([START, ANSWERS.with_(finish_reason="length")], "asks the model once more"),
    ],
)
def test_what_a_resume_would_do_from_each_place(saved: list[Event], promise: str) -> None:
    assert promise in what_resume_would_do(replay(saved))


PAUSED = Event("run_end", status="paused")
ASKED_FOR = Event("approval", status="asked", name="get_weather", call_id="c1")
DECIDED = ASKED_FOR.with_(status="approved", by="ada")
REJECTED = ASKED_FOR.with_(status="rejected", by="ada")
ONCE, IDEMPOTENT = CALL.with_(effect="once"), CALL.with_(effect="idempotent")


@pytest.mark.parametrize(
    ("saved", "promise"),
    [
        ([START, ASKS, ASKED_FOR, PAUSED], "nothing, until a person decides on c1"),
        ([START, ASKS, ASKED_FOR, PAUSED, DECIDED], "runs c1, asks the model"),
        ([START, ASKS, ASKED_FOR, PAUSED, REJECTED], "asks the model"),
        ([START, ASKS, ASKED_FOR, PAUSED, DECIDED, CALL], "nothing, until a person decides on c1"),
        ([START, ASKS, ONCE], "goes by what its tool declares about c1, which may have happened, then asks the model or pauses for a person"),
        ([START, ASKS, IDEMPOTENT], "runs c1, asks the model"),
        ([START, ASKS, IDEMPOTENT, Event("run_end", status="cancelled")], "runs c1, asks the model"),
        ([START, Event("run_end", status="cancelled")], "goes on from where it stood"),
        ([START, Event("run_end", status="parked")], "goes on from where it stood"),
        ([START, Event("run_end", status="budget")], "ends again at once, unless the agent has another budget"),
        ([START, Event("run_end", status="deadline")], "unless the agent has another deadline"),
    ],
)  # fmt: skip
def test_what_a_resume_would_do_with_a_run_that_settles(saved: list[Event], promise: str) -> None:
    told = what_resume_would_do(replay(saved), saved)
    assert promise in told
    assert promise != "asks the model" or told == promise


@function_tool
def look() -> str:
    """Look."""
    return "seen"


@function_tool(effect="idempotent")
def book() -> str:
    """Book."""
    return "booked"


@function_tool(effect="once")
def pay() -> str:
    """Pay."""
    return "paid"


@function_tool(needs_approval=True)
def refund() -> str:
    """Refund."""
    return "refunded"


@pytest.mark.parametrize(
    "names", [["look"], ["look", "book"], ["look", "pay"], ["look", "book", "pay", "refund"]]
)
def test_the_log_alone_tells_the_plan_that_the_agent_tells(names: list[str]) -> None:
    model = ScriptedModel.by_turn([calls(*((name, {}) for name in names)), says("done")])
    agent = Agentor("A", model=model, tools=[look, book, pay, refund], store=MemoryStore())
    result = agent.run("go", run_id="r")
    if result.pending:
        agent.approve("r", result.pending[0].call_id, by="ada")
        result = agent.resume("r")
    assert result.status == "completed"
    for length in range(1, len(result.events) + 1):
        cut, saved = f"r{length}", result.events[:length]
        for event in saved:
            agent.store.append(cut, event)  # type: ignore[union-attr]
        if length in range(3, 2 + len(names)):
            continue  # inside the commit of the generation, where no log of ours ends
        assert plan_from_log(cut, replay(saved), saved) == agent.plan(cut)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0 ms"), (0.25, "250 ms"), (3.44, "3.4 s"), (300, "5 min"), (7200, "2 h"), (1e6, "12 days")],
)  # fmt: skip
def test_durations_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_call_is_written_as_one_would_write_it() -> None:
    assert call_text("add", {"a": 1, "b": [None]}) == "add(a=1, b=[null])"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
objects = st.dictionaries(st.sampled_from(["role", "content", "function", "id"]), json_values)
bodies = st.fixed_dictionaries(
    {"type": st.sampled_from([*sorted(STORED_TYPES), "teleport"])},
    optional={
        "text": st.text(max_size=20),
        "error": st.text(max_size=5),
        "name": st.text(max_size=5),
        "args": st.dictionaries(st.text(max_size=5), json_values, max_size=3),
        "messages": st.lists(objects, max_size=3),
        "calls": st.lists(objects, max_size=3),
        "kept": st.integers(0, 3),
        "rewound": st.lists(json_values, max_size=2),
        "turn": st.integers(),
        "started_at": st.floats(0, 1e10),
        "ended_at": st.floats(0, 1e10),
        "usage": st.dictionaries(st.sampled_from(["total_tokens"]), json_values),
    },
)


@given(st.lists(bodies, max_size=4))
def test_every_log_that_can_be_read_can_be_shown(logs: list[dict[str, Any]]) -> None:
    lines = list(timeline([Event.from_dict(body) for body in logs]))
    assert len([line for line in lines if line.seq is not None]) == len(logs)


def test_model_text_is_neither_markup_nor_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_timeline([Line(1, "turn 1", "[red]a[/red] \x1b[31mb\x1b[0m :smile:\nnext")])
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("[red]a[/red] b :smile:")
    assert second.strip() == "next"
