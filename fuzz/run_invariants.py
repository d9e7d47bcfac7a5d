"""What must hold of who works on a run, and of its ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from agentor.engine.events import FORK, RUN_END
from fuzz.evidence import ITERATIONS_TO_NOTICE, Evidence
from fuzz.ledger import Ledger

CANCEL_S_MAX: Final = 60.0  # more than two looks for a cancel on a slow disk


def finished_runs_call_nothing(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Resuming a finished run calls no model and no tool, and writes nothing."""
    for each in evidence.resumed:
        if each.calls or each.events_written:
            yield f"{each.run_id}: {each.calls} calls, {each.events_written} events written"


def one_worker_goes_on_at_each_seq(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Of two workers that write the same seq of a run, one is told yes."""
    winners: dict[tuple[str, int], str] = {}
    for each in evidence.acknowledged:
        winner = winners.setdefault((each.run_id, each.seq), each.worker)
        if winner != each.worker:
            yield f"seq {each.seq} of {each.run_id} was given to {winner} and to {each.worker}"


def old_terms_append_nothing(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Once a run's lease has changed hands, nothing is written under the old term."""
    for each in evidence.acknowledged:
        if each.term is not None and each.newest_term is not None and each.term < each.newest_term:
            yield f"seq {each.seq} of {each.run_id} was written in term {each.term} of {each.newest_term}"


def only_the_holder_acts(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A worker whose lease somebody else took asks no model and starts no tool; one that was asleep has a few
    iterations of its loop to notice, and one that could not save may have a lease that it was not told of."""
    for act in evidence.acts:
        holds = act.standing.term is None or act.term == act.standing.term
        holds |= act.term is None and act.unsaved and act.standing.is_of(act.worker)
        if not holds and act.iterations_awake > ITERATIONS_TO_NOTICE:
            yield (
                f"{act.worker} went on with {act.run_id} ({act.what}) in term {act.term}; "
                f"its lease is in term {act.standing.term}"
            )


def nobody_acts_beside_another(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """While one worker's model call or tool is under way, no other worker begins one in the same run, unless the
    first is suspended or has just been."""
    for act in evidence.acts:
        for other in act.beside:
            yield f"{act.run_id}: {act.what} of {act.worker} began beside {other}"


def ended_runs_are_left_alone(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """While a run has an end in its log, nobody asks a model or starts a tool for it, unless a best-effort save of it
    has failed or the worker was suspended and has not noticed yet."""
    for act in evidence.acts:
        is_open = act.standing.status in (None, "unfinished")
        if not is_open and not act.unsaved and act.iterations_awake > ITERATIONS_TO_NOTICE:
            yield f"{act.run_id} is {act.standing.status}, and {act.worker} began a {act.what}"


def cancels_are_heard(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A worker that is awake begins nothing in a run for long after somebody has asked for its end."""
    for act in evidence.acts:
        if act.cancel_heard_s > CANCEL_S_MAX:
            yield f"{act.worker} began a {act.what} of {act.run_id}, {act.cancel_heard_s:.0f} s after it was cancelled"


def asked_cancels_stay(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A cancel that was answered "asked" stays with its run, whoever takes that up, until an end is recorded."""
    yield from evidence.lost_cancels


def workers_take_no_ends(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A worker that looks for work takes no run that was cancelled or has come to another end that is not its to mend."""
    yield from evidence.taken_ends


def answers_are_the_end(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Nothing follows the end of a completed run but, in a fork of it, what the fork adds."""
    for run_id, log in ledger.logs.items():
        own = log.events[max(log.inherited - 1, 0) :]
        for end, event in itertools.pairwise(own):
            if (end.type, end.status) == (RUN_END, "completed") and event.type != FORK:
                yield f"seq {event.seq} of {run_id}, a {event.type}, follows its answer"


def held_runs_are_not_deleted(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A run that somebody works on is not deleted."""
    for each in evidence.deletions:
        if each.holder is not None:
            yield f"{each.run_id} was deleted, and {each.holder} had it"


def pruned_runs_have_ended(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """What a prune takes that names no status has ended, and waits for nobody."""
    for each in evidence.pruned:
        if each.status in ("unfinished", "paused"):
            yield f"{each.run_id} was pruned, and was {each.status}"


def refused_appends_leave_nothing(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """What the store has refused to append to a run is not in its log afterwards, unless the same was taken: when it was
    tried again, or of whoever has the run by then and came to it, too."""
    taken = {(each.run_id, each.seq, each.body) for each in evidence.acknowledged}
    for each in evidence.refused:
        if (each.run_id, each.seq, each.body) in taken:
            continue
        log = ledger.logs.get(each.run_id)
        if log is not None and log.bodies[each.seq - 1 : each.seq] == [each.body]:
            yield f"seq {each.seq} of {each.run_id}, refused to {each.worker}, is in the log"


def strict_runs_stop_when_unsaved(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A worker whose durability is strict begins nothing more in a run of which it could not save something, until it
    takes the run up again."""
    for act in evidence.acts:
        if act.should_have_stopped:
            yield f"{act.worker} began a {act.what} of {act.run_id}, of which it could not save something"
