"""The calls of one generation while answers are missing.

A batch is a value: the fold makes the next one from it. It knows which calls were started, answered, or wait for a
person, and whether a resume may give it up.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from agentor.engine import strict_json
from agentor.engine.events import TOOL_CALL, Event, Message
from agentor.engine.request import Call

WITHDRAWN: Final = "tool disabled"  # the error of a call to a tool that is no longer offered
IN_DOUBT: Final = "outcome unknown"  # the error of a call that may have happened
REJECTED: Final = "not approved"  # the error of a call that a person refused
UNDONE: Final = "rolled back"  # the error of a call whose transaction failed with another call

# Errors that are not the tool's own, so its budget of failures does not count them.
NO_FAILURES: Final = frozenset({WITHDRAWN, IN_DOUBT, REJECTED, UNDONE})

# Effects that a batch settles for.
DECLARED: Final = frozenset({"idempotent", "transactional", "once"})

_STRICTNESS: Final = {None: 0, "read": 0, "idempotent": 1, "transactional": 2, "once": 3}

SETTLED: Final = "settled"  # the status of a decision that a call in doubt did happen

CONSENT_STAYS: Final = "it was approved in the run that this one was forked from, which may start it: consent counts for one start"


def stricter(one: str | None, other: str | None) -> str | None:
    """Of two things said of one call, by the log and by today's code, the one that promises less."""
    return max(one, other, key=lambda effect: _STRICTNESS.get(effect, 3))


@dataclass(frozen=True, slots=True)
class Approval:
    """What is known of a person's consent to one call."""

    status: str  # asked, approved, rejected
    by: str | None = None
    reason: str | None = None
    args: dict[str, Any] | None = None  # the arguments, if this decision changed them
    seq: int = (
        0  # of the event that says so: of two questions about one call, it tells which is which
    )


