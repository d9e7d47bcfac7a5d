"""What must hold in every world, each as a function that yields its breaches. A new promise is one more line in ALL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agentor.engine.events import APPROVAL, FORK, GENERATION, Event, Usage
from agentor.engine.replay import RunState, verify
from fuzz import call_invariants, run_invariants
from fuzz.bank import ACCOUNTS, OPENING, TRANSFER
from fuzz.evidence import Evidence
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
        if log is None and each.run_id in evidence.deleting:
            continue
        if log is None or len(log.bodies) < each.seq:
            yield f"seq {each.seq} of {each.run_id}, acknowledged to {each.worker}, is gone"
        elif log.bodies[each.seq - 1] != each.body:
            yield f"seq {each.seq} of {each.run_id}, acknowledged to {each.worker}, is another event"


def loaded_events_survive(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Every event that a worker was shown by a store of files is in the log afterwards, whoever wrote it."""
    for (run_id, seq), body in evidence.loaded.items():
        log = ledger.logs.get(run_id)
        if log is None and run_id in evidence.deleting:
            continue
        if log is None or log.bodies[seq - 1 : seq] != [body]:
            yield f"seq {seq} of {run_id}, once loaded, is gone or is another event"


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
    """A fork changes no byte of its parent, and begins with the parent's own bytes, also when that is deleted."""
    for fork in evidence.forks:
        parent, own = ledger.logs.get(fork.parent), ledger.logs.get(fork.run_id)
        if parent is None and fork.parent in evidence.deleting:
            pass
        elif (
            parent is None or tuple(parent.bodies[: len(fork.parent_bodies)]) != fork.parent_bodies
        ):
            yield f"{fork.parent}, parent of {fork.run_id}, has changed"
        if own is None and fork.run_id in evidence.deleting:
            continue
        if own is None or tuple(own.bodies[: fork.at]) != fork.parent_bodies[: fork.at]:
            yield f"{fork.run_id} does not begin as {fork.parent} does"


