"""Hypothesis strategies: the logs of runs as the engine writes them, as Agentor 0.1 wrote them, and damaged ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from agentor.engine.events import Event, Usage

TEXTS = st.sampled_from(["", "ok", "Grüße 👋", "a\nb", "{}", " "])
ARGUMENTS = st.sampled_from(
    ["{}", '{"city": "London"}', "", "not json", "[1]", '{"a": 1, "a": 2}', '{"x": NaN}', "null"]
)
NAMES = st.sampled_from(["get_weather", "pay", "no such tool", ""])
IDS = st.sampled_from(["c1", "c2", "c3", "", "c1"])


@dataclass
class Writer:
    """Writes a log event by event, as a run does; keeps just enough to write a legal one."""

    events: list[Event] = field(default_factory=list)
    numbered: bool = True

    def add(self, event_type: str, **fields: Any) -> None:
        seq = len(self.events) + 1 if self.numbered else None
        self.events.append(Event(event_type, seq=seq, **fields))

    def start(self, messages: list[dict[str, Any]], kept: int | None = None, **fields: Any) -> None:
        named = {"agent": "A", "model": "m"} | fields
        self.add("run_start", messages=messages, kept=kept, **named)


def raw_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


RAW_CALLS = st.lists(st.builds(raw_call, IDS, NAMES, ARGUMENTS), min_size=1, max_size=3)
USER = st.builds(lambda text: {"role": "user", "content": text}, TEXTS)
SYSTEM = st.just({"role": "system", "content": "Be kind."})


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Logs with turns, parallel batches in any order of arrival, failures, rewinds, resumes, forks, cut replies."""
    from agentor.engine.replay import replay

    writer = Writer()
    opening = [*draw(st.lists(SYSTEM, max_size=1)), draw(USER)]
    writer.start(opening)
    for _ in range(draw(st.integers(0, 6))):
        step = draw(st.sampled_from(["tools", "tools", "tools", "answer", "resume", "fork"]))
        state = replay(writer.events)
        if step == "fork":
            asked = draw(st.none() | st.lists(USER, min_size=1, max_size=1))
            writer.add("fork", forked_from="parent", messages=asked)
        elif step == "answer":
            _answer(draw, writer)
        elif step == "tools" and state.batch is None:
            _tools(draw, writer)
        else:
            rewound = [call.call_id for call in state.batch.calls] if state.batch else None
            added = draw(st.lists(USER, max_size=1))
            writer.start(added, kept=len(state.transcript), rewound=rewound)
    return writer.events


def _answer(draw: st.DrawFn, writer: Writer) -> None:
    text = draw(TEXTS)
    reason = draw(st.sampled_from(["stop", None, "length", "content_filter"]))
    correction = draw(st.sampled_from([None, None, "Answer as JSON."]))
    writer.add(
        "generation",
        text=text or None,
        usage=draw(usages()),
        finish_reason=reason,
        correction=correction if reason in ("stop", None) else None,
    )
    if draw(st.booleans()):
        writer.add("message", text=text)
        if draw(st.booleans()):
            writer.add("run_end", status="completed", text=text)


def _tools(draw: st.DrawFn, writer: Writer) -> None:
    from agentor.engine.replay import replay

    writer.add(
        "generation",
        text=draw(TEXTS) or None,
        calls=draw(RAW_CALLS),
        usage=draw(usages()),
        finish_reason=draw(st.sampled_from(["tool_calls", "stop", "length"])),
    )
    batch = replay(writer.events).batch
    assert batch is not None
    for call in batch.calls:
        writer.add("tool_call", name=call.name, call_id=call.call_id, args=dict(call.args))
    answered = draw(st.permutations(batch.calls))[: draw(st.integers(0, len(batch.calls)))]
    for call in answered:
        error = draw(st.sampled_from([None, "RuntimeError: no"]))
        writer.add(
            "tool_result", name=call.name, call_id=call.call_id, result=draw(TEXTS), error=error
        )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    given, made = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    return Usage(given, made, given + made)


def old_log() -> list[Event]:
    """A run as Agentor 0.1 wrote it: no seq, and every generation carries the whole conversation."""
    opening = [{"role": "system", "content": "sys"}, {"role": "user", "content": "hello"}]
    calls = [raw_call("c1", "get_weather", '{"city":"London"}'), raw_call("c2", "pay", "{}")]
    group = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "Error: RuntimeError: no"},
    ]
    writer = Writer(numbered=False)
    writer.start(opening)
    writer.add("generation", turn=1, usage=Usage(3, 4, 7), messages=opening, calls=calls)
    writer.add("tool_call", name="get_weather", call_id="c1", args={"city": "London"}, turn=1)
    writer.add("tool_call", name="pay", call_id="c2", args={}, turn=1)
    writer.add("tool_result", name="get_weather", call_id="c1", result="sunny", turn=1)
    writer.add(
        "tool_result",
        name="pay",
        call_id="c2",
        result="Error: RuntimeError: no",
        error="RuntimeError: no",
        turn=1,
    )
    writer.add("generation", turn=2, usage=Usage(1, 1, 2), messages=opening + group, text="done")
    writer.add("message", text="done", turn=2)
    writer.add("run_end", status="completed", text="done", usage=Usage(4, 5, 9))
    return writer.events


def without_nones(value: Any) -> Any:
    """For comparing requests: what is None in one may be absent in the other."""
    if isinstance(value, dict):
        return {key: without_nones(item) for key, item in value.items() if item is not None}
    return [without_nones(item) for item in value] if isinstance(value, list) else value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ANY_CONTENT = (
    st.none() | TEXTS | st.lists(st.just({"type": "text", "text": "part"}), max_size=2) | JSON
)
ANY_MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(
            ["system", "developer", "user", "assistant", "tool", "function", "bard"]
        )
    },
    optional={
        "content": ANY_CONTENT,
        "tool_calls": RAW_CALLS | st.just([]) | st.none(),
        "tool_call_id": IDS,
        "function_call": st.just({"name": "pay", "arguments": "{}"}),
        "name": st.just("get_weather"),
    },
)
ANY_MESSAGES = st.lists(ANY_MESSAGE, max_size=8)
