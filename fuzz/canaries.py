"""Faults planted on purpose: an alarm that never rings proves nothing.

Each canary takes one protection away from the real code and says which invariant must notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import apsw

from agentor import consent, delivery
from agentor import worker as working
from agentor.engine.batch import SETTLED
from agentor.engine.calling import Calling
from agentor.engine.events import Event, PendingCall
from agentor.engine.recorder import Recorder, off_loop
from agentor.engine.replay import RunState
from agentor.engine.runner import Runner
from agentor.engine.staged import Staged
from agentor.engine.store import file, sqlite_leases
from agentor.engine.store import sqlite_deleting as deleting
from agentor.engine.store.sqlite_confined import Confinement
from agentor.engine.store.sqlite_transact import SQLiteTransaction
from agentor.engine.store.transacting import Letter, Transaction
from agentor.errors import NotWaitingError
from agentor.stopping import Stop, Stopper
from fuzz.invariants import (
    Invariant,
    acknowledged_appends_survive,
    cancels_are_heard,
    decisions_are_made_once,
    effects_come_with_their_results,
    every_prefix_is_legal,
    files_stay_whole,
    forks_leave_their_parents_alone,
    letters_follow_their_results,
    money_is_conserved,
    nobody_acts_beside_another,
    old_terms_append_nothing,
    once_tools_start_once,
    payments_are_made_once,
    people_are_believed,
    readers_see_what_is_recorded,
    seqs_are_dense,
    tools_start_after_their_claim,
    workers_take_every_run,
)
from fuzz.script import Action, draw
from fuzz.world import World


@dataclass(frozen=True)
class Canary:
    """`planted` is in force while a world is played; `rings` names the invariants of which one must be broken."""

    name: str
    rings: frozenset[str]
    planted: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    store_options: dict[str, Any] = field(default_factory=dict)
    script: Callable[[int], list[Action]] = draw
    on_files: bool | None = None  # None: as the seed says


@contextlib.contextmanager
def _no_fence() -> Iterator[None]:
    """The store no longer compares the term of an append with the lease."""
    with mock.patch.object(sqlite_leases, "check", return_value=None):
        yield


def _taken_over(seed: int) -> list[Action]:
    """A worker is suspended, and wakes while somebody takes its run over."""
    at = random.Random(f"{seed}/taken over").uniform(0.1, 10)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(at, "stall", {"worker": "w1", "seconds": 100.0, "until_taken": True}),
        Action(at + 31, "take_over", {"worker": "w2"}),
    ]


@contextlib.contextmanager
def _names_stay_in_the_cache() -> Iterator[None]:
    """The file store does not bring the names of its files to the disk."""
    with mock.patch.object(file, "_sync_directory"):
        yield


@contextlib.contextmanager
def _everybody_counts_as_dead() -> Iterator[None]:
    """A lease is given to whoever asks, as if its holder were gone."""
    with mock.patch.object(World, "is_gone", return_value=True):
        yield


@contextlib.contextmanager
def _act_before_writing() -> Iterator[None]:
    """Tools start from a batch that is not recorded yet."""
    real = Staged.add

    def without_claims(self: Any, event: Any) -> None:
        if event.type != "tool_call":
            real(self, event)

    with mock.patch.object(Staged, "add", without_claims):
        yield


@contextlib.contextmanager
def _effects_apart() -> Iterator[None]:
    """What a transactional tool wrote is committed first, and its result afterwards."""
    real = Recorder.commit

    async def in_two_commits(
        self: Recorder, transaction: Transaction, events: Sequence[Event]
    ) -> None:
        await real(self, transaction, [])
        await self.save(events)

    with mock.patch.object(Recorder, "commit", in_two_commits):
        yield


@contextlib.contextmanager
def _statement_by_statement() -> Iterator[None]:
    """Each statement of a transactional tool is committed by itself."""
    real = SQLiteTransaction._answer

    def and_commit(
        self: SQLiteTransaction, connection: apsw.Connection, confinement: Confinement, request: Any
    ) -> None:
        real(self, connection, confinement, request)
        with confinement.lifted():
            connection.execute("COMMIT; BEGIN IMMEDIATE; SAVEPOINT one")

    with mock.patch.object(SQLiteTransaction, "_answer", and_commit):
        yield


@contextlib.contextmanager
def _forgotten_first() -> Iterator[None]:
    """A letter is taken out of the outbox and then handed over."""
    real = delivery._hand_over

    async def forget_and_hand_over(handler: Any, letter: Letter) -> None:
        store = handler.__self__.store
        await off_loop(store, store.letter_delivered, letter)
        await real(handler, letter)

    with mock.patch.object(delivery, "_hand_over", forget_and_hand_over):
        yield


@contextlib.contextmanager
def _shown_first() -> Iterator[None]:
    """A reader is shown an event, and then it is recorded."""
    real = Runner._record

    async def show_and_record(self: Runner, staged: Staged) -> None:
        await self._show(staged)
        await real(self, staged)

    with mock.patch.object(Runner, "_record", show_and_record):
        yield


@contextlib.contextmanager
def _any_decision_counts() -> Iterator[None]:
    """A call is decided upon whether it still waits or not."""

    def found(state: RunState, run_id: str, call_id: str, *_: Any) -> PendingCall:
        calls = state.batch.calls if state.batch else ()
        call = next((each for each in calls if each.call_id == call_id), None)
        if call is None:
            raise NotWaitingError(call_id)
        return PendingCall(call.call_id, call.name, dict(call.args), None)

    with mock.patch.object(consent, "find_pending", found):
        yield


def _decided_again(seed: int) -> list[Action]:
    """After each decision somebody comes late with another one."""
    script = draw(seed)
    details = {"worker": "w3", "approve": False, "number": None, "second": None, "late": True}
    late = [Action(each.at_s + 0.5, "decide", details) for each in script if each.kind == "decide"]
    return sorted([*script, *late], key=lambda action: action.at_s)


@contextlib.contextmanager
def _forks_are_forgotten() -> Iterator[None]:
    """Deleting a run takes all of its events away, also those that its forks share."""
    everything = deleting._TAKE.replace("seq > :needed", "seq > 0 * :needed")
    assert everything != deleting._TAKE
    with mock.patch.object(deleting, "_TAKE", everything):
        yield


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


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Whoever works on a run does not look whether its end was asked for."""

    async def look(self: Stopper) -> Stop:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it is never done")

    with mock.patch.object(Stopper, "_look", look):
        yield


