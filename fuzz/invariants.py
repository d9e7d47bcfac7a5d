"""What must hold in every world, each as a function that yields its breaches. A new promise is one more line in ALL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agentor.engine.events import GENERATION, Event, Usage
from agentor.engine.replay import verify
from fuzz.evidence import ITERATIONS_TO_NOTICE, Evidence, ToolStart
from fuzz.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Breach:
    """An invariant that did not hold, and how."""

    invariant: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail}"


def acknowledged_appends_survive(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Every event that a worker was told is saved is in the log afterwards, at its seq, as it was."""
    for each in evidence.acknowledged:
        log = ledger.logs.get(each.run_id)
        if log is None or len(log.bodies) < each.seq:
            yield f"seq {each.seq} of {each.run_id}, acknowledged to {each.worker}, is gone"
        elif log.bodies[each.seq - 1] != each.body:
            yield f"seq {each.seq} of {each.run_id}, acknowledged to {each.worker}, is another event"


def seqs_are_dense(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """The events of a run are numbered from 1 without gap or repeat, a fork's from where it left its parent."""
    yield from ledger.gaps


def every_prefix_is_legal(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Every prefix of every log replays to a conversation that the strictest server would take."""
    yield from ledger.illegal
    yield from (f"a request that was sent: {breach}" for breach in evidence.illegal_requests)


def replay_rebuilds_what_was_sent(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """The conversation that replay rebuilds before each generation is the one whose digest the generation carries."""
    for run_id, log in ledger.logs.items():
        yield from verify(log.events, run_id)


def finished_runs_call_nothing(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Resuming a finished run calls no model and no tool, and writes nothing."""
    for each in evidence.resumed:
        if each.calls or each.events_written:
            yield f"{each.run_id}: {each.calls} calls, {each.events_written} events written"


def tools_start_after_their_claim(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool starts only when its tool_call is in the log, unless a best-effort save of its run has failed."""
    for start in evidence.tool_starts:
        if not start.claimed and not start.unsaved:
            yield f"{start.call_id} of {start.run_id} started by {start.worker} unclaimed"


def settled_calls_never_run_again(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool whose result is in the log is never started again for that call."""
    for start in evidence.tool_starts:
        if start.answered:
            yield f"{start.call_id} of {start.run_id} started by {start.worker} although answered"


def once_tools_start_once(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A tool that must not be started twice for one call is not, in its run and its forks together, unless a person
    consented to it, its claim could not be saved, or its worker was suspended between the claim and the start."""
    starts: dict[str, list[ToolStart]] = {}
    for start in evidence.tool_starts:
        if start.is_once and not start.unsaved and not start.just_woken:
            starts.setdefault(start.key, []).append(start)
    for key, started in starts.items():
        consents = {start.run_id: 0 for start in started}
        for start in started:
            consents[start.run_id] = max(consents[start.run_id], start.consents)
        if len(started) > 1 + sum(consents.values()):
            yield f"{key} was started by {' and by '.join(start.worker for start in started)}"


def usage_is_the_sum_of_generations(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """What a run is said to have used is the sum over the generations of its log, in results and in summaries."""
    for result in evidence.results:
        if result.usage != _spent(result.events):
            yield f"the result of {result.run_id}: {result.usage}"
    for run_id, log in ledger.logs.items():
        if log.state.usage != _spent(log.events):
            yield f"the replay of {run_id}: {log.state.usage}"
        if evidence.stored_usage.get(run_id, log.state.usage) != log.state.usage:
            yield f"the summary of {run_id}: {evidence.stored_usage[run_id]}"


def forks_leave_their_parents_alone(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A fork changes no byte of its parent, and begins with the parent's own bytes."""
    for fork in evidence.forks:
        parent, own = ledger.logs.get(fork.parent), ledger.logs.get(fork.run_id)
        if parent is None or tuple(parent.bodies[: len(fork.parent_bodies)]) != fork.parent_bodies:
            yield f"{fork.parent}, parent of {fork.run_id}, has changed"
        if own is None or tuple(own.bodies[: fork.at]) != fork.parent_bodies[: fork.at]:
            yield f"{fork.run_id} does not begin as {fork.parent} does"


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
    iterations of its loop to notice."""
    for act in evidence.acts:
        holds = act.current_term is None or act.term == act.current_term
        if not holds and act.iterations_awake > ITERATIONS_TO_NOTICE:
            yield (
                f"{act.worker} went on with {act.run_id} ({act.what}) in term {act.term}; "
                f"its lease is in term {act.current_term}"
            )


def nobody_acts_beside_another(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """While one worker's model call or tool is under way, no other worker begins one in the same run, unless the
    first is suspended or has just been."""
    for act in evidence.acts:
        for other in act.beside:
            yield f"{act.run_id}: {act.what} of {act.worker} began beside {other}"


def every_run_ends(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Once faults stop, every run comes to its end within a bounded number of steps."""
    yield from evidence.stuck


def files_stay_whole(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """The database passes SQLite's integrity check and agentor's own."""
    yield from evidence.damage


def errors_are_expected_ones(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Whatever fails fails with an error of agentor's own tree, or with the model's own."""
    yield from evidence.surprises


Invariant = Callable[[Evidence, Ledger], Iterator[str]]

ALL: Final[tuple[Invariant, ...]] = (
    acknowledged_appends_survive,
    seqs_are_dense,
    every_prefix_is_legal,
    replay_rebuilds_what_was_sent,
    finished_runs_call_nothing,
    tools_start_after_their_claim,
    settled_calls_never_run_again,
    once_tools_start_once,
    usage_is_the_sum_of_generations,
    forks_leave_their_parents_alone,
    one_worker_goes_on_at_each_seq,
    old_terms_append_nothing,
    only_the_holder_acts,
    nobody_acts_beside_another,
    every_run_ends,
    files_stay_whole,
    errors_are_expected_ones,
)


def judge(evidence: Evidence, ledger: Ledger) -> list[Breach]:
    """Every breach of every invariant."""
    return [
        Breach(invariant.__name__, detail)
        for invariant in ALL
        for detail in invariant(evidence, ledger)
    ]


def _spent(events: list[Event]) -> Usage:
    counts = (event.usage for event in events if event.type == GENERATION and event.usage)
    return sum(counts, Usage())
