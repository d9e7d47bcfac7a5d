"""What a resume would do, before doing it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from agentor.commands import command
from agentor.definition import Change
from agentor.engine import events as ev
from agentor.engine.batch import Batch
from agentor.engine.calling import Calling, Fate
from agentor.engine.decide import AskModel, Finish, Reopen, decide, resumption
from agentor.engine.effects import must_not_start
from agentor.engine.events import Event
from agentor.engine.replay import RunState, evolve
from agentor.engine.request import Call


@dataclass(frozen=True)
class Plan:
    """A resume, told in advance. Calls are named by their ids.

    `settled` have results that are kept; `in_doubt` were started and must not be started again blindly: of those in
    `reconciled` their tool's `reconcile` is asked, and if nobody knows, those in `parked` pause the run until a person has
    decided, and of the others the model is told; `to_run` will be started, some of them again; `rewound` are
    given up, so that the model decides again; `waiting` need a person first. `ask_model`: the model will be asked, and
    paid, if no `reconcile` says otherwise; `ends`: why not, when the run has spent its budget or its time is up.
    `problems` would stop the resume before anything runs or is written; then the rest is what it would do without them.
    """

    run_id: str
    status: str | None  # None while no end is recorded
    settled: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()
    reconciled: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    to_run: tuple[str, ...] = ()
    rewound: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    asked: bool = False  # what the fork was asked is added to its conversation
    ask_model: bool = False
    writes_end: bool = False  # only the end of the run is missing
    ends: str | None = None  # the run, without the model being asked, and why
    changes: tuple[Change, ...] = ()  # in the agent since
    problems: tuple[str, ...] = ()
    left_alone: str | None = None  # by workers, and why: for a person to resume

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON; each change is `{"part", "name", "before", "after"}`."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        lines = [f"run {self.run_id} ({self.status or 'unfinished'})"]
        if self.problems:
            lines.append("  nothing: the resume would be refused")
            lines += [f"  problem: {problem}" for problem in self.problems]
        else:
            lines += [f"  {step}" for step in self._steps()] or ["  nothing"]
        if self.left_alone:
            lines.append(f"  workers leave it alone: {self.left_alone}")
        if self.changes:
            told = "\n".join(map(str, self.changes)).splitlines()
            lines += ["  the agent has changed:", *(f"    {line}" for line in told)]
        return "\n".join(lines)

    def _steps(self) -> Iterator[str]:
        """What the resume would do, one thing a line."""
        for calls, meaning in (
            (self.settled, "keep the result of {}"),
            (self.rewound, "give up, and let the model decide again: {}"),
            *self.doubts(),
            (self.to_run, "run {}"),
            (self.waiting, "wait for a person to decide on {}"),
        ):
            if calls:
                yield meaning.format(", ".join(calls))
        if self.asked:
            yield "add what the fork was asked"
        if self.ask_model:
            yield "ask the model"
        if self.ends:
            yield f"ask nobody and end: {self.ends}"
        if self.writes_end:
            yield "write the end; ask nobody"

    def doubts(self) -> list[tuple[tuple[str, ...], str]]:
        """The calls in doubt by what is done about them, in words with a place for their ids."""
        found: dict[str, list[str]] = {}
        for call_id in self.in_doubt:
            words = _DOUBTS[call_id in self.reconciled, call_id in self.parked]
            found.setdefault(words, []).append(call_id)
        return [(tuple(calls), words) for words, calls in found.items()]


_ASK_TOOL: Final = "ask its tool what became of {}, and if that does not know, "

# By whether the tool's `reconcile` is asked, and whether a person is if nobody knows.
_DOUBTS: Final = {
    (True, False): f"{_ASK_TOOL}tell the model so",
    (True, True): f"{_ASK_TOOL}pause for a person",
    (False, False): "tell the model that nobody knows what became of {}",
    (False, True): "pause for a person to decide on {}, since nobody knows what became of it",
}


@dataclass(frozen=True)
class Limits:
    """What ends a resume although there is something left to ask."""

    overdue: str | None = None  # why it ends before anything
    reached: Callable[[RunState], str | None] | None = None  # why nothing more may be spent


def plan_of(
    plan: Plan,
    state: RunState,
    reopen: Reopen | None,
    settles: bool,
    calling: Calling,
    limits: Limits,
) -> Plan:
    """What a resume adds to a plan that knows problems and changes, if it would open a segment as `reopen` says."""
    plan = _with(plan, asked=bool(state.asked))
    batch = state.batch if settles else None
    gone = [] if batch is None else calling.gone(batch)
    plan = _with(plan, problems=(*plan.problems, *(needed(c, plan.run_id) for c in gone)))
    is_open = state.status is None and state.batch is not None
    if limits.overdue is not None and (reopen is not None or is_open):
        return _with(plan, ends=limits.overdue, rewound=reopen.rewound if reopen else ())
    if plan.problems:  # nothing runs, so nothing is spent
        limits = Limits()
    if batch is None:
        return _asking(plan, state, reopen, limits)
    known = [call for call in batch.missing if call not in gone]
    fates = {call.call_id: calling.fate(state, batch, call) for call in known}
    doubtful = [call for call in known if fates[call.call_id] == "find out"]
    plan = _with(
        plan,
        reconciled=tuple(call.call_id for call in doubtful if calling.asks_tool(call)),
        parked=tuple(call.call_id for call in doubtful if calling.asks_person(call)),
    )
    return _settling(plan, state, fates, limits)


def needed(call: Call, run_id: str) -> str:
    """What a resume says of a call whose tool is gone, and how to go on."""
    words = command("reject", run_id, call.call_id, options=["--reason", "TEXT", "--give-up"])
    return (
        f"call {call.call_id} needs the tool {call.name!r}, which this agent does not have: add it, or give the call up "
        f"(`{words}`)"
    )


def plan_from_log(run_id: str, state: RunState, events: Sequence[Event]) -> Plan:
    """The plan as far as the log alone can tell, for those who have no agent: a tool is what its calls say of it."""
    batch = state.batch
    settles = batch is not None and batch.settles({})
    reopen = resumption(state, NO_LIMIT, settles)
    plan = Plan(run_id, state.status, asked=bool(state.asked))
    if batch is None or not settles:
        return _asking(plan, state, reopen, Limits())
    asked = {event.call_id for event in events if event.type == ev.APPROVAL}
    fates = {call.call_id: _fate_in_log(batch, call, asked) for call in batch.missing}
    return _settling(plan, state, fates, Limits())


NO_LIMIT: Final = 2**31  # a resume starts a fresh turn budget, so no limit stands in its way


def _asking(plan: Plan, state: RunState, reopen: Reopen | None, limits: Limits) -> Plan:
    """Without a batch to settle: what follows is decided as the loop decides it, with the segment opened."""
    if reopen is not None:
        start = Event(ev.RUN_START, kept=reopen.kept, messages=list(state.asked))
        state = evolve(state, start)
        plan = _with(plan, rewound=reopen.rewound)
    match decide(state, NO_LIMIT, limits.reached):
        case AskModel():
            return _with(plan, ask_model=True)
        case Finish("completed"):
            return _with(plan, writes_end=True)
        case Finish() as end:
            return _with(plan, ends=end.error)
    return plan


def _settling(plan: Plan, state: RunState, fates: Mapping[str, Fate], limits: Limits) -> Plan:
    batch = state.batch
    assert batch is not None

    def calls(*becoming: Fate) -> tuple[str, ...]:
        return tuple(call_id for call_id, fate in fates.items() if fate in becoming)

    waiting = calls("ask", "wait")
    goes_on = not waiting and set(plan.parked) <= set(plan.reconciled)
    ends = limits.reached(state) if goes_on and limits.reached else None
    return _with(
        plan,
        settled=tuple(c.call_id for c in batch.calls if c.position in batch.answers),
        in_doubt=calls("find out"),
        to_run=calls("claim", "start"),
        waiting=waiting,
        ask_model=goes_on and ends is None,
        ends=ends,
    )


def _fate_in_log(batch: Batch, call: Call, asked: Container[str | None]) -> Fate:
    match batch.approval_of(call):
        case "asked":
            return "wait"
        case "approved":
            return "claim"
        case "rejected":
            return "rejected"
    effect = batch.effects.get(call.position)
    if must_not_start(batch, call, effect):
        return "find out"
    return "ask" if effect is None and call.call_id in asked else "claim"


def _with(plan: Plan, **changes: Any) -> Plan:
    return Plan(**{**plan.__dict__, **changes})
