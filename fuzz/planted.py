"""Faults to plant in the real code, each taking one protection away while the block lasts. See `fuzz.canaries`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import apsw

from agentor import consent, delivery, opening
from agentor import worker as working
from agentor.engine.asking import Asking
from agentor.engine.batch import SETTLED, Batch
from agentor.engine.calling import Calling
from agentor.engine.decide import Decision, Finish, Reopen, resumption
from agentor.engine.ending import closing
from agentor.engine.events import Event, Message, PendingCall, RunResult
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder, off_loop
from agentor.engine.replay import RunState
from agentor.engine.runner import Runner
from agentor.engine.staged import Staged
from agentor.engine.store import file, file_ends, sqlite_leases, sqlite_log
from agentor.engine.store import sqlite_deleting as deleting
from agentor.engine.store.sqlite_confined import Confinement
from agentor.engine.store.sqlite_transact import SQLiteTransaction
from agentor.engine.store.summary import COUNTS, summary
from agentor.engine.store.transacting import Letter, Transaction
from agentor.errors import LeaseLostError, NotWaitingError, SequenceConflictError
from agentor.launch import Launch
from agentor.opening import Opening
from agentor.stopping import Stop, Stopper
from fuzz.world import World


@contextlib.contextmanager
def no_fence() -> Iterator[None]:
    """The store no longer compares the term of an append with the lease."""
    with mock.patch.object(sqlite_leases, "check", return_value=None):
        yield


@contextlib.contextmanager
def names_stay_in_the_cache() -> Iterator[None]:
    """The file store does not bring the names of its files to the disk."""
    with mock.patch.object(file, "sync_directory"), mock.patch.object(file_ends, "sync_directory"):
        yield


@contextlib.contextmanager
def lines_of_others_are_shown_at_once() -> Iterator[None]:
    """The file store shows what it has not brought to the disk."""
    with mock.patch.object(file_ends.Ends, "bring_to_disk"):
        yield


@contextlib.contextmanager
def everybody_counts_as_dead() -> Iterator[None]:
    """A lease is given to whoever asks, as if its holder were gone."""
    with mock.patch.object(World, "is_gone", return_value=True):
        yield


@contextlib.contextmanager
def act_before_writing() -> Iterator[None]:
    """Tools start from a batch that is not recorded yet."""
    real = Staged.add

    def without_claims(self: Any, event: Any) -> None:
        if event.type != "tool_call":
            real(self, event)

    with mock.patch.object(Staged, "add", without_claims):
        yield


@contextlib.contextmanager
def effects_apart() -> Iterator[None]:
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
def statement_by_statement() -> Iterator[None]:
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
def forgotten_first() -> Iterator[None]:
    """A letter is taken out of the outbox and then handed over."""
    real = delivery._hand_over

    async def forget_and_hand_over(handler: Any, letter: Letter) -> None:
        store = handler.__self__.store
        await off_loop(store, store.letter_delivered, letter)
        await real(handler, letter)

    with mock.patch.object(delivery, "_hand_over", forget_and_hand_over):
        yield


@contextlib.contextmanager
def shown_first() -> Iterator[None]:
    """A reader is shown an event, and then it is recorded."""
    real = Runner._record

    async def show_and_record(self: Runner, staged: Staged) -> None:
        await self._show(staged)
        await real(self, staged)

    with mock.patch.object(Runner, "_record", show_and_record):
        yield


@contextlib.contextmanager
def any_decision_counts() -> Iterator[None]:
    """A call is decided upon whether it still waits or not."""

    def found(state: RunState, run_id: str, call_id: str, *_: Any) -> PendingCall:
        calls = state.batch.calls if state.batch else ()
        call = next((each for each in calls if each.call_id == call_id), None)
        if call is None:
            raise NotWaitingError(call_id)
        run = state.batch.nonce if state.batch else None
        return PendingCall(call.call_id, call.name, dict(call.args), None, run=run)

    with mock.patch.object(consent, "find_pending", found):
        yield


@contextlib.contextmanager
def forks_are_forgotten() -> Iterator[None]:
    """Deleting a run takes all of its events away, also those that its forks share."""
    everything = deleting._TAKE.replace("seq > :needed", "seq > 0 * :needed")
    assert everything != deleting._TAKE
    with mock.patch.object(deleting, "_TAKE", everything):
        yield


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Whoever works on a run does not look whether its end was asked for."""

    async def look(self: Stopper) -> Stop:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it is never done")

    with mock.patch.object(Stopper, "_look", look):
        yield


@contextlib.contextmanager
def once_more() -> Iterator[None]:
    """A call in doubt is started again, whatever its tool says."""
    with mock.patch.object(Calling, "_may_not_start", return_value=False):
        yield


@contextlib.contextmanager
def settled_is_approved() -> Iterator[None]:
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
def settled_in_other_words() -> Iterator[None]:
    """What a person gives as a call's result is replaced."""
    with mock.patch.object(consent, "result_text", return_value="done"):
        yield