def _cancelled_elsewhere(seed: int) -> list[Action]:
    """A run is cancelled by somebody else than the one who works on it."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(1.0, "cancel", {"worker": "w2", "run": "run"}),
    ]


@contextlib.contextmanager
def _once_more() -> Iterator[None]:
    """A call in doubt is started again, whatever its tool says."""
    with mock.patch.object(Calling, "_may_not_start", return_value=False):
        yield


@contextlib.contextmanager
def _settled_is_approved() -> Iterator[None]:
    """That a call did happen is recorded as consent to it."""
    real = consent.decide_call

    async def consented(
        store: Any, run_id: str, call_id: str, decision: Event, *rest: Any, **more: Any
    ) -> PendingCall:
        if decision.status == SETTLED:
            decision, rest = decision.with_(status="approved"), (None, *rest[1:])
        return await real(store, run_id, call_id, decision, *rest, **more)

    with mock.patch.object(consent, "decide_call", consented):
        yield


@contextlib.contextmanager
def _settled_in_other_words() -> Iterator[None]:
    """What a person gives as a call's result is replaced."""
    with mock.patch.object(consent, "result_text", return_value="done"):
        yield


@contextlib.contextmanager
def _idle_worker() -> Iterator[None]:
    """A worker takes no run that failed."""
    with mock.patch.object(working, "TAKES", (None, "paused")):
        yield


def _rings(*invariants: Invariant) -> frozenset[str]:
    return frozenset(each.__name__ for each in invariants)


ALL: Final = (
    Canary("no fence", _rings(old_terms_append_nothing), _no_fence, script=_taken_over),
    Canary(
        "synchronous=NORMAL",
        _rings(acknowledged_appends_survive),
        store_options={"synchronous": "NORMAL"},
    ),
    Canary(
        "names not synced",
        _rings(acknowledged_appends_survive),
        _names_stay_in_the_cache,
        on_files=True,
    ),
    Canary("leases for everybody", _rings(nobody_acts_beside_another), _everybody_counts_as_dead),
    Canary("no claim before a tool", _rings(tools_start_after_their_claim), _act_before_writing),
    Canary("effects apart from results", _rings(effects_come_with_their_results), _effects_apart),
    Canary("a commit for each statement", _rings(money_is_conserved), _statement_by_statement),
    Canary("letters forgotten first", _rings(letters_follow_their_results), _forgotten_first),
    Canary("shown before recorded", _rings(readers_see_what_is_recorded), _shown_first),
    Canary(
        "decided by whoever comes",
        _rings(decisions_are_made_once),
        _any_decision_counts,
        script=_decided_again,
    ),
    Canary(
        "forks forgotten by a deletion",
        _rings(
            forks_leave_their_parents_alone, seqs_are_dense, every_prefix_is_legal, files_stay_whole
        ),
        _forks_are_forgotten,
        script=_parent_deleted,
    ),
    Canary("deaf to cancels", _rings(cancels_are_heard), _deaf, script=_cancelled_elsewhere),
    Canary("once and once more", _rings(once_tools_start_once), _once_more),
    Canary("settled and begun again", _rings(payments_are_made_once), _settled_is_approved),
    Canary("settled in other words", _rings(people_are_believed), _settled_in_other_words),
    Canary("an idle worker", _rings(workers_take_every_run), _idle_worker),
)
