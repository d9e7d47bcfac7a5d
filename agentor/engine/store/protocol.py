"""What a store is, and what more it may offer.

Three methods make a store. Everything else is found by protocol, never by class: a store that can commit several
events at once, keep workers apart, or fork without copying says so by having the method.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, runtime_checkable

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.strict_json import clean_text
from agentor.errors import ConfigError


@runtime_checkable
class Store(Protocol):
    """Where a run is written down. `append` is called on a worker thread, once per event, in order."""

    def append(self, run_id: str, event: Event) -> None:
        """Save one event; return when it is durable.

        An event with a seq must be the run's next one, else `SequenceConflictError`; one without takes the next.
        """

    def load(self, run_id: str) -> list[Event]:
        """Every event of a run in order; [] if there is no such run."""

    def list_runs(self) -> list[str]:
        """Every known run id, newest last."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append to a run until it expires. `term` is one higher at each change of hands."""

    run_id: str
    owner: str
    term: int
    expires_at: float  # seconds since the epoch, by the clock of whoever granted it
    ttl_s: float


@runtime_checkable
class AppendsMany(Protocol):
    """All of the events or none, in one commit. With a lease, its term is checked in the same transaction
    (`LeaseLostError`); without one, a run that somebody holds is refused (`LeaseHeldError`)."""

    def append_many(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> None: ...


@runtime_checkable
class Submits(Protocol):
    """`append_many` that does not wait: the future is done when the commit is on disk, or says why not."""

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]: ...


@runtime_checkable
class Creates(Protocol):
    """Writes a new run that appears at once with all its events, or not at all. `RunExistsError`: the id is taken.

    For a store in which a crash may leave the first few events of one `append_many`.
    """

    def create_run(self, run_id: str, events: Sequence[Event]) -> None: ...


@runtime_checkable
class Forks(Protocol):
    """Copy a run in one write. `RunExistsError` if `dst_run_id` is taken, `RunNotFoundError` if there is no source.

    A store whose `fork` takes `at` copies only the events up to that seq, itself included. One that takes `event`, too,
    appends it in the same write; the lease of `dst_run_id` may be held by whoever forks, and is not asked for. One that
    takes `of` copies only a run that has this event, copied along or not: else the id is another's, `RunNotFoundError`.
    """

    def fork(self, src_run_id: str, dst_run_id: str) -> None: ...


@runtime_checkable
class Leases(Protocol):
    """Keeps workers apart. `acquire` raises `LeaseHeldError`; `renew` raises `LeaseLostError`."""

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease: ...

    def renew(self, lease: Lease) -> Lease: ...

    def release(self, lease: Lease) -> None: ...


@dataclass(frozen=True, slots=True)
class Holder:
    """Who works on a run: a name that says which process it is, and until when the run is its own (epoch seconds).

    None: until it lets go or dies, where a lease has no end of its own.
    """

    owner: str
    expires_at: float | None


@runtime_checkable
class NamesHolder(Protocol):
    """Tells who holds a run, for people who look; nobody's lease is touched. None: nobody, as far as can be known."""

    def holder(self, run_id: str) -> Holder | None: ...


@dataclass(frozen=True, slots=True)
class Removed:
    """What was deleted, or would be: run ids, oldest first, and what their events came to.

    Events that a fork still needs are not counted: they stay. `held` were spared because somebody works on them,
    or keeps their file locked.
    """

    run_ids: list[str]
    held: list[str]
    events: int
    bytes: int  # of the events as JSON


