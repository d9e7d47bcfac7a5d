"""The event: one immutable fact of a run, and the only thing that is ever stored.

An event has three shapes that are never mixed: the *event* (this object), its *body* (`to_json()`), and the
*row* a store makes of it (the body plus envelope columns). Fields that do not apply to a type are None and
absent from the body; fields we do not know are kept in `extra` and written back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from agentor.engine import strict_json

Message: TypeAlias = dict[str, Any]  # one chat-completions message
RunStatus: TypeAlias = Literal[
    "completed", "max_turns", "failed", "paused", "cancelled", "budget", "deadline", "parked"
]

RUN_START: Final = "run_start"
GENERATION: Final = "generation"
TOOL_CALL: Final = "tool_call"
TOOL_RESULT: Final = "tool_result"
MESSAGE: Final = "message"
RUN_END: Final = "run_end"
FORK: Final = "fork"
CANCEL: Final = "cancel"
STOP: Final = "stop"  # a worker was told to stop, and let the run go in good order
APPROVAL: Final = "approval"  # asked for, given, refused or needless: see its status
TEXT_DELTA: Final = "text_delta"  # streamed, never stored

STORED_TYPES: Final = frozenset(
    {RUN_START, GENERATION, TOOL_CALL, TOOL_RESULT, MESSAGE, RUN_END, FORK, APPROVAL, CANCEL, STOP}
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, or a sum of them. `cached_tokens` are part of the input, `reasoning_tokens`
    part of the output; both are 0 when the provider does not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def to_dict(self) -> dict[str, int]:
        counts = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.total_tokens,
        }
        if self.cached_tokens:
            counts["cached_tokens"] = self.cached_tokens
        if self.reasoning_tokens:
            counts["reasoning_tokens"] = self.reasoning_tokens
        return counts

    @classmethod
    def from_dict(cls, counts: Mapping[str, Any]) -> Usage:
        """Read what `to_dict` wrote; counts we do not know are ignored, a count that is no number is 0."""
        said = counts.get
        return cls(
            _count(said("input_tokens", 0)),
            _count(said("output_tokens", 0)),
            _count(said("total_tokens", 0)),
            _count(said("cached_tokens", 0)),
            _count(said("reasoning_tokens", 0)),
        )


_put_input, _put_output, _put_total, _put_cached, _put_reasoning = (
    Usage.__dict__[name].__set__ for name in Usage.__slots__
)


def _init_usage(
    self: Usage,
    input_tokens: int = 0,
    output_tokens: int = 0,
    total_tokens: int = 0,
    cached_tokens: int = 0,
    reasoning_tokens: int = 0,
) -> None:
    """The constructor that the fields describe, at half the cost: a log has a usage for each generation."""
    _put_input(self, input_tokens)
    _put_output(self, output_tokens)
    _put_total(self, total_tokens)
    _put_cached(self, cached_tokens)
    _put_reasoning(self, reasoning_tokens)


_init_usage.__qualname__ = "Usage.__init__"  # what an error says of a count that there is not
Usage.__init__ = _init_usage  # type: ignore[method-assign]  # type checkers read the generated one


MOST: Final = (
    2**53
)  # tokens; a provider that says more is mistaken, and JSON readers would round it


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value <= MOST:  # nearly all of them
        return value
    is_finite = isinstance(value, int | float) and value - value == 0
    return min(max(int(value), 0), MOST) if is_finite else 0


class _Messages:
    """The `messages` of an event: a list of its own, or a thunk that finds the list when somebody asks.

    A generation does not store the messages it was sent: they are the conversation at that point. The fold
    fills in a thunk, so n generations do not hold n lists. Only a list of the event's own is on the wire.
    """

    def __get__(self, event: Event | None, owner: type | None = None) -> list[Message] | None:
        if event is None:
            return None  # the dataclass default
        value: Any = event.__dict__.get("messages")
        return value() if callable(value) else value  # type: ignore[no-any-return]

    def __set__(self, event: Event, value: object) -> None:
        """Being there is what puts `__get__` before the event's own `messages`."""
        raise dataclasses.FrozenInstanceError("cannot assign to field 'messages'")


