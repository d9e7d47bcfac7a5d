"""Logs of everything that the fold gives a meaning to, in any order: no engine would write most of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from agentor.engine.events import Event, Usage
from agentor.engine.replay import replay
from agentor.engine.request import Call
from tests.core.logs import RAW_CALLS, SYSTEM, TEXTS, USER, Writer


@st.composite
def wide_logs(draw: st.DrawFn) -> list[Event]:
    """Rewound and settled batches, people who consent or refuse, ends of every kind, strangers, queues, definitions."""
    writer = Writer()
    opening = [*draw(st.lists(SYSTEM, max_size=1)), draw(USER)]
    writer.start(opening, **draw(START_FIELDS))
    for _ in range(draw(st.integers(0, 6))):
        batch = replay(writer.events).batch
        step = draw(st.sampled_from(OPEN_STEPS if batch else CLOSED_STEPS))
        if batch is not None and step == "answers":
            _results(draw, writer, batch.missing)
        elif batch is not None and step == "consent":
            _consent(draw, writer, batch.calls)
        else:
            _STEPS[step](draw, writer)
    return writer.events


CLOSED_STEPS = (*("tools", "tools", "tools", "answer", "resume"), *("fork", "end", "strange"))
OPEN_STEPS = (
    *("answers", "answers", "consent", "settle"),
    *("answer", "resume", "fork", "end", "strange"),
)
USAGES = st.builds(Usage, *[st.sampled_from([0, 1, 999, 1000, 1001, 2500])] * 4)
TIMES = st.sampled_from([None, 1.0, 2.0])
START_FIELDS = st.fixed_dictionaries(
    {
        "agent": st.sampled_from(["A", None, "B"]),
        "model": st.sampled_from(["m", None, "n"]),
        "queued": st.sampled_from([None, True]),
        "started_at": TIMES,
        "definition": st.sampled_from([None, "d1", "d2"]),
        "defined": st.sampled_from([None, {"tools": []}]),
    }
)


def _answer(draw: st.DrawFn, writer: Writer) -> None:
    text = draw(TEXTS)
    reason = draw(st.sampled_from(["stop", None, "length", "content_filter"]))
    correction = draw(st.sampled_from([None, None, "Answer as JSON."]))
    writer.add(
        "generation",
        text=text or None,
        model=draw(st.sampled_from([None, "m", "n"])),
        usage=draw(st.none() | USAGES),
        finish_reason=reason,
        correction=correction if reason in ("stop", None) else None,
    )
    if draw(st.booleans()):
        writer.add("message", text=text)
        if draw(st.booleans()):
            writer.add("run_end", status="completed", text=text)


def _tools(draw: st.DrawFn, writer: Writer) -> None:
    writer.add(
        "generation",
        text=draw(TEXTS) or None,
        model=draw(st.sampled_from([None, "m", "n"])),
        calls=draw(RAW_CALLS),
        usage=draw(USAGES),
        finish_reason=draw(st.sampled_from(["tool_calls", "stop", "length"])),
    )
    batch = replay(writer.events).batch
    assert batch is not None
    effect = draw(st.sampled_from([None, None, "idempotent"]))
    for call in batch.calls[: draw(st.sampled_from([9, 9, 1]))]:
        args = dict(call.args)
        writer.add("tool_call", name=call.name, call_id=call.call_id, args=args, effect=effect)
    _results(draw, writer, batch.calls)


def _results(draw: st.DrawFn, writer: Writer, calls: Sequence[Call]) -> None:
    for call in draw(st.permutations(calls))[: draw(st.integers(0, len(calls)))]:
        error = draw(st.sampled_from([None, "RuntimeError: no", "tool disabled"]))
        result = draw(st.none() | TEXTS)
        writer.add("tool_result", name=call.name, call_id=call.call_id, result=result, error=error)


def _consent(draw: st.DrawFn, writer: Writer, calls: Sequence[Call]) -> None:
    call_id = draw(st.sampled_from([*(call.call_id for call in calls), "nobody"]))
    args = draw(st.sampled_from([None, {"city": "Paris"}]))
    status = draw(st.sampled_from(["asked", "approved", "rejected"]))
    writer.add("approval", call_id=call_id, status=status, by="Ada", args=args)
    if status == "approved" and draw(st.booleans()):
        writer.add("tool_call", name="get_weather", call_id=call_id, args={})


def _resume(draw: st.DrawFn, writer: Writer) -> None:
    state = replay(writer.events)
    rewound = [call.call_id for call in state.batch.calls] if state.batch else None
    added = draw(st.lists(USER, max_size=1))
    kept = len(state.transcript)
    writer.start(added, kept=kept, rewound=rewound, **draw(START_FIELDS))


def _settle(draw: st.DrawFn, writer: Writer) -> None:
    state = replay(writer.events)
    assert state.batch is not None
    settling = [call.call_id for call in state.batch.missing]
    added = draw(st.lists(USER, max_size=1))
    writer.start(added, kept=len(state.transcript), settling=settling)


def _fork(draw: st.DrawFn, writer: Writer) -> None:
    messages = draw(st.none() | st.lists(USER, max_size=2))
    agent = draw(st.sampled_from([None, "B"]))
    writer.add("fork", forked_from="parent", messages=messages, agent=agent)


def _end(draw: st.DrawFn, writer: Writer) -> None:
    status = draw(st.sampled_from(["completed", "max_turns", "failed", "paused", None]))
    writer.add("run_end", status=status, text=draw(TEXTS), error="why", ended_at=draw(TIMES))


def _strange(draw: st.DrawFn, writer: Writer) -> None:
    event_type = draw(
        st.sampled_from(["from_the_future", "cancel", "stop", "tool_call", "tool_result"])
    )
    writer.add(event_type, name="pay", call_id="nobody", error=draw(st.sampled_from([None, "no"])))


_STEPS: dict[str, Callable[[st.DrawFn, Writer], None]] = {
    "tools": _tools,
    "answer": _answer,
    "resume": _resume,
    "settle": _settle,
    "fork": _fork,
    "end": _end,
    "strange": _strange,
}