@contextlib.contextmanager
def idle_worker() -> Iterator[None]:
    """A worker takes no run that failed."""
    with mock.patch.object(working, "TAKES", (None, "paused")):
        yield


@contextlib.contextmanager
def digest_of_something_else() -> Iterator[None]:
    """A generation carries another digest than that of the conversation it was sent."""
    real = Asking._generation

    def misread(self: Asking, *reply: Any) -> Event:
        return real(self, *reply).with_(digest="0" * 32)

    with mock.patch.object(Asking, "_generation", misread):
        yield


@contextlib.contextmanager
def finished_runs_reopened() -> Iterator[None]:
    """A resume opens a new segment whether the run has its answer or not."""
    real = resumption

    def reopening(state: RunState, *rest: Any) -> Reopen | None:
        return real(state, *rest) or Reopen(len(state.transcript))

    async def resume(self: Launch, run_id: str, *_: Any, **__: Any) -> RunResult:
        known = await self._load(run_id)
        return await self._go_on(Keeper(self.store, run_id), known, False, len(known[1]))

    with (
        mock.patch.object(opening, "resumption", reopening),
        mock.patch.object(Launch, "_resume", resume),
    ):
        yield


@contextlib.contextmanager
def asked_after_the_fork() -> Iterator[None]:
    """A fork is there before its input is, which only the one who forks knows."""
    copy, again = Launch._copy, Opening.again
    known: list[tuple[Opening, str, Sequence[Message]]] = []

    def copied(
        self: Launch, run_id: str, fork_id: str, at: Any, messages: Sequence[Message], *rest: Any
    ) -> None:
        known.append((self._opening, fork_id, messages))
        copy(self, run_id, fork_id, at, (), *rest)

    def opened(
        self: Opening, run_id: str, state: RunState, messages: Sequence[Message] = ()
    ) -> list[Event]:
        own = [m for by, fork, asked in known if by is self and fork == run_id for m in asked]
        return again(self, run_id, state, [*messages, *own])

    with (
        mock.patch.object(Launch, "_copy", copied),
        mock.patch.object(Opening, "again", opened),
    ):
        yield


@contextlib.contextmanager
def answers_not_looked_at() -> Iterator[None]:
    """All calls of a batch are begun again, also those that have their answer."""
    with mock.patch.object(Batch, "missing", property(lambda batch: batch.calls)):
        yield


@contextlib.contextmanager
def tokens_not_summed() -> Iterator[None]:
    """The summary of a run counts no tokens."""
    real = summary

    def without_tokens(events: Any) -> dict[str, Any]:
        return {name: value for name, value in real(events).items() if name not in COUNTS[1:]}

    with mock.patch.object(sqlite_log, "summary", without_tokens):
        yield


@contextlib.contextmanager
def conflicts_swallowed() -> Iterator[None]:
    """Of two workers that write one seq, both are told yes; the fence, which would come first, is gone."""
    real = sqlite_log.append

    def agreeable(connection: apsw.Connection, run_id: str, events: Sequence[Event]) -> None:
        with contextlib.suppress(SequenceConflictError):
            real(connection, run_id, events)

    with no_fence(), mock.patch.object(sqlite_log, "append", agreeable):
        yield


@contextlib.contextmanager
def losses_not_noticed() -> Iterator[None]:
    """A worker neither renews its lease nor asks whether it can be trusted, and takes a refusal for a failed save."""
    real = Recorder.save

    async def save(self: Recorder, events: Sequence[Event]) -> None:
        with contextlib.suppress(LeaseLostError):
            await real(self, events)

    async def keep(self: Keeper) -> None:
        await asyncio.get_running_loop().create_future()

    with (
        mock.patch.object(Recorder, "save", save),
        mock.patch.object(Keeper, "keep", keep),
        mock.patch.object(Keeper, "check"),
    ):
        yield


@contextlib.contextmanager
def ended_too_soon() -> Iterator[None]:
    """The end of a run is recorded, and then its model is asked once more."""
    real = Runner._ask

    async def end_and_ask(self: Runner) -> None:
        end = Finish("failed", error="ended too soon")
        await self._record(Staged(self.state, closing(self.state, end, 0.0, 0.0)))
        await real(self)

    with mock.patch.object(Runner, "_ask", end_and_ask):
        yield


@contextlib.contextmanager
def deletions_that_do_nothing() -> Iterator[None]:
    """A run is said to be deleted, and is not."""
    with mock.patch.object(deleting, "mark"):
        yield


@contextlib.contextmanager
def no_answer_is_enough() -> Iterator[None]:
    """A run that has its answer fails instead of ending."""
    real = Runner._decide

    def demanding(self: Runner, state: RunState) -> Decision:
        decision = real(self, state)
        if isinstance(decision, Finish) and decision.status == "completed":
            return Finish("failed", error="not good enough")
        return decision

    with mock.patch.object(Runner, "_decide", demanding):
        yield


@contextlib.contextmanager
def mistakes_of_our_own() -> Iterator[None]:
    """The engine raises what no document speaks of."""
    with mock.patch.object(Calling, "add_outcome", side_effect=KeyError("a mistake")):
        yield