@dataclass(frozen=True, eq=False, repr=False)
class Event:
    """One step of a run. Equal by content. Times are seconds since the epoch.

    `seq` counts in a run from 1 without gaps. `calls` have the chat-completions form
    `{"id", "type": "function", "function": {"name", "arguments"}}`, as the model sent them.
    """

    type: str
    text: str | None = None
    reasoning: str | None = None
    name: str | None = None  # of the tool
    args: dict[str, Any] | None = None  # of the call, as an object; {} when they were no object
    result: str | None = None  # what the model is told
    error: str | None = None  # tool_call: why it is not going to be started
    call_id: str | None = None  # unique in the conversation, as it is sent to the model
    turn: int | None = None  # the generation of the segment, from 1
    usage: Usage | None = None
    status: str | None = None
    agent: str | None = None
    model: str | None = None
    messages: list[Message] | None = None  # see _Messages
    calls: list[dict[str, Any]] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    forked_from: str | None = None
    forked_at: int | None = None  # the parent's last seq that the fork has
    seq: int | None = None
    kept: int | None = None  # run_start: messages of the conversation that the segment keeps
    rewound: list[str] | None = None  # run_start: call ids of the half-finished batch given up
    settling: list[str] | None = None  # run_start: call ids of the half-finished batch gone on with
    queued: bool | None = None  # run_start: nobody has begun; a worker is to take it
    nonce: str | None = None  # first run_start, fork: tells the run from any other of the same id
    effect: str | None = None  # tool_call: what the tool says a second start would do
    by: str | None = None  # approval: who decided
    reason: str | None = None  # approval: why it is asked for, or was refused
    args_digest: str | None = None  # approval: of the arguments it was given for
    limits: dict[str, Any] | None = None  # run_start: max_turns, max_tool_failures
    definition: str | None = None  # run_start: digest of what the run depends on of its agent
    defined: dict[str, Any] | None = None  # run_start: that, the first time the log meets it
    digest: str | None = None  # generation: of the messages it was sent
    finish_reason: str | None = None
    provider_fields: dict[str, Any] | None = None  # message fields only the provider understands
    source: str | None = None  # the server that sent provider_fields
    correction: str | None = (
        None  # generation: what the model is asked next, its answer being unfit
    )
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The body as a dict: only the fields that are set, unknown ones included."""
        body: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if value is None or name == "extra" or callable(value):
                continue
            body[name] = value.to_dict() if isinstance(value, Usage) else value
        body.update(self.extra)
        return body

    def to_json(self) -> str:
        """The body as one line of strict JSON. ValueError or TypeError if a field holds what JSON cannot say."""
        return strict_json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Event:
        """Read a body. ValueError says what is wrong with it; unknown keys and unknown types are kept."""
        if not isinstance(body, Mapping):
            raise ValueError(f"an event is an object, not {type(body).__name__}")
        return _made(_read(dict(body)))

    @classmethod
    def from_json(cls, body: str | bytes) -> Event:
        """Read one line of JSON. ValueError says what is wrong with it."""
        read = strict_json.loads(body)
        return _made(_read(read)) if type(read) is dict else cls.from_dict(read)

    def checked(self) -> Event:
        """The event itself, if it can be read again once it is written; else ValueError says why not."""
        usual, held = _USUAL.get, _HELD.get
        for name, value in self.__dict__.items():
            if type(value) is usual(name) or value is None or isinstance(value, held(name, ())):
                continue
            if name != "messages" or not callable(value):
                raise ValueError(f"{name!r} cannot be {type(value).__name__}")
        return self

    def with_(self, **changes: Any) -> Event:
        """A copy with some fields changed. `messages` may be a thunk."""
        return _made({**self.__dict__, **changes})

    def __eq__(self, other: object) -> bool:
        return _said(self) == _said(other) if isinstance(other, Event) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.type, self.seq, self.call_id, self.text))

    def __repr__(self) -> str:
        return f"Event({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


COPY: Final = "copy"  # in `extra`: what a log is to become that begins with this event. No part of what happened.


def _said(event: Event) -> dict[str, Any]:
    body = event.to_dict()
    body.pop(COPY, None)
    return body


_FIELDS: Final = tuple(f.name for f in dataclasses.fields(Event) if f.name != "extra")
_NAMES: Final = frozenset({*_FIELDS, "extra"})
_OF_OBJECTS: Final = ("messages", "calls")
_NUMBER: Final = (int, float)
_CHECKS: Final[dict[str, Any]] = dict.fromkeys(_FIELDS, str) | {
    "args": dict,
    "turn": int,
    "usage": dict,
    "messages": list,
    "calls": list,
    "started_at": _NUMBER,
    "ended_at": _NUMBER,
    "forked_at": int,
    "seq": int,
    "kept": int,
    "rewound": list,
    "settling": list,
    "queued": bool,
    "limits": dict,
    "defined": dict,
    "provider_fields": dict,
}
_HELD: Final = _CHECKS | {"usage": Usage, "extra": dict}  # in an event, as opposed to its body
_MOMENTS: Final = {"started_at": float, "ended_at": float}
_USUAL: Final = _HELD | _MOMENTS  # exactly; the quickest question
_USUAL_IN_BODY: Final = _CHECKS | _MOMENTS


def _read(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that a body sets. It becomes ours; most bodies hold nothing but such fields, and stay as they are."""
    usual = _USUAL_IN_BODY.get
    for name, value in body.items():
        if type(value) is not usual(name):
            body = _sorted_out(body)
            break
    if "type" not in body:
        raise ValueError("an event needs a type")
    if "usage" in body:
        body["usage"] = Usage.from_dict(body["usage"])
    for name in _OF_OBJECTS:
        for item in body.get(name, ()):
            if not isinstance(item, dict):
                raise ValueError(f"{name!r} must hold objects")
    return body


