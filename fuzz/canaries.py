"""Faults planted on purpose: an alarm that never rings proves nothing.

Each canary takes one protection away from the real code and says which invariant must notice.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz import invariants, planted
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


def _taken_over(seed: int) -> list[Action]:
    """A worker is suspended, and wakes while somebody takes its run over."""
    at = random.Random(f"{seed}/taken over").uniform(0.1, 10)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(at, "stall", {"worker": "w1", "seconds": 100.0, "until_taken": True}),
        Action(at + 31, "take_over", {"worker": "w2"}),
    ]


def _looked_at_unsynced(seed: int) -> list[Action]:
    """A worker dies between a write and its sync, somebody loads the run, and the power goes."""
    at = random.Random(f"{seed}/looked at unsynced").uniform(0.1, 10)
    crash = {"worker": "w1", "where": "before a commit", "known_dead": True}
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(at, "crash", crash),
        Action(at + 20, "power", {"call": "sync", "after": 1, "survival": "lost"}),
        Action(at + 21, "resume", {"worker": "w2", "run": "run"}),
    ]


def _decided_again(seed: int) -> list[Action]:
    """After each decision somebody comes late with another one."""
    script = draw(seed)
    details = {"worker": "w3", "approve": False, "number": None, "second": None, "late": True}
    late = [Action(each.at_s + 0.5, "decide", details) for each in script if each.kind == "decide"]
    return sorted([*script, *late], key=lambda action: action.at_s)


def _parent_deleted(seed: int) -> list[Action]:
    """A run is forked and then deleted."""
    at = random.Random(f"{seed}/parent deleted").uniform(30, 60)
    details = {"run": "run", "fork": "branch", "at": None, "says": "And then?"}
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 2}),
        Action(at, "fork", {"worker": "w2", **details}),
        Action(at + 30, "delete", {"worker": "w1", "run": "run"}),
        Action(at + 40, "power", {"call": "write", "after": 1, "survival": "kept"}),
        Action(at + 41, "resume", {"worker": "w3", "run": "branch"}),
    ]


def _forker_dies(seed: int) -> list[Action]:
    """A run that was left half-way is forked to be told something, and whoever does it dies on the way."""
    after_s = random.Random(f"{seed}/forker dies").uniform(0, 0.1)
    details = {"run": "run", "fork": "branch", "at": None, "says": "And then?"}
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(3.0, "crash", {"worker": "w1", "where": "now", "known_dead": True}),
        Action(60.0, "fork", {"worker": "w2", **details}),
        Action(60.0 + after_s, "crash", {"worker": "w2", "where": "now", "known_dead": True}),
        Action(70.0, "resume", {"worker": "w3", "run": "branch"}),
    ]


def _cancelled_elsewhere(seed: int) -> list[Action]:
    """A run is cancelled by somebody else than the one who works on it."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(1.0, "cancel", {"worker": "w2", "run": "run"}),
    ]


def _deleted(seed: int) -> list[Action]:
    """A run is deleted when it has ended."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 2}),
        Action(100.0, "delete", {"worker": "w2", "run": "run"}),
    ]


def _rings(*named: Invariant) -> frozenset[str]:
    return frozenset(each.__name__ for each in named)


ALL: Final = (
    Canary(
        "no fence",
        _rings(invariants.old_terms_append_nothing),
        planted.no_fence,
        script=_taken_over,
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
        script=_looked_at_unsynced,
        on_files=True,
    ),
    Canary(
        "leases for everybody",
        _rings(invariants.nobody_acts_beside_another),
        planted.everybody_counts_as_dead,
    ),
    Canary(
        "no claim before a tool",
        _rings(invariants.tools_start_after_their_claim),
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
        script=_decided_again,
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
        script=_parent_deleted,
    ),
    Canary(
        "asked after the fork",
        _rings(invariants.forks_answer_what_they_are_asked),
        planted.asked_after_the_fork,
        script=_forker_dies,
    ),
    Canary(
        "deaf to cancels",
        _rings(invariants.cancels_are_heard),
        planted.deaf,
        script=_cancelled_elsewhere,
    ),
    Canary("once and once more", _rings(invariants.once_tools_start_once), planted.once_more),
    Canary(
        "settled and begun again",
        _rings(invariants.payments_are_made_once),
        planted.settled_is_approved,
    ),
    Canary(
        "settled in other words",
        _rings(invariants.people_are_believed),
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
        _rings(invariants.finished_runs_call_nothing),
        planted.finished_runs_reopened,
    ),
    Canary(
        "answered and begun again",
        _rings(invariants.settled_calls_never_run_again),
        planted.answers_not_looked_at,
    ),
    Canary(
        "tokens not summed",
        _rings(invariants.usage_is_the_sum_of_generations),
        planted.tokens_not_summed,
    ),
    Canary(
        "both are told yes",
        _rings(invariants.one_worker_goes_on_at_each_seq),
        planted.conflicts_swallowed,
        script=_taken_over,
    ),
    Canary(
        "a loss not noticed",
        _rings(invariants.only_the_holder_acts),
        planted.losses_not_noticed,
        script=_taken_over,
    ),
    Canary(
        "asked after the end", _rings(invariants.ended_runs_are_left_alone), planted.ended_too_soon
    ),
    Canary(
        "a deletion of nothing",
        _rings(invariants.deleted_runs_are_gone),
        planted.deletions_that_do_nothing,
        script=_deleted,
    ),
    Canary("no answer is enough", _rings(invariants.every_run_ends), planted.no_answer_is_enough),
    Canary(
        "a mistake of our own",
        _rings(invariants.errors_are_expected_ones),
        planted.mistakes_of_our_own,
    ),
)
