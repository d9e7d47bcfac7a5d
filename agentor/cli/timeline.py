"""A run as lines to read, derived from its events alone. No terminal here: the console colours and cleans them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentor.engine import events as ev
from agentor.engine import strict_json
from agentor.engine.batch import IN_DOUBT
from agentor.engine.events import Event, Message, Usage
from agentor.engine.replay import RunState
from agentor.plan import Plan, plan_from_log

_END_TONES = {"completed": "good", "paused": "plain", "cancelled": "plain"}
_SPENT = {"budget", "deadline"}  # a resume counts them from the beginning of the run
_USUAL_FINISH = {None, "stop", "tool_calls"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the timeline, or several where `text` holds line breaks."""

    seq: int | None  # None: it goes on from the line above
    label: str
    text: str = ""
    note: str = ""
    tone: str = "plain"  # plain, quiet, good, bad


@dataclass(frozen=True, slots=True)
class Before:
    """What has to be known of the events before a part of a log."""

    queued: bool = False  # it waits for somebody to begin with it
    turns: int = 0  # in all segments, for people count on after a resume

    def after(self, event: Event) -> Before:
        match event.type:
            case ev.RUN_START:
                return Before(bool(event.queued), self.turns)
            case ev.GENERATION:
                return Before(self.queued, self.turns + 1)
        return self


def timeline(events: Iterable[Event], before: Before | None = None) -> Iterator[Line]:
    """The lines of a log, in order, or of the part of one that follows what was `before`."""
    answer, before, event = None, before or Before(), None
    for seq, event in enumerate(events, start=1):
        if event.type == ev.GENERATION:
            answer = event.text
        yield from _lines(event, event.seq or seq, answer, before)
        before = before.after(event)
    if event is not None and event.type == ev.FORK:  # else what follows it has been told of them
        yield from _said(event)


def _came_to(result: Event) -> str:
    if result.error == IN_DOUBT:
        return "in doubt"  # it may have taken effect: anything but a failure
    return "gave" if result.error is None else "failed"


def _lines(event: Event, seq: int, answer: str | None, before: Before) -> Iterator[Line]:
    match event.type:
        case ev.RUN_START:
            yield from _start(event, seq, before.queued)
        case ev.GENERATION:
            yield from _generation(event, seq, before.turns + 1)
        case ev.TOOL_CALL:
            yield Line(seq, "call", call_text(event.name, event.args))
        case ev.TOOL_RESULT:
            text = event.result if event.error is None else event.error
            tone = "plain" if event.error is None else "bad"
            yield Line(seq, f"{event.name} {_came_to(event)}", text or "", took(event), tone)
        case ev.MESSAGE:
            told = event.text == answer
            yield Line(seq, "answer", "as above" if told else event.text or "", tone="quiet")
        case ev.RUN_END:
            tone = _END_TONES.get(event.status or "", "bad")
            yield Line(seq, event.status or "ended", event.error or "", tokens(event.usage), tone)
        case ev.FORK:
            yield Line(seq, "forked", f"from {origin(event)}", tone="quiet")
        case ev.APPROVAL:
            yield _approval(event, seq)
        case ev.CANCEL:
            yield Line(seq, "cancel", f"asked for by {event.by or 'somebody'}", tone="quiet")
        case ev.STOP:
            yield Line(seq, "let go", "its worker was stopped", tone="quiet")
        case _:
            yield Line(seq, event.type, "a type this version does not know", tone="quiet")


def _start(event: Event, seq: int, queued: bool) -> Iterator[Line]:
    if event.kept and not queued:
        yield Line(seq, "resumed", _resumed(event), tone="quiet")
    else:
        label = "queued" if event.queued else "started"
        who = " · ".join(filter(None, [event.agent, event.model]))
        yield Line(seq, label, who, tone="quiet")
    yield from _said(event)


def _said(event: Event) -> Iterator[Line]:
    for message in event.messages or []:
        yield Line(None, str(message.get("role", "?")), content_text(message))


def _resumed(event: Event) -> str:
    parts = [f"keeps {event.kept} message{'' if event.kept == 1 else 's'}"]
    for calls, verb in ((event.rewound, "gives up"), (event.settling, "goes on with")):
        if calls:
            parts.append(f"{verb} {', '.join(map(str, calls))}")
    return ", ".join(parts)


