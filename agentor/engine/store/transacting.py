"""What a store may offer beyond saving: a program's own writes in one commit with the events, and letters to deliver.

Found by protocol, as everything that a store may offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from agentor.engine.events import Event
from agentor.engine.store.protocol import Lease

Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Transaction(Protocol):
    """One transaction on the store's file, fed from any thread; everything else that writes waits for its end.

    `begun` is done when it is open, or says why it is not: `LeaseLostError`, `StoreError`.
    """

    begun: Future[None]

    def execute(self, sql: str, params: Params) -> list[Row]:
        """All rows of the statements. `StatementError` if one is refused or fails, or the transaction has ended."""

    def execute_many(self, sql: str, params: Sequence[Params]) -> None:
        """The same statement with one set of parameters after another."""

    def put(self, kind: str, payload: str, key: str) -> None:
        """Write a letter of strict JSON, to be delivered once this is committed."""

    def commit(self, events: Sequence[Event]) -> Future[None]:
        """Append the events and commit all. The future tells when it is on disk, or why nothing is: `StatementError`
        if it is over because of what it did, `StoreError` if the disk or the log refuses, `LeaseError`."""

    def abort(self) -> None:
        """Take everything back. Nothing happens once it was committed or has ended."""


@runtime_checkable
class Transacts(Protocol):
    """Can make what a tool writes and the result of its call one commit."""

    def transact(
        self, run_id: str, lease: Lease | None = None, limit_s: float = 5.0
    ) -> Transaction:
        """Open a transaction as soon as the writer is free. It is rolled back `limit_s` seconds after it began.

        The lease is checked in the transaction itself, as for an append.
        """


@dataclass(frozen=True, slots=True)
class Letter:
    """Something to be delivered. `attempts` counts this one; `claim` is the right to say how it went."""

    number: int  # in the order in which they were committed
    run_id: str
    kind: str
    payload: Any
    key: str
    attempts: int
    claim: str


@dataclass(frozen=True, slots=True)
class WaitingLetter:
    """A letter that has not been delivered yet, as one may look at it. Times are seconds since the epoch."""

    run_id: str
    key: str
    kind: str
    payload: Any
    put_at: float
    due_at: float  # of one that is being delivered: when it may be claimed again
    attempts: int
    is_claimed: bool  # somebody has begun to deliver it, and has not said how it went
    error: str | None  # of the last attempt that failed


@runtime_checkable
class ShowsLetters(Protocol):
    """Lets people see what has not been delivered, and decide about it."""

    def letters(self, run_id: str | None = None) -> list[WaitingLetter]:
        """Those of a run, or all, in the order in which they were committed."""

    def retry_letter(self, key: str) -> bool:
        """Let it be delivered now; False if there is no such letter, or somebody is about to deliver it."""

    def drop_letter(self, key: str) -> bool:
        """Forget it, as if it had been delivered; False if there is no such letter."""


@runtime_checkable
class Posts(Protocol):
    """Keeps letters until they are delivered, and keeps those who deliver them apart."""

    def claim_letter(self, ttl_s: float) -> Letter | None:
        """The oldest letter that is due, for nobody else during `ttl_s` seconds; None if there is none."""

    def letter_delivered(self, letter: Letter) -> None:
        """Forget it. Nothing happens if somebody else has claimed it since."""

    def letter_failed(self, letter: Letter, wait_s: float, error: str) -> None:
        """Let it be claimed again in `wait_s` seconds."""

    def undelivered(self) -> int:
        """How many letters are left, claimed ones included."""
