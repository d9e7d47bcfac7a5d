"""What a resume would do, before doing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from agentor.definition import Change
from agentor.engine import events as ev
from agentor.engine.batch import Batch
from agentor.engine.decide import AskModel, Finish, Reopen, decide, resumption
from agentor.engine.effects import may_not_repeat, stricter
from agentor.engine.events import Event
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.run_context import RunContext
from agentor.engine.tools import Tool


@dataclass(frozen=True)
class Plan:
    """A resume, told in advance. Calls are named by their ids.

    `settled` have results that are kept; `in_doubt` were started and must not be started again blindly: their tool's
    `reconcile` is asked, else the model is told, or a person; `to_run` will be started, some of them again; `rewound` are
    given up, so that the model decides again; `waiting` need a person first. `ask_model`: the model will be asked, and
    paid. `problems` would stop the resume before anything runs.
    """

    run_id: str
    status: str | None  # None while no end is recorded
    settled: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()
    to_run: tuple[str, ...] = ()
    rewound: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    ask_model: bool = False
    writes_end: bool = False  # only the end of the run is missing
    changes: tuple[Change, ...] = ()  # in the agent since
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON; each change is `{"part", "name", "before", "after"}`."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        lines = [f"run {self.run_id} ({self.status or 'unfinished'})"]
        for calls, meaning in (
            (self.settled, "keep the result of"),
            (self.rewound, "give up, and let the model decide again:"),
            (self.in_doubt, "find out what became of, or tell that nobody knows:"),
            (self.to_run, "run"),
            (self.waiting, "wait for a person to decide on"),
        ):
            if calls:
                lines.append(f"  {meaning} {', '.join(calls)}")
        if self.ask_model:
            lines.append("  ask the model")
        if self.writes_end:
            lines.append("  write the end; ask nobody")
        if len(lines) == 1:
            lines.append("  nothing")
        lines += [f"  problem: {problem}" for problem in self.problems]
        if self.changes:
            told = "\n".join(map(str, self.changes)).splitlines()
            lines += ["  the agent has changed:", *(f"    {line}" for line in told)]
        return "\n".join(lines)


def plan_of(
    run_id: str,
    state: RunState,
    reopen: Reopen | None,
    settles: bool,
    tools: Mapping[str, Tool],
    changes: Sequence[Change],
    refused: Sequence[str] = (),
) -> Plan:
    """The plan of a resume that would open a segment as `reopen` says. `refused`: problems that are known already."""
    plan = Plan(run_id, state.status, changes=tuple(changes), problems=tuple(refused))
    return _planned(plan, state, reopen, settles, _declared_by(tools))


def plan_from_log(run_id: str, state: RunState, events: Sequence[Event]) -> Plan:
    """The plan as far as the log alone can tell, for those who have no agent: a tool is what its calls say of it."""
    settles = state.batch is not None and state.batch.settles({})
    reopen = resumption(state, NO_LIMIT, settles)
    return _planned(Plan(run_id, state.status), state, reopen, settles, _recorded_in(events))


NO_LIMIT: Final = 2**31  # a resume starts a fresh turn budget, so no limit stands in its way


@dataclass(frozen=True)
class _Known:
    """What is known of the tool of one call."""

    effect: str | None
    asks: Callable[[], bool]  # a person, before it starts
    parks: bool = False  # the run, when it is in doubt


_Look: TypeAlias = Callable[[Batch, Call], _Known | None]  # None: there is no such tool


def _declared_by(tools: Mapping[str, Tool]) -> _Look:
    def look(batch: Batch, call: Call) -> _Known | None:
        tool, args = tools.get(call.name), dict(call.args)
        if tool is None:
            return None
        return _Known(
            tool.effect,
            lambda: tool.asks_approval(RunContext(call_id=call.call_id, args=args), args),
            parks=tool.on_doubt == "park" and tool.reconcile is None,
        )

    return look


def _recorded_in(events: Sequence[Event]) -> _Look:
    asked = {event.call_id for event in events if event.type == ev.APPROVAL}
    return lambda batch, call: _Known(
        batch.effects.get(call.position), lambda: call.call_id in asked
    )


def _planned(
    plan: Plan, state: RunState, reopen: Reopen | None, settles: bool, look: _Look
) -> Plan:
    if state.batch is not None and settles:
        return _settling(plan, state.batch, look)
    if reopen is None:
        pending = isinstance(decide(state, 1), Finish) and state.status is None
        return _with(plan, writes_end=pending)
    return _with(plan, rewound=reopen.rewound, ask_model=_asks(state))


def _asks(state: RunState) -> bool:
    return state.transcript.last_answer is None or isinstance(decide(state, 1), AskModel)


def _settling(plan: Plan, batch: Batch, look: _Look) -> Plan:
    known = {call.call_id: look(batch, call) for call in batch.missing}
    fate = {call.call_id: _fate(batch, call, known[call.call_id]) for call in batch.missing}

    def calls(what: str) -> tuple[str, ...]:
        return tuple(call_id for call_id, becomes in fate.items() if becomes == what)

    parks = any(tool.parks for call_id in calls("in doubt") if (tool := known[call_id]))
    gone = tuple(
        f"call {c.call_id} needs the tool {c.name!r}, which this agent does not have"
        for c in batch.missing
        if fate[c.call_id] == "gone"
    )
    return _with(
        plan,
        settled=tuple(c.call_id for c in batch.calls if c.position in batch.answers),
        in_doubt=calls("in doubt"),
        to_run=calls("run"),
        waiting=calls("wait"),
        ask_model=not (calls("wait") or parks),
        problems=(*plan.problems, *gone),
    )


def _fate(batch: Batch, call: Call, tool: _Known | None) -> str:
    """What becomes of a call without a result when its batch is settled."""
    approval = batch.approval_of(call)
    if tool is None:
        return "refused" if approval == "rejected" else "gone"
    if approval is not None:
        return {"asked": "wait", "approved": "run"}.get(approval, "refused")
    started, before = call.position in batch.started, batch.effects.get(call.position)
    if started and may_not_repeat(before, tool.effect):
        return "in doubt"
    safe = started and stricter(before, tool.effect) not in (None, "read")
    return "run" if safe or not tool.asks() else "wait"


def _with(plan: Plan, **changes: Any) -> Plan:
    return Plan(**{**plan.__dict__, **changes})
