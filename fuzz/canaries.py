"""Faults planted on purpose: an alarm that never rings proves nothing.

Each canary takes one protection away from the real code and says which invariant must notice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz import (
    call_invariants,
    invariants,
    planted,
    planted_calls,
    planted_ends,
    run_invariants,
    scenes,
)
from fuzz.invariants import Invariant
from fuzz.script import Action, draw


@dataclass(frozen=True, eq=False)
class Canary:
    """`planted` is in force while a world is played; `rings` names the invariants that must be broken."""

    name: str
    rings: frozenset[str]
    planted: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    store_options: dict[str, Any] = field(default_factory=dict)
    script: Callable[[int], list[Action]] = draw
    on_files: bool | None = None  # None: as the seed says


def _rings(*named: Invariant) -> frozenset[str]:
    return frozenset(each.__name__ for each in named)


ALL: Final = (
    Canary(
        "no fence",
        _rings(run_invariants.old_terms_append_nothing),
        planted.no_fence,
        script=scenes.taken_over,
    ),
    Canary(
        "synchronous=NORMAL",
        _rings(invariants.acknowledged_appends_survive),
        store_options={"synchronous": "NORMAL"},
    ),
    Canary(
        "names not synced",
        _rings(invariants.acknowledged_appends_survive),
        planted.names_stay_in_the_cache,
        on_files=True,
    ),
    Canary(
        "lines not synced",
        _rings(invariants.loaded_events_survive),
        planted.lines_of_others_are_shown_at_once,
        script=scenes.looked_at_unsynced,
        on_files=True,
    ),
    Canary(
        "leases for everybody",
        _rings(run_invariants.nobody_acts_beside_another),
        planted.everybody_counts_as_dead,
    ),
    Canary(
        "no claim before a tool",
        _rings(call_invariants.tools_start_after_their_claim),
        planted.act_before_writing,
    ),
    Canary(
        "effects apart from results",
        _rings(invariants.effects_come_with_their_results),
        planted.effects_apart,
    ),
    Canary(
        "a commit for each statement",
        _rings(invariants.money_is_conserved),
        planted.statement_by_statement,
    ),
    Canary(
        "letters forgotten first",
        _rings(invariants.letters_follow_their_results),
        planted.forgotten_first,
    ),
    Canary(
        "shown before recorded",
        _rings(invariants.readers_see_what_is_recorded),
        planted.shown_first,
    ),
    Canary(
        "decided by whoever comes",
        _rings(invariants.decisions_are_made_once),
        planted.any_decision_counts,
        script=scenes.decided_again,
    ),
    Canary(
        "forks forgotten by a deletion",
        _rings(
            invariants.forks_leave_their_parents_alone,
            invariants.seqs_are_dense,
            invariants.every_prefix_is_legal,
            invariants.files_stay_whole,
        ),
        planted.forks_are_forgotten,
        script=scenes.parent_deleted,
    ),
    Canary(
        "asked after the fork",
        _rings(invariants.forks_answer_what_they_are_asked),
        planted.asked_after_the_fork,
        script=scenes.forker_dies,
    ),
    Canary(
        "deaf to cancels",
        _rings(run_invariants.cancels_are_heard),
        planted.deaf,
        script=scenes.cancelled_elsewhere,
    ),
    Canary("once and once more", _rings(call_invariants.once_tools_start_once), planted.once_more),
    Canary(
        "settled and begun again",
        _rings(call_invariants.payments_are_made_once),
        planted.settled_is_approved,
    ),
    Canary(
        "settled in other words",
        _rings(call_invariants.people_are_believed),
        planted.settled_in_other_words,
    ),
    Canary("an idle worker", _rings(invariants.workers_take_every_run), planted.idle_worker),
    Canary(
        "another digest",
        _rings(invariants.replay_rebuilds_what_was_sent),
        planted.digest_of_something_else,
    ),
    Canary(
        "finished and reopened",
        _rings(run_invariants.finished_runs_call_nothing),
        planted.finished_runs_reopened,
    ),
    Canary(
        "answered and begun again",
        _rings(call_invariants.settled_calls_never_run_again),
        planted.answers_not_looked_at,
    ),
    Canary(
        "tokens not summed",
        _rings(invariants.usage_is_the_sum_of_generations),
        planted.tokens_not_summed,
    ),
    Canary(
        "both are told yes",
        _rings(run_invariants.one_worker_goes_on_at_each_seq),
        planted.conflicts_swallowed,
        script=scenes.taken_over,
    ),
    Canary(
        "a loss not noticed",
        _rings(run_invariants.only_the_holder_acts),
        planted.losses_not_noticed,
        script=scenes.taken_over,
    ),
    Canary(
        "asked after the end",
        _rings(run_invariants.ended_runs_are_left_alone),
        planted.ended_too_soon,
    ),
    Canary(
        "a deletion of nothing",
        _rings(invariants.deleted_runs_are_gone),
        planted.deletions_that_do_nothing,
        script=scenes.deleted,
    ),
    Canary("no answer is enough", _rings(invariants.every_run_ends), planted.no_answer_is_enough),
    Canary(
        "a mistake of our own",
        _rings(invariants.errors_are_expected_ones),
        planted.mistakes_of_our_own,
    ),
    Canary(
        "half-finished and given up",
        _rings(call_invariants.declared_effects_are_not_given_up),
        planted_calls.half_finished_is_given_up,
    ),
    Canary(
        "best effort is enough",
        _rings(call_invariants.careful_tools_start_after_their_claim),
        planted_calls.best_effort_is_enough,
        script=scenes.full_for_a_while,
    ),
    Canary(
        "changed arguments ignored",
        _rings(call_invariants.tools_get_what_is_recorded),
        planted_calls.changes_are_ignored,
    ),
    Canary(
        "keys of their own",
        _rings(call_invariants.a_call_has_one_key),
        planted_calls.forks_have_keys_of_their_own,
    ),
    Canary(
        "refused and started",
        _rings(call_invariants.refusals_stand),
        planted_calls.refused_is_started,
    ),
    Canary(
        "reconciled in other words",
        _rings(call_invariants.results_are_what_was_said),
        planted_calls.reconciled_in_other_words,
    ),
    Canary(
        "a cancel forgotten",
        _rings(run_invariants.asked_cancels_stay),
        planted_ends.cancels_are_forgotten,
        script=scenes.cancelled_after_a_death,
    ),
    Canary(
        "cancelled and taken",
        _rings(run_invariants.workers_take_no_ends),
        planted_ends.cancelled_is_open,
        script=scenes.cancelled_and_looked_for,
        on_files=True,
    ),
    Canary(
        "cancelled with an answer",
        _rings(run_invariants.answers_are_the_end),
        planted_ends.answers_can_be_cancelled,
        script=scenes.cancelled_at_last,
    ),
    Canary(
        "deleted under way",
        _rings(run_invariants.held_runs_are_not_deleted),
        planted_ends.deleted_under_way,
        script=scenes.deleted_under_way,
    ),
    Canary(
        "everything is pruned",
        _rings(run_invariants.pruned_runs_have_ended),
        planted_ends.everything_is_pruned,
        script=scenes.pruned_half_way,
    ),
    Canary(
        "refused too late",
        _rings(run_invariants.refused_appends_leave_nothing),
        planted_ends.refused_too_late,
        script=scenes.taken_over,
    ),
    Canary(
        "strict and going on",
        _rings(run_invariants.strict_runs_stop_when_unsaved),
        planted_ends.strict_goes_on,
        script=scenes.full_for_a_while,
    ),
    Canary(
        "no fork is made",
        _rings(invariants.errors_are_expected_ones),
        planted_ends.no_fork_is_made,
    ),
)
