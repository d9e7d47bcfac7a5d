"""What a store under observation tells of, whichever store it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from agentor.engine.events import Event
from agentor.engine.store.protocol import Lease, Removed
from agentor.errors import StoreError

T = TypeVar("T")

CommitPoint: TypeAlias = Literal["before a commit", "after a commit"]


class Observer(Protocol):
    """Who is told what the store has promised."""

    def appended(self, run_id: str, events: Sequence[Event], lease: Lease | None) -> None: ...

    def loaded(self, run_id: str, events: Sequence[Event]) -> None:
        """By a store that shows only what is on the disk for good."""

    def not_appended(
        self, run_id: str, error: BaseException, events: Sequence[Event] = ()
    ) -> None: ...

    def granted(self, lease: Lease) -> None: ...

    def event_count(self, run_id: str) -> int:
        """Of a run in the file, now; without an end that nobody may change."""

    def asked(self, run_id: str, known: int) -> None:
        """Whoever works on a run, which had `known` events before, will hear of a signal."""

    def forked(self, src_run_id: str, dst_run_id: str, at: int | None) -> None: ...

    def deleting(self, run_ids: Iterable[str] | None) -> None:
        """These runs, or any, may be gone from now on."""

    def deleted(self, run_ids: Iterable[str], pruned: bool = False) -> None: ...

    def wait_for_lock(self) -> None:
        """Return when no other living process is in the middle of a transaction, or has been for too long."""

    def at_commit(self, point: CommitPoint) -> None:
        """May raise `ProcessEnded`."""


class Observed:
    """Put before a store class, it tells of leases, forks and deletions. Appends each store tells of in its own way."""

    _observer: Observer

    def _commit(self, change: Callable[[], T]) -> T:
        """Where a store that commits in the caller's thread shows its commit points."""
        return change()

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        store: Any = super()
        try:
            lease: Lease = self._commit(lambda: store.acquire(run_id, owner, ttl_s))
        except StoreError as error:  # a run that is new goes on unsaved
            self._observer.not_appended(run_id, error)
            raise
        self._observer.granted(lease)
        return lease

    def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
        store: Any = super()
        known = self._observer.event_count(run_id)
        self._commit(lambda: store.ask(run_id, kind, by))
        self._observer.asked(run_id, known)

    def fork(
        self,
        src_run_id: str,
        dst_run_id: str,
        *,
        at: int | None = None,
        event: Event | None = None,
        of: Event | None = None,
    ) -> None:
        store: Any = super()
        self._commit(lambda: store.fork(src_run_id, dst_run_id, at=at, event=event, of=of))
        self._observer.forked(src_run_id, dst_run_id, at)

    def delete(self, run_id: str) -> Removed:
        store: Any = super()
        self._observer.deleting([run_id])
        removed: Removed = self._commit(lambda: store.delete(run_id))
        self._observer.deleted(removed.run_ids)
        return removed

    def prune(self, *, dry_run: bool = False, **how: Any) -> Removed:
        store: Any = super()
        self._observer.deleting(None)
        removed: Removed = self._commit(lambda: store.prune(dry_run=dry_run, **how))
        if not dry_run:
            self._observer.deleted(removed.run_ids, pruned=True)
        return removed
