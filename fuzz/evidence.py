"""What was seen in a world: promises made, tools started, requests sent. Written down as it happens, judged later."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from agentor.engine.events import Event, RunResult
from agentor.engine.run_context import RunContext
from agentor.testing.checker import check_messages
from fuzz.bank import Books
from fuzz.ledger import Standing

# Of its loop, within which a worker that was suspended sees that its lease has run out.
ITERATIONS_TO_NOTICE: Final = 12


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One event that a living worker was told is on disk."""

    run_id: str
    seq: int
    body: str
    worker: str
    term: int | None  # of the lease it was written under
    newest_term: int | None  # that had been given for the run by then


@dataclass(frozen=True, slots=True)
class Act:
    """Something with a price: a model was asked or a tool began. And who had the run at that moment."""

    worker: str
    run_id: str
    what: str
    term: int | None  # of this worker's lease
    standing: Standing  # of the run in the file
    cancel_heard_s: float  # seconds for which this worker has been awake and a cancel of the run has been asked for
    unsaved: bool  # a save of this run had failed, and the run goes on by its durability
    should_have_stopped: (
        bool  # it had failed since this worker took the run up, and durability is strict
    )
    iterations_awake: int  # of the worker's loop since it was last suspended
    beside: tuple[str, ...]  # what others, awake and alive, were doing in the same run


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool that began, and what the file said at that moment."""

    worker: str
    run_id: str
    call_id: str
    name: str  # of the tool
    key: str  # the call's idempotency key
    is_once: bool  # it must not be started twice
    is_careful: bool  # it declares an effect, or needs a person's consent
    claimed: bool  # its tool_call is in the log
    rejected: bool  # a person has refused it
    args: dict[str, Any]  # what the tool was given
    recorded_args: dict[str, Any] | None  # in its tool_call
    consented_args: dict[str, Any] | None  # as a person changed them last
    asked_by: str | None  # body of the generation that asked for it, which a fork shares
    position: int  # among the calls of that generation
    answered: bool  # its tool_result is in the log
    consents: int  # of a person, to this call
    unsaved: bool  # a save of this run had failed, and the run goes on by its durability
    just_woken: bool  # the worker was suspended and has not had the time to notice what it missed


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork, with its parent's bodies when it was made."""

    run_id: str
    parent: str
    at: int
    parent_bodies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resume of a finished run: what it called and wrote."""

    run_id: str
    calls: int
    events_written: int


@dataclass(frozen=True, slots=True)
class Shown:
    """One recorded event that a reader of a stream was shown."""

    run_id: str
    seq: int
    is_recorded: bool  # it is in the log, as it was shown
    unsaved: bool  # a save of this run had failed, and the run goes on by its durability


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as it was streamed to a reader, and as it was recorded."""

    run_id: str
    streamed: str
    recorded: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A letter that a living worker was handed."""

    key: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Settled:
    """A call in doubt of which a person said that it had happened, and was told that this is recorded."""

    run_id: str
    call_id: str
    batch_seq: int  # of the generation that asked for the call
    result: str


@dataclass(frozen=True, slots=True)
class Refused:
    """One event that the store has refused, because the run is somebody else's."""

    run_id: str
    seq: int
    body: str
    worker: str


@dataclass(frozen=True, slots=True)
class Marked:
    """A run as it stood when it was marked as deleted."""

    run_id: str
    status: str
    holder: str | None = None  # of a lease that had not run out, or of a lock


@dataclass
class Evidence:
    """Everything the invariants are judged by, beside the ledger."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    loaded: dict[tuple[str, int], str] = field(default_factory=dict)  # body, as it was seen first
    acts: list[Act] = field(default_factory=list)
    tool_starts: list[ToolStart] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)  # of them, by key
    settled: list[Settled] = field(default_factory=list)
    misled: Counter[str] = field(default_factory=Counter)  # by key: words of people that were wrong
    untold: list[str] = field(default_factory=list)  # what people settled and a model was not told
    words: int = 0  # of people and of banks, so far
    said: dict[str, set[str]] = field(default_factory=dict)  # by key: what may be its call's result
    refused: list[Refused] = field(default_factory=list)
    asked_cancels: dict[str, int] = field(default_factory=dict)  # run id -> events it had, or more
    lost_cancels: list[str] = field(default_factory=list)
    # Runs that a worker took in spite of their end.
    taken_ends: list[str] = field(default_factory=list)
    marked: dict[str, Marked] = field(default_factory=dict)  # by run id
    deletions: list[Marked] = field(default_factory=list)  # that somebody was told of
    pruned: list[Marked] = field(default_factory=list)  # of them, those that a prune chose
    forks: list[Forked] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)  # what forks were asked, by their ids
    results: list[RunResult] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    letters: list[Delivered] = field(default_factory=list)
    letters_left: int = 0
    books: Books = field(default_factory=Books)
    deleting: set[str] = field(default_factory=set)  # runs that somebody meant to delete
    deleted: set[str] = field(default_factory=set)  # and was told are gone
    remnants: list[str] = field(default_factory=list)  # of them, what can still be loaded
    left_over: list[str] = field(
        default_factory=list
    )  # runs that no worker took, although it could
    newest_terms: dict[str, int] = field(default_factory=dict)
    illegal_requests: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)  # exceptions that nothing explains
    stuck: list[str] = field(default_factory=list)  # runs that did not end when faults had stopped
    damage: list[str] = field(default_factory=list)  # what integrity checks said
    stored_usage: dict[str, Any] = field(default_factory=dict)  # run id -> Usage in its summary
    requests: int = 0

    @property
    def calls(self) -> int:
        """Of models and tools, so far."""
        return self.requests + len(self.tool_starts)

    def requested(self, messages: list[dict[str, Any]]) -> int:
        """Note a request to the model; its number."""
        self.requests += 1
        self.illegal_requests += check_messages(messages)
        return self.requests

    def asked(self, run_id: str, messages: list[dict[str, Any]]) -> None:
        """Compare a request to the model with what people have settled in its run."""
        for each in [settled for settled in self.settled if settled.run_id == run_id]:
            answers = [m["content"] for m in messages if m.get("tool_call_id") == each.call_id]
            if answers != [each.result]:
                self.untold.append(f"{each.call_id} of {run_id} is {answers}, not {each.result!r}")

    def said_of(self, key: str, text: str) -> str:
        """Note what a tool, its `reconcile` or a person says that became of a call."""
        self.said.setdefault(key, set()).add(text)
        return text

    def started(self, start: ToolStart) -> None:
        self.tool_starts.append(start)
        self.starts[start.key] += 1

    def has_started(self, ctx: RunContext) -> bool:
        """Whether a call has ever been started, by anybody."""
        return self.starts[str(ctx.idempotency_key)] > 0

    def append(self, worker: str, run_id: str, events: list[Event], term: int | None) -> None:
        newest = self.newest_terms.get(run_id)
        for event in events:
            if event.seq is not None:
                body = event.to_json()
                self.acknowledged.append(
                    Acknowledged(run_id, event.seq, body, worker, term, newest)
                )
