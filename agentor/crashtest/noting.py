"""What the uninterrupted run shows of the test itself: what it cannot tell, and what it has not tried."""

from __future__ import annotations

from collections.abc import Iterator

from agentor.crashtest.evidence import Evidence
from agentor.crashtest.judging import Reference
from agentor.crashtest.orders import Outcome
from agentor.crashtest.quoting import short
from agentor.engine import events as ev
from agentor.engine.batch import NO_FAILURES
from agentor.engine.events import Event

_KEYLESS = (
    '{} is declared as "idempotent" and takes no ctx, so it cannot pass ctx.idempotency_key on: whoever it calls must know '
    "a second start by the arguments alone."
)
_BEGUN = (
    "Loading the module begins a run of its own, in each process of the test, and asks that run's model each time: put what "
    'is to happen once under `if __name__ == "__main__":`.'
)


def notes(first: Evidence, reference: Reference, outcome: Outcome) -> Iterator[str]:
    names = {event.call_id: event.name for event in first.log if event.call_id is not None}
    if differing := sorted({str(names.get(call_id)) for call_id in reference.varying}):
        yield f"Answers differently each time, also without a crash: {', '.join(differing)}."
    yield from sorted(set(map(_failure, failures(first))))
    if outcome.own_store not in (None, "SQLiteStore"):
        yield f"Tested on a SQLiteStore; the agent's own is a {outcome.own_store}."
    if first.state.status == "paused":
        yield "The run waits for a person; approve (--approve) consents, and tests what follows, too."
    elif not any(mark.kind == "start" for mark in first.marks) and not reference.unseen(first):
        yield _nothing_started(first)
    yield from (_KEYLESS.format(name) for name in outcome.keyless)
    if outcome.begun:
        yield _BEGUN


def failures(run: Evidence) -> list[Event]:
    """The results that say that a call failed, or could not be one."""
    results = (event for event in run.log if event.type == ev.TOOL_RESULT)
    return [event for event in results if event.error and event.error not in NO_FAILURES]


def _failure(result: Event) -> str:
    return f"{result.name} fails without a crash, too: it answered {short(result.result, 300)}"


def _nothing_started(first: Evidence) -> str:
    why = (
        "No tool was started, for no call could be made as the model asked for it"
        if failures(first)
        else "No tool was called"
    )
    return f"{why}: an input that leads to calls would test more."