def _sorted_out(body: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that are null; unknown ones apart, in `extra`."""
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in body.items():
        check = _CHECKS.get(name)
        if check is not None and isinstance(value, check):
            known[name] = value
        elif check is None or (name == "args" and value is not None):
            extra[name] = value  # args: the first version wrote whatever the model had asked with
        elif value is not None:
            raise ValueError(f"{name!r} cannot be {type(value).__name__}")
    return {**known, "extra": extra} if extra else known


def _made(values: dict[str, Any]) -> Event:
    """An event of these fields, which become its own; all others the class has as defaults."""
    event = _new(Event)
    _set(event, "__dict__", values)
    return event


_new, _set = object.__new__, object.__setattr__


def _init(self: Event, *args: Any, **fields: Any) -> None:
    """The constructor that the fields describe, at a tenth of the cost: only what is set is kept."""
    if len(args) == 1:
        fields = {"type": args[0], **fields}
    elif args:
        fields = dict(zip(_FIELDS, args, strict=False)) | fields
    if not _NAMES.issuperset(fields) or "type" not in fields or len(args) > len(_FIELDS):
        unknown = sorted(fields.keys() - _NAMES) or "no type"
        raise TypeError(f"an Event has a type and fields of its own, not {unknown}")
    if not fields.get("extra", True):
        del fields["extra"]
    _set(self, "__dict__", {name: value for name, value in fields.items() if value is not None})


Event.__init__ = _init  # type: ignore[method-assign]  # type checkers read the generated one
Event.extra = {}  # of an event that has none; nothing writes to it
Event.messages = _Messages()  # type: ignore[assignment]  # a data descriptor, set after the dataclass is made


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that waits for a person: `agent.approve(run_id, call)` or `agent.reject(...)`; one that is in doubt also
    for `agent.settle(run_id, call, result)`, if it did happen.

    The same call may be asked about again, after a crash and with other arguments: `question` says which time this is.
    """

    call_id: str
    name: str
    args: dict[str, Any]
    reason: str | None = None  # why a person is asked, when it is not the tool that always asks
    in_doubt: bool = False  # it was started before, and may have taken effect
    question: int | None = (
        None  # seq of the event that asks; a decision that names it answers no other
    )
    run: str | None = (
        field(  # nonce of the run that asks: another one of its id is answered nothing
            default=None, repr=False, compare=False
        )
    )
    idempotency_key: str | None = (
        None  # the tool's `ctx.idempotency_key`: to find out what happened
    )


@dataclass(repr=False)
class RunResult:
    """What a run came to. Check `status` before trusting `final_output`.

    `usage` sums every generation of the log; `messages` can be passed back to `arun` with a further user message;
    `events` is the whole run, a fork's inherited part included; `unsaved` counts events that did not reach the store.
    """

    final_output: Any = None  # text, or an instance of output_type; None if the run did not finish
    status: str = "completed"
    run_id: str | None = None  # None without a store
    events: list[Event] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    messages: list[Message] = field(default_factory=list)
    error: str | None = None
    unsaved: int = 0
    pending: list[PendingCall] = field(default_factory=list)  # calls that wait for a decision

    @property
    def tool_calls(self) -> list[Event]:
        """The calls the model asked for, as events with `name` and `args`."""
        return [event for event in self.events if event.type == TOOL_CALL]

    def __str__(self) -> str:
        return "" if self.final_output is None else str(self.final_output)

    def __repr__(self) -> str:
        """Short: a result holds the whole run."""
        return (
            f"RunResult(final_output={self.final_output!r}, status={self.status!r}, "
            f"run_id={self.run_id!r}, error={self.error!r}, {len(self.events)} events)"
        )


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """The events of a log, each once. An event is left out if its seq was there before, and all it says was.

    A store that does not look at seqs holds such repeats, when an append failed after it had written and was tried again.
    What differs under one seq stays: two have written there.
    """
    by_seq: dict[int, Event] = {}
    unique = []
    for event in events:
        seq = event.seq
        if seq is None:
            unique.append(event)
        elif seq not in by_seq or by_seq[seq] != event:
            by_seq[seq] = event
            unique.append(event)
    return unique


def last_of(events: Iterable[Event], event_type: str) -> Event | None:
    """The last event of a type, or None."""
    found = None
    for event in events:
        if event.type == event_type:
            found = event
    return found
