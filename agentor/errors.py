"""Everything agentor raises, in one tree. A class exists only where a caller would act differently on it.

    AgentorError
    ├─ StoreError                       the store could not do it
    │  ├─ SequenceConflictError         another writer owns this (run, seq): stop this worker
    │  ├─ LogCorruptError               a gap or damage in the log: this run is not replayed
    │  ├─ RunNotFoundError (KeyError)
    │  ├─ RunExistsError (ValueError)
    │  ├─ StoreClosedError              it never saves again: stop this worker
    │  ├─ UnfinishedDeleteError         the runs are deleted, the room they took is not all given back
    │  └─ StatementError                a statement of a transactional tool was refused: see its `kind`
    ├─ LeaseError
    │  ├─ LeaseHeldError                somebody else works on the run: try later
    │  └─ LeaseLostError                somebody else took the run over: stop this worker
    ├─ ModelError                       the provider failed, or its reply cannot be used
    │  └─ OutputMismatchError (ValueError)
    └─ ConfigError (ValueError)         a bad run id, two tools of one name, resume without a store
       └─ NotWaitingError               a decision for a call that was decided already: nothing to do
          └─ AskedAgainError            ... or was asked about again since: look at it as it is now

Messages name the run, the seq and what to do next. Exceptions that are not ours (a model's, the openai
package's) reach the caller with their own type; `agentor` adds a note that names the run.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentor.engine.store.protocol import Removed


class AgentorError(Exception):
    """Root of the tree: catch it to catch everything that agentor itself raises."""


class StoreError(AgentorError):
    """The store could not do what was asked (disk full, locked beyond the timeout, not a database ...)."""


class SequenceConflictError(StoreError):
    """An event's seq is not the next one of its run: another writer has gone on with the run.

    The worker that sees this stops. It has not lost anything: the log holds what the other writer did.
    """

    def __init__(self, run_id: str, seq: int | None, expected: int | None = None) -> None:
        self.run_id = run_id
        self.seq = seq
        self.expected = expected
        next_seq = "" if expected is None else f"; the next is {expected}"
        super().__init__(
            f"run {run_id!r}: seq {seq} is taken or leaves a gap{next_seq}. "
            "Another worker has written to this run; resume it to go on from what was saved."
        )


class LogCorruptError(StoreError):
    """A run's log has a hole or an event that cannot be read. Only this run is affected."""

    def __init__(self, run_id: str | None, seq: int | None, reason: str) -> None:
        self.run_id = run_id
        self.seq = seq
        self.reason = reason
        where = "log" if run_id is None else f"run {run_id!r}"
        at = "" if seq is None else f" at seq {seq}"
        self.damage = f"damaged{at}: {reason}"  # for those who name the run themselves
        super().__init__(
            f"{where} is {self.damage}. It is not replayed; `agentor verify` shows the damage."
        )


class RunNotFoundError(StoreError, KeyError):
    """The store has no run of that id."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"no run {run_id!r} in this store; `agentor runs` or store.list_runs() names those there are"
        )

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class RunExistsError(StoreError, ValueError):
    """The id chosen for a new run or fork is taken. Nothing was written."""

    def __init__(self, run_id: str, what: str = "") -> None:
        self.run_id = run_id
        told = f": {what}" if what else ""
        super().__init__(f"run {run_id!r} already exists{told}; choose another id")


class StoreClosedError(StoreError):
    """The store was closed, and never saves again. A run that is under way on it ends, also under best effort."""

    def __init__(self, store: str) -> None:
        super().__init__(f"{store}: this store is closed; open a new one")


class UnfinishedDeleteError(StoreError):
    """Runs are deleted, those of `removed` and no others (but for those of which the message says that it is not known); then
    a step failed, and the room they took is not all free.

    `removed.events` and `.bytes` count what was taken away so far. The next `delete` or `prune` of any run goes on with it.
    """

    def __init__(self, removed: Removed, reason: str) -> None:
        self.removed = removed
        run_ids = removed.run_ids
        named = ", ".join(map(repr, run_ids[:5])) + (", ..." if len(run_ids) > 5 else "")
        who = f"run {named} is" if len(run_ids) == 1 else f"{len(run_ids):,} runs are"
        which = "" if len(run_ids) == 1 else f" ({named})"
        super().__init__(
            f"{who} deleted{which}, but the step after that failed, and the room that was taken is not all given back: "
            f"the next delete or prune goes on with that. {reason}"
        )


class StatementError(StoreError):
    """A statement of a transactional tool was refused, or its transaction has ended.

    `kind`: "constraint" (the data does not allow it), "invalid" (no SQL, no such table, a value that cannot be bound),
    "forbidden" (not for a tool), "failed" (the disk), "ended" (the whole transaction was rolled back, or is committed).
    But for "ended" the statements before it stand, and the tool may go on.
    """

    def __init__(self, message: str, kind: str = "failed") -> None:
        self.kind = kind
        super().__init__(message)


class LeaseError(AgentorError):
    """Root of what the lease on a run can say."""

    def __init__(
        self, message: str, *, run_id: str, owner: str | None, expires_at: float | None
    ) -> None:
        self.run_id = run_id
        self.owner = owner
        self.expires_at = expires_at  # seconds since the epoch
        super().__init__(message)


class LeaseHeldError(LeaseError):
    """A live worker holds the run: of another process, or of this one (`is_own`). Raised before any model call or tool."""

    def __init__(self, run_id: str, owner: str | None, expires_at: float | None) -> None:
        process = (owner or "unknown").split("/")[0]
        self.is_own = process == f"{os.getpid()}@{socket.gethostname()}"  # this very process has it
        who = "this process itself works on" if self.is_own else "another worker has"
        super().__init__(
            f"{who} run {run_id!r} ({process}); try again later, or wait for it: resume(run_id, wait=True)",
            run_id=run_id,
            owner=owner,
            expires_at=expires_at,
        )


class LeaseLostError(LeaseError):
    """This worker's lease on the run is gone; it has stopped and appends nothing more."""

    def __init__(
        self, run_id: str, owner: str | None = None, expires_at: float | None = None
    ) -> None:
        by = "" if owner is None else f"; it is now held by {owner}"
        super().__init__(
            f"the lease on run {run_id!r} was lost{by}. This worker has stopped; what it had saved is kept.",
            run_id=run_id,
            owner=owner,
            expires_at=expires_at,
        )


class ModelError(AgentorError):
    """The provider failed after its retries, or gave a reply that cannot be used.

    `retryable` says whether another try, or another model, may help: true for a broken transport or an
    overloaded server, false for a refusal or an answer cut off by length.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message)


class OutputMismatchError(ModelError, ValueError):
    """The answer did not match `output_type`, also after one corrective turn."""


class ConfigError(AgentorError, ValueError):
    """The program asked for something that cannot be: fix the call, not the run."""


class NotWaitingError(ConfigError):
    """A person's decision about a call that does not, or no longer, wait for one. Nothing was written."""


class AskedAgainError(NotWaitingError):
    """A decision for a question that was replaced: the call was started, and is asked about again. Nothing was written.

    `question` is the one that waits now. The call may have other arguments by now, and may have taken effect.
    """

    def __init__(self, run_id: str, call_id: str, question: int | None) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.question = question
        super().__init__(
            f"call {call_id!r} of run {run_id!r} was asked about again, at seq {question}: look at what waits now, then "
            f"decide with question={question}"
        )