@dataclass(frozen=True)
class Batch:
    """The calls of one generation while answers are missing."""

    seq: int  # of the generation
    message: Message  # the assistant message that asked
    calls: tuple[Call, ...]
    source: str | None
    cut: str | None  # the reply was cut off for this reason: none of its calls may run
    started: frozenset[int] = frozenset()  # positions with a tool_call event, but for the next
    refused: frozenset[int] = (
        frozenset()
    )  # positions whose tool_call says that they are not started
    answers: Mapping[int, str] = field(default_factory=dict)  # position -> what the model is told
    effects: Mapping[int, str] = field(default_factory=dict)  # position -> declared at its start
    approvals: Mapping[int, Approval] = field(default_factory=dict)  # position -> not used up
    edited: Mapping[int, dict[str, Any]] = field(
        default_factory=dict
    )  # as a person changed them last
    approving: bool = False  # consent to one of its calls was ever asked
    consented: frozenset[int] = frozenset()  # positions that a person ever consented to, here
    then: tuple[Message, ...] = ()  # what follows in the conversation once the batch has joined it
    origin: str | None = None  # the run it was opened in, if that is not the run it stands in
    nonce: str | None = None  # of the run it was opened in
    by_own_ids: bool = False  # events name its calls by the ids they have here: see `find`

    @property
    def missing(self) -> tuple[Call, ...]:
        if not self.answers:
            return self.calls
        return tuple(call for call in self.calls if call.position not in self.answers)

    @property
    def waiting(self) -> tuple[Call, ...]:
        """Calls that a person has to decide upon."""
        return tuple(c for c in self.missing if self.approval_of(c) == "asked")

    @property
    def ready(self) -> tuple[Call, ...]:
        """Calls that can be gone on with."""
        if not self.approvals:
            return self.missing
        return tuple(c for c in self.missing if self.approval_of(c) != "asked")

    @property
    def in_doubt(self) -> tuple[Call, ...]:
        """Calls without a result that may have happened."""
        return tuple(call for call in self.missing if self.may_have_started(call))

    def may_have_started(self, call: Call) -> bool:
        """Whether somebody began the call: here, as the log says, or perhaps the run that this one was forked from."""
        return call.position in self.started or self.origin is not None

    def args_of(self, call: Call) -> dict[str, Any]:
        """The arguments that a start gives to the tool: the only ones to show, to judge, to hash and to record.

        A deep copy each time: whoever is given one may do with it what they like.
        """
        args: dict[str, Any] = strict_json.copied(self.edited.get(call.position, call.args))
        return args

    def key_of(self, run_id: str, call: Call) -> str:
        """The call's idempotency key: the same at each start of it, here and in every fork, and of no other call.

        An id alone would not do, since that of a deleted run can be used again, and may be in use in another store.
        """
        born = self.origin or run_id
        return f"{f'{born}.{self.nonce}' if self.nonce else born}:{self.seq}:{call.position}"

    def approval_of(self, call: Call) -> str | None:
        approval = self.approvals.get(call.position)
        return approval.status if approval else None

    def settles(self, declared: Mapping[str, str | None]) -> bool:
        """Whether a resume goes on with the batch instead of giving it up.

        It does if a call may have been started whose tool declares an effect, in the log or today (`declared`, by tool),
        or if a person's consent is part of it.
        """
        effects = [self.effects.get(call.position) for call in self.calls]
        effects += [declared.get(call.name) for call in self.calls if self.may_have_started(call)]
        return self.approving or not DECLARED.isdisjoint(effects)

    def forked(self, origin: str | None, seq: int = 0) -> Batch:
        """As a fork inherits it: consent that is not used up stays behind, so the fork asks for its own.

        `seq` is that of the `fork` event, which is what asks.
        """
        own = Approval("asked", reason=CONSENT_STAYS, seq=seq)
        approvals = {p: own if a.status == "approved" else a for p, a in self.approvals.items()}
        return changed(
            self, origin=self.origin or origin, approvals=approvals, consented=frozenset()
        )

    def _called(self, call_id: str) -> Call | None:
        if len(self.calls) > 1:
            return self._by_id.get(call_id)
        only = self.calls[0]
        return only if only.call_id == call_id else None

    @cached_property
    def _by_id(self) -> Mapping[str, Call]:
        return {call.call_id: call for call in self.calls}

    @cached_property
    def _by_received_id(self) -> Mapping[str, Sequence[Call]]:
        received: dict[str, list[Call]] = {}
        for call in self.calls:
            received.setdefault(call.received_id, []).append(call)
        return received

    def find(self, event: Event, but: Container[int]) -> Call | None:
        """The call that a tool event speaks of, which is none of those at the positions `but`.

        A second start of one call must not pass for the first start of another.
        """
        call = self._called(event.call_id or "")
        if not self.by_own_ids and (meant := self._by_received_id.get(event.call_id or "")):
            return self._first_open(event, meant, but)
        return call if call is not None and call.position not in but else None

    def _first_open(self, event: Event, meant: Sequence[Call], but: Container[int]) -> Call | None:
        """Older logs name a call by the id the model gave it, which may be doubled or empty, or be one that we made for
        another call. So what else they say of the call decides, and what comes first only where that is not enough.
        """
        meant = [call for call in meant if call.name == event.name] or meant
        if event.type == TOOL_CALL:  # elsewhere arguments are those that a person gave
            meant = [call for call in meant if call.args == event.args] or meant
        left = [call for call in meant if call.position not in but]
        begun = [call for call in left if call.position in self.started]
        return next(iter(begun or left), None)


_NOTHING: Final[dict[int, Any]] = {}  # of a batch that says no more; nothing writes to it
Batch.answers = Batch.effects = Batch.approvals = Batch.edited = _NOTHING


def opened(
    seq: int,
    message: Message,
    calls: tuple[Call, ...],
    source: str | None,
    cut: str | None,
    nonce: str | None = None,
    by_own_ids: bool = False,
) -> Batch:
    """`Batch(...)` at a fraction of its cost: what is not said here is as the class has it."""
    batch = _new(Batch)
    fields = {"seq": seq, "message": message, "calls": calls, "source": source, "cut": cut}
    _set(batch, "__dict__", fields | {"nonce": nonce, "by_own_ids": by_own_ids})
    return batch


@dataclass(frozen=True, slots=True)
class AllBut:
    """All positions but these."""

    taken: Container[int]

    def __contains__(self, position: object) -> bool:
        return position not in self.taken


_Value = TypeVar("_Value")


def changed(value: _Value, **changes: Any) -> _Value:
    """dataclasses.replace at a tenth of its cost, which is most of what a fold costs. Not for classes with slots."""
    copy = _new(type(value))
    _set(copy, "__dict__", value.__dict__ | changes)
    return copy


_new, _set = object.__new__, object.__setattr__