def forks_answer_what_they_are_asked(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A fork that was given an input is unfinished until its model has been asked about it, and its model is asked
    nothing else before, whoever goes on with it."""
    for run_id, says in evidence.inputs.items():
        log = ledger.logs.get(run_id)
        if log is None or len(log.events) <= log.inherited:  # the last is for others to judge
            continue
        before = _times_said(log.states[log.inherited], says)
        own = slice(log.inherited, None)
        for state, event in zip(log.states[own], log.events[own], strict=False):
            if event.type == GENERATION and _times_said(state, says) <= before:
                yield f"seq {event.seq} of {run_id}: its model was not told {says!r}"
        if log.state.is_complete and _times_said(log.state, says) <= before:
            yield f"{run_id} is completed, and was never told {says!r}"


def _times_said(state: RunState, says: str) -> int:
    return sum(message.get("content") == says for message in state.messages)


def decisions_are_made_once(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """To each time that a call is asked about there is at most one decision, whoever else decides at that moment or
    later; a fork asks by itself of what was approved in its parent and not started."""
    for run_id, log in ledger.logs.items():
        asked: set[tuple[int, str | None]] = set()
        for state, event in zip(log.states, log.events, strict=False):
            batch = state.batch
            if event.type == FORK and batch is not None:
                approved = (c for c in batch.missing if batch.approval_of(c) == "approved")
                asked |= {(batch.seq, call.call_id) for call in approved}
            if event.type == APPROVAL and state.batch is not None:
                call = (state.batch.seq, event.call_id)
                if event.status == "asked":
                    asked.add(call)
                elif call not in asked:
                    yield f"seq {event.seq} of {run_id}: {event.call_id} was {event.status} without being asked about"
                else:
                    asked.remove(call)


def money_is_conserved(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """The balances of a bank that lives in the file are what its recorded transfers make of them, and their sum never
    changes."""
    books = evidence.books
    if books.balances != books.expected:
        yield f"the balances are {books.balances}; the transfers make {books.expected}"
    if books.balances and sum(books.balances.values()) != ACCOUNTS * OPENING:
        yield f"{sum(books.balances.values())} in all instead of {ACCOUNTS * OPENING}"


def effects_come_with_their_results(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """An effect of a transactional tool is in the file if and only if its result is, and once for each result."""
    results = Counter(
        (run_id, key)
        for run_id, log in ledger.logs.items()
        for key, _ in log.results(run_id, TRANSFER)
    )
    for call in results | evidence.books.transfers:
        run_id, key = call
        there = 1 if run_id in evidence.deleting and run_id not in ledger.logs else results[call]
        if evidence.books.transfers[call] != there:
            yield f"{key} in {run_id}: {evidence.books.transfers[call]} effects, {there} results"


def letters_follow_their_results(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """What a transactional tool puts into the outbox is delivered at least once, with the key of its call, if the
    call's result is in the file, and never if it is not."""
    if evidence.letters_left:
        yield f"{evidence.letters_left} letters were never delivered"
    delivered = {(letter.run_id, letter.key) for letter in evidence.letters}
    for run_id, key in delivered - set(evidence.books.transfers):
        yield f"a letter of {key} in {run_id}, which has no result, was delivered"
    for run_id, key in set(evidence.books.transfers) - delivered:
        yield f"no letter of {key} in {run_id} was delivered"


def readers_see_what_is_recorded(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """What the reader of a stream is shown is in the log already, unless a best-effort save of the run has failed, and
    the text that was streamed is the text that is recorded."""
    for shown in evidence.shown:
        if not shown.is_recorded and not shown.unsaved:
            yield f"seq {shown.seq} of {shown.run_id} was shown before it was recorded"
    for told in evidence.told:
        if told.streamed != told.recorded:
            yield f"{told.run_id} streamed {told.streamed!r} and recorded {told.recorded!r}"


def deleted_runs_are_gone(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """A run that somebody was told is deleted is in no list, and nothing of it can be loaded."""
    for run_id in evidence.deleted.intersection([*ledger.logs, *evidence.remnants]):
        yield f"{run_id} is still there"


def workers_take_every_run(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Once faults stop, a worker that works until it is idle leaves no run that it could go on with."""
    yield from evidence.left_over


def every_run_ends(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Once faults stop, every run comes to its end within a bounded number of steps."""
    yield from evidence.stuck


def files_stay_whole(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """The database passes SQLite's integrity check and agentor's own."""
    yield from evidence.damage


def errors_are_expected_ones(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Whatever fails fails with an error of agentor's own tree, or with the model's own, and with a StoreError that speaks
    of no run only where a fault has happened since the worker was born."""
    yield from evidence.surprises


Invariant = Callable[[Evidence, Ledger], Iterator[str]]

ALL: Final[tuple[Invariant, ...]] = (
    acknowledged_appends_survive,
    loaded_events_survive,
    seqs_are_dense,
    every_prefix_is_legal,
    replay_rebuilds_what_was_sent,
    run_invariants.finished_runs_call_nothing,
    call_invariants.tools_start_after_their_claim,
    call_invariants.careful_tools_start_after_their_claim,
    call_invariants.tools_get_what_is_recorded,
    call_invariants.a_call_has_one_key,
    call_invariants.refusals_stand,
    call_invariants.results_are_what_was_said,
    call_invariants.declared_effects_are_not_given_up,
    call_invariants.settled_calls_never_run_again,
    call_invariants.once_tools_start_once,
    call_invariants.people_are_believed,
    call_invariants.payments_are_made_once,
    usage_is_the_sum_of_generations,
    forks_leave_their_parents_alone,
    forks_answer_what_they_are_asked,
    run_invariants.one_worker_goes_on_at_each_seq,
    run_invariants.old_terms_append_nothing,
    run_invariants.only_the_holder_acts,
    run_invariants.nobody_acts_beside_another,
    run_invariants.ended_runs_are_left_alone,
    run_invariants.cancels_are_heard,
    run_invariants.asked_cancels_stay,
    run_invariants.workers_take_no_ends,
    run_invariants.answers_are_the_end,
    run_invariants.held_runs_are_not_deleted,
    run_invariants.pruned_runs_have_ended,
    run_invariants.refused_appends_leave_nothing,
    run_invariants.strict_runs_stop_when_unsaved,
    decisions_are_made_once,
    money_is_conserved,
    effects_come_with_their_results,
    letters_follow_their_results,
    readers_see_what_is_recorded,
    deleted_runs_are_gone,
    workers_take_every_run,
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
