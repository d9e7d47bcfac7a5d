"""What must hold of calls: how they start, what becomes of them, and what people say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agentor.engine.batch import DECLARED, REJECTED
from fuzz.evidence import Evidence, ToolStart
from fuzz.ledger import Ledger, Log
from fuzz.tools import EFFECTS, PAYMENTS


def tools_start_after_their_claim(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool starts only when its tool_call is in the log, unless a best-effort save of its run has failed."""
    for start in evidence.tool_starts:
        if not start.claimed and not start.unsaved:
            yield f"{start.call_id} of {start.run_id} started by {start.worker} unclaimed"


def careful_tools_start_after_their_claim(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool that declares an effect or needs consent starts only when its tool_call is in the log, whatever could not
    be saved before."""
    for start in evidence.tool_starts:
        if start.is_careful and not start.claimed and not start.just_woken:
            yield f"{start.call_id} of {start.run_id} started by {start.worker} unclaimed"


def tools_get_what_is_recorded(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool that starts is given the arguments in its tool_call, and those are the ones that a person gave it last."""
    for start in [each for each in evidence.tool_starts if each.claimed and not each.just_woken]:
        if start.args != start.recorded_args:
            yield f"{start.key} was started with {start.args}, and {start.recorded_args} is recorded"
        if start.consented_args not in (None, start.args):
            yield f"{start.key} was started with {start.args}, and {start.consented_args} was consented to"


def a_call_has_one_key(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A call has one idempotency key, at each start of it and in each fork that has it, and no other call has it."""
    keys: dict[tuple[str, int], str] = {}
    calls: dict[str, tuple[str, int]] = {}
    for start in evidence.tool_starts:
        if start.asked_by is not None:
            call = start.asked_by, start.position
            if (key := keys.setdefault(call, start.key)) != start.key:
                yield f"{start.call_id} of {start.run_id} has the keys {key} and {start.key}"
            if calls.setdefault(start.key, call) != call:
                yield f"{start.key} is the key of two calls"


def refusals_stand(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A call that a person has refused is never started in that run, and its result says that it was refused."""
    for start in evidence.tool_starts:
        if start.rejected and not start.just_woken:
            yield f"{start.call_id} of {start.run_id} started by {start.worker} although refused"
    for run_id, log in ledger.logs.items():
        for batch, call, event in log.tool_results():
            if event.error != REJECTED and log.was_rejected(batch.seq, call.call_id):
                yield f"{call.call_id} of {run_id} was refused and is {event.error or event.result!r}"


def results_are_what_was_said(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """The result of a call is what its tool has answered, what its `reconcile` said that became of it, or what a
    person said."""
    for run_id, log in ledger.logs.items():
        for batch, call, event in log.tool_results():
            if event.error is None:
                said = evidence.said.get(batch.key_of(run_id, call), ())
                if not (event.result or "").endswith(tuple(said)):
                    yield f"{call.call_id} of {run_id} is {event.result!r}, and nobody has said so"


def declared_effects_are_not_given_up(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A batch that is given up holds no call that was claimed for a tool with a declared effect, and none of which a
    person was asked, unless the agent is built to rewind, which no agent of a world is."""
    for run_id, log in ledger.logs.items():
        own = slice(log.inherited, None)
        for state, event in zip(log.states[own], log.events[own], strict=False):
            if event.rewound and (batch := state.batch) is not None:
                kept = [c for c in batch.calls if batch.may_have_started(c) and _declares(c.name)]
                kept += [c for c in batch.calls if c.position in batch.approvals]
                for call in kept:
                    yield f"{call.call_id} ({call.name}) of {run_id} was given up at seq {event.seq}"


def _declares(tool: str) -> bool:
    return EFFECTS.get(tool) in DECLARED


def settled_calls_never_run_again(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool whose result is in the log is never started again for that call."""
    for start in evidence.tool_starts:
        if start.answered:
            yield f"{start.call_id} of {start.run_id} started by {start.worker} although answered"


def once_tools_start_once(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool that must not be started twice for one call is not, in its run and its forks together, unless a person
    consented to it or its worker was suspended between the claim and the start."""
    starts: dict[str, list[ToolStart]] = {}
    for start in evidence.tool_starts:
        if start.is_once and not start.just_woken:
            starts.setdefault(start.key, []).append(start)
    for key, started in starts.items():
        consents = {start.run_id: 0 for start in started}
        for start in started:
            consents[start.run_id] = max(consents[start.run_id], start.consents)
        if len(started) > 1 + sum(consents.values()):
            yield f"{key} was started by {' and by '.join(start.worker for start in started)}"


def people_are_believed(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """When a person has said of a call in doubt that it did happen, its result is the one that they gave, and that is
    what every model is told that is asked in the run from then on."""
    for each in evidence.settled:
        log = ledger.logs.get(each.run_id)
        if log is None and each.run_id in evidence.deleting:
            continue
        result = None if log is None else log.result_of(each.batch_seq, each.call_id)
        if result != each.result:
            yield f"{each.call_id} of {each.run_id} was settled as {each.result!r} and is {result!r}"
    yield from evidence.untold


def payments_are_made_once(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """As long as people say what is so, money that a tool moves outside has moved once if its call has a result, not at
    all if the call was refused in the run that asked for it, and never twice, unless a worker was suspended between the claim and the start."""
    moved = Counter(
        start.key
        for start in evidence.tool_starts
        if start.name in PAYMENTS and not start.just_woken
    )
    for key in [key for key, times in moved.items() if times > 1 and not evidence.misled[key]]:
        yield f"{key} was paid {moved[key]} times"
    for run_id, log in ledger.logs.items():
        for key, _ in _payments(run_id, log, None):
            if not evidence.starts[key] and not evidence.misled[key]:
                yield f"{key} has a result in {run_id}, and was not paid"
        for key, is_own in _payments(run_id, log, REJECTED):
            if is_own and moved[key] and not evidence.misled[key]:
                yield f"{key} was refused in {run_id}, and was paid"


def _payments(run_id: str, log: Log, error: str | None) -> Iterator[tuple[str, bool]]:
    """The keys of those that have a result in a log, or this error, and whether the run asked for them itself; else its
    parent did, and may pay what is refused here."""
    for name in sorted(PAYMENTS):
        yield from log.results(run_id, name, error)