def _approval(event: Event, seq: int) -> Line:
    """Consent asked for, given or refused."""
    call = f"{event.name} ({event.call_id})"
    by = f" by {event.by}" if event.by else ""
    why = f": {event.reason}" if event.reason else ""
    match event.status:
        case "approved":
            changed = f", as {call_text(event.name, event.args)}" if event.args is not None else ""
            return Line(seq, "approved", f"{call}{by}{changed}", tone="good")
        case "rejected":
            return Line(seq, "rejected", f"{call}{by}{why}", tone="bad")
        case "settled":
            return Line(seq, "settled", f"{call}{by}: it had happened", tone="good")
    return Line(seq, "asks a person", f"to approve {call}{why}")


def _generation(event: Event, seq: int, turn: int) -> Iterator[Line]:
    asked = ", ".join(_called_name(call) for call in event.calls or [])
    said = [event.text or "", f"asks for {asked}" if asked else ""]
    unusual = event.finish_reason not in _USUAL_FINISH
    yield Line(
        seq,
        f"turn {turn}",
        "\n".join(filter(None, said)) or "(says nothing)",
        " · ".join(
            filter(None, [tokens(event.usage), str(event.finish_reason) if unusual else ""])
        ),
        "bad" if unusual else "plain",
    )
    if event.reasoning:
        yield Line(None, "thinks", event.reasoning, tone="quiet")
    if event.correction:
        yield Line(None, "corrected", event.correction, tone="bad")


def _called_name(call: dict[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("name")) if isinstance(function, dict) else "?"


def call_text(name: str | None, args: dict[str, Any] | None) -> str:
    """A call as one would write it: `get_weather(city="London")`."""
    written = ", ".join(f"{key}={strict_json.dumps(value)}" for key, value in (args or {}).items())
    return f"{name}({written})"


def content_text(message: Message) -> str:
    """The text of a chat message; parts that are no text are named in brackets."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return str(content) if content else ""


def _part_text(part: Any) -> str:
    if isinstance(part, dict):
        return str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]"
    return str(part)


def tokens(usage: Usage | None) -> str:
    if usage is None or not usage.total_tokens:
        return ""
    return f"{usage.total_tokens:,} tokens"


def took(event: Event) -> str:
    if event.started_at is None or event.ended_at is None:
        return ""
    return between(event.started_at, event.ended_at)


def between(started_at: float, ended_at: float) -> str:
    """How long it took; "?" where a foreign log calls something a time that is none."""
    try:
        return duration(ended_at - started_at)
    except OverflowError:  # a whole number beyond all floats
        return "?"


def duration(seconds: float) -> str:
    """Seconds as people say them: "12 ms", "3.4 s", "5 min", "7 h", "12 days"."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for unit, size, upto in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if seconds < upto:
            return f"{seconds / size:.1f} {unit}" if unit == "s" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def origin(event: Event) -> str:
    """Where a `fork` event comes from: the parent, and the seq up to which it was taken."""
    at = f" at seq {event.forked_at}" if event.forked_at else ""
    return f"{event.forked_from}{at}"


def where_it_stands(state: RunState) -> str:
    """The run's status, "unfinished" while its segment is open."""
    return state.status or "unfinished"


def what_resume_would_do(state: RunState, events: Sequence[Event] = ()) -> str:
    """What `resume` would do with a run that nobody works on, as far as its log can tell."""
    if state.is_complete:
        return "nothing: the answer is returned, no model is called"
    plan = plan_from_log("", state, events)
    if plan.writes_end:
        return "writes the end: the answer is there, no model is called"
    if plan.rewound:
        names = ", ".join(call.name for call in state.batch.calls) if state.batch else ""
        return f"goes back to the request, since not every result is saved ({names}): the model decides again"
    if state.batch is not None:
        return _settles(plan)
    if state.asked:
        return "asks the model what the fork was asked; no tool runs again"
    if state.status in _SPENT:
        return f"ends again at once, unless the agent has another {state.status}"
    if state.status is not None:
        return "goes on from where it stood, with a fresh turn budget"
    asked_again = state.answer is not None
    return "asks the model once more" if asked_again else "asks the model; no tool runs again"


def _settles(plan: Plan) -> str:
    """Going on with a half-finished batch."""
    does = [
        f"{verb} {', '.join(calls)}{more}"
        for verb, calls, more in (
            ("keeps the result of", plan.settled, ""),
            ("goes by what its tool declares about", plan.in_doubt, ", which may have happened"),
            ("runs", plan.to_run, ""),
        )
        if calls
    ]
    if plan.waiting and not (plan.in_doubt or plan.to_run):
        return f"nothing, until a person decides on {', '.join(plan.waiting)}"
    if plan.waiting:
        does.append(f"waits for a person to decide on {', '.join(plan.waiting)}")
    if plan.in_doubt:  # only the agent knows what its tools say
        return ", ".join([*does, "then asks the model or pauses for a person"])
    return ", ".join([*does, *["asks the model"] * plan.ask_model])