@runtime_checkable
class Deletes(Protocol):
    """Takes whole runs away; forks of them keep all they have.

    `delete` raises `RunNotFoundError`, and `LeaseHeldError` while somebody works on the run; `prune` spares such runs.
    """

    def delete(self, run_id: str) -> Removed: ...

    def prune(
        self,
        *,
        older_than: float | timedelta | datetime | None = None,
        status: str | Iterable[str] | None = None,
        keep: int | None = None,
        only: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> Removed:
        """Delete the runs that everything given applies to; with `dry_run` only say which.

        `older_than`: last changed here before a moment, or so many seconds ago; an import is a change. `status`: one or
        several; without it, every run that has ended, which spares those that are unfinished or paused. `keep`: not the
        newest so many of that status. `only`: none but these, by id, for whoever was shown them. `ConfigError` if nothing is given, or a
        status that we do not know and that no run here has.
        """


@runtime_checkable
class Tails(Protocol):
    """Follows logs while others write to them: see `agentor.engine.store.tailing.Tailing`.

    With a run id, its events with a seq above `after`; without one, `(position, run_id, event)` of all runs. Ends after
    `timeout` seconds without news.
    """

    def last_position(self) -> int: ...

    def tail(
        self,
        run_id: str | None = None,
        *,
        after: int = 0,
        stop: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Iterator[Any]: ...

    def atail(
        self, run_id: str | None = None, *, after: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Any]: ...


@runtime_checkable
class Peeks(Protocol):
    """Tells whether a run is as somebody has read it, without reading it again."""

    def peek(self, run_id: str, seq: int) -> tuple[int, Event | None]:
        """The seq of the last event of a run, and its event `seq` if it has one, both as of one moment.

        `(0, None)` if there is no such run.
        """


@runtime_checkable
class Signals(Protocol):
    """What people ask of a run that another process may be working on, such as to cancel it.

    A kind is a short word (`check_signal`). Whoever holds the run looks now and then, and takes the word away when it
    has done what was asked. No lease is needed to ask; asking twice is asking once.
    """

    def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
        """Ask, durably. `by` says who asks, for people to read: it is kept in valid Unicode. The run need not exist yet."""

    def asked(self, run_id: str) -> list[str]:
        """The kinds that are asked and not answered, by name. Cheap: made to be called once a second."""

    def answered(self, run_id: str, kind: str) -> None:
        """Take a question away. Nothing happens if it was not asked."""


@runtime_checkable
class KnowsAskers(Protocol):
    """Signals that remember who asked, so that the log of the run can say so."""

    def asked_by(self, run_id: str, kind: str) -> str | None:
        """Who was the first to ask what is not answered yet; None if nobody has, or did not say who."""


@runtime_checkable
class TellsAsked(Protocol):
    """Signals that can be looked up for all runs at once, so that many runs of one process cost one look."""

    def runs_asked(self, kind: str) -> list[str]:
        """The ids of the runs that are asked this and have not answered. Cheap, like `asked`."""


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_SIGNAL = re.compile(r"[a-z][a-z0-9_]{0,31}")


def new_run_id() -> str:
    """A fresh id, 32 hexadecimal digits."""
    return clock.new_id()


def check_run_id(run_id: str) -> str:
    """The id itself, if it is one: 1 to 128 of letters, digits, '.', '_' and '-', not starting with a dot.

    Ids become file names and URL parts, so every entry checks them, with every store. `ConfigError`, a ValueError.
    """
    if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id):
        return run_id
    raise ConfigError(
        f"bad run id {run_id!r}: use 1 to 128 of the letters a-z and A-Z, digits, '.', '_' and '-', "
        "and do not start with a dot"
    )


def check_signal(kind: str) -> str:
    """The kind itself, if it is one: 1 to 32 of a-z, digits and '_', beginning with a letter. `ConfigError`."""
    if isinstance(kind, str) and _SIGNAL.fullmatch(kind):
        return kind
    raise ConfigError(
        f"bad kind of signal {kind!r}: use 1 to 32 of the letters a-z, digits and '_', and begin with a letter"
    )


SECONDS: Final = "a number of seconds above 0"


def check_asker(by: str | None) -> str | None:
    """Who asks, in valid Unicode. `ConfigError` if it is no text."""
    if by is None or isinstance(by, str):
        return by and clean_text(by)
    raise ConfigError(f"by={by!r}: say in text who asks, or leave it out")


def check_wanted(owner: str, ttl_s: float) -> None:
    """`ConfigError` if a lease cannot be had by this holder or for this time: the name must be a text that every store can
    keep, the time a number."""
    if not (isinstance(owner, str) and owner and clean_text(owner) == owner):
        raise ConfigError(f"owner={owner!r}: name the holder of the lease in text")
    check_number("ttl_s", ttl_s, SECONDS)


def check_seq(name: str, seq: Any) -> int:
    """The seq or position itself. `ConfigError` if it is no whole number, or above every one that a store can give."""
    if type(seq) is int and abs(seq) < 2**63:
        return seq
    raise ConfigError(f"{name}={shown(seq)}: give the seq or position of an event, a whole number")


def check_number(name: str, value: Any, what: str) -> float:
    """The number as a float. `ConfigError`, which asks for `what`, if it is none, or one that no float can hold."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    raise ConfigError(f"{name}={shown(value)}: give {what}")


def shown(value: Any) -> str:
    too_long = isinstance(value, int) and abs(value) >= 2**63  # Python may even refuse to write it
    return "a number that is too large" if too_long else repr(value)
