"""Any number of runs, threads and processes on one SQLite file.

Writes go through one writer per store, which commits what is waiting together; reads have connections of their
own and see what is committed. The tables are explained at the head of schema.sql.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Self

import apsw

from agentor.engine.events import Event
from agentor.engine.interrupts import result_of
from agentor.engine.store import sqlite_backup
from agentor.engine.store import sqlite_damage as damage
from agentor.engine.store import sqlite_deleting as deleting
from agentor.engine.store import sqlite_leases as leases
from agentor.engine.store import sqlite_log as log
from agentor.engine.store import sqlite_outbox as outbox
from agentor.engine.store import sqlite_runs as runs
from agentor.engine.store import sqlite_signals as signals
from agentor.engine.store.protocol import (
    SECONDS,
    Holder,
    Lease,
    Removed,
    check_asker,
    check_number,
    check_run_id,
    check_seq,
    check_signal,
    check_wanted,
)
from agentor.engine.store.pruning import Age, Choice
from agentor.engine.store.sqlite_file import Settings, check_sqlite_version
from agentor.engine.store.sqlite_opened import OpenedFile
from agentor.engine.store.sqlite_runs import RunRow
from agentor.engine.store.sqlite_transact import SQLiteTransaction
from agentor.engine.store.tailing import Bell, Found, News, Tailing, deleted_meanwhile
from agentor.engine.store.transacting import Letter, WaitingLetter
from agentor.errors import ConfigError, StoreClosedError

__all__ = ["RunRow", "SQLiteStore"]

_RUNS_PER_STEP = 100
_EVENTS_PER_LOOK = 500


class SQLiteStore(OpenedFile, Tailing):
    """Runs in one SQLite file, created when it is missing, readable and writable by its owner only.

    `lease_ttl_s`: seconds after which a holder that does not renew may be replaced. `busy_timeout_s`: how long a
    write waits for other processes. `synchronous`: "FULL" keeps every acknowledged event through a power cut;
    "NORMAL" may lose the last ones. `check`: look through the whole file for damage first, which takes a second
    per gigabyte or so. `vfs`: the name of an SQLite VFS. `tools_read_runs`: transactional tools may read the
    engine's tables through `ctx.db`, and with them all that any run in the file holds. Every refusal is a `StoreError` that names the path and
    what to do.

        with SQLiteStore("runs.db") as store:
            agent = Agentor(name="Weather", store=store)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_ttl_s: float = 30.0,
        busy_timeout_s: float = 10.0,
        synchronous: str = "FULL",
        check: bool = False,
        vfs: str | None = None,
        allow_network_filesystem: bool = False,
        tools_read_runs: bool = False,
    ) -> None:
        check_sqlite_version()
        if not 0 < check_number("lease_ttl_s", lease_ttl_s, SECONDS) < math.inf:
            raise ConfigError(f"lease_ttl_s={lease_ttl_s!r}: give {SECONDS}")
        super().__init__(
            Settings.checked(path, busy_timeout_s, synchronous, vfs),
            check=check,
            allow_network_filesystem=allow_network_filesystem,
        )
        self.lease_ttl_s = lease_ttl_s
        self._tools_read_runs = tools_read_runs
        self._bell = Bell()
        self._places = runs.Places()
        self._leftovers = deleting.Leftovers()

    def append(self, run_id: str, event: Event) -> None:
        """Save one event; return when it is on disk."""
        result_of(lambda: self.submit(run_id, [event]))

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        """Save all of the events in one commit, or none; return when they are on disk."""
        result_of(lambda: self.submit(run_id, events, lease))

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        """`append_many` without waiting. The future tells when the commit is on disk, or why there was none.

        Blocks only while 10,000 others wait, which takes a program that submits without ever waiting.
        """
        check_run_id(run_id)

        def operation(connection: apsw.Connection) -> None:
            leases.check(connection, run_id, lease)
            log.append(connection, run_id, events)

        future, bell = self._submit(operation), self._bell
        future.add_done_callback(lambda _: bell.ring(run_id))  # not self: it may be dropped by then
        return future

    def load(self, run_id: str) -> list[Event]:
        """Every event of a run in order, those it shares with the runs it was forked from first; [] if unknown."""
        check_run_id(run_id)
        return self._read(lambda connection: log.load(connection, run_id))

    def peek(self, run_id: str, seq: int) -> tuple[int, Event | None]:
        """The seq of the last event of a run and its event `seq`; (0, None) if unknown. One row is read."""
        check_run_id(run_id)
        return self._read(partial(log.peek, run_id=run_id, seq=check_seq("seq", seq)))

    def fork(
        self,
        src_run_id: str,
        dst_run_id: str,
        *,
        at: int | None = None,
        event: Event | None = None,
        of: Event | None = None,
    ) -> None:
        """Share a run's events, up to `at` (itself included) if given: one commit, whatever the length.

        `event` is appended in the same commit. `of`: an event that the run has, else it is another run.
        `RunNotFoundError`, `RunExistsError`: nothing was written.
        """
        check_run_id(src_run_id)
        check_run_id(dst_run_id)
        if at is not None:
            check_seq("at", at)
        # Events never change, so the part that is shared can be summed up before the transaction, if the id stays its run's.
        there = (
            None if at is None else self._read(partial(log.summary_at, run_id=src_run_id, at=at))
        )
        self._write(
            lambda connection: log.fork(connection, src_run_id, dst_run_id, at, event, there, of)
        )
        self._bell.ring(dst_run_id)

    def list_runs(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        before: str | None = None,
        newest: bool = False,
        status: str | None = None,
        agent: str | None = None,
        since: float | None = None,
    ) -> list[str]:
        """Run ids, newest last: a page of those that match everything given.

        `after`: the last id of the page before this one; `before`: the first id of the page after it. `newest`: where
        `limit` leaves some out, leave out the oldest. `since`: created here at or after, in seconds since the epoch.
        A page goes on from a run that was deleted since, if this store has given the page it ended or began; where the id
        is another run's by now, from the one that this store has shown last.
        `ConfigError`: not what can be asked for, as a status that we do not know and that no run here has;
        `RunNotFoundError`: no such run as `after` or `before`.
        """
        rows = self.runs(
            limit=limit,
            after=after,
            before=before,
            newest=newest,
            status=status,
            agent=agent,
            since=since,
        )
        return [row.run_id for row in rows]

    def runs(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        before: str | None = None,
        newest: bool = False,
        status: str | None = None,
        agent: str | None = None,
        since: float | None = None,
    ) -> list[RunRow]:
        """The same runs as `list_runs`, with status, usage and times."""
        return self._read(
            lambda connection: runs.page(
                connection,
                self._places,
                limit=limit,
                after=after,
                before=before,
                newest=newest,
                status=status,
                agent=agent,
                since=since,
            )
        )

    def parents(self) -> dict[str, tuple[str | None, int]]:
        """Of each run that shares events with another: which that is, and the last seq it has of it. What a fork was made
        of may be deleted, and its id another's by now; None where it is not known any more."""
        return self._read(runs.parents)

    def counts(self) -> dict[str, int]:
        """`{"runs": ..., "events": ...}` of the file; events that forks share count once."""
        return self._read(runs.counts)

    def integrity_check(self) -> list[str]:
        """What is wrong with the file, one sentence each; [] is fine. Reads everything."""
        return self._read(runs.problems)

    def readable_runs(self) -> list[str]:
        """The ids that can be found in a file in which `list_runs` meets damage. Deleted runs may be among them."""
        return self._read(damage.run_ids)

    def backup(
        self, path: str | os.PathLike[str], progress: sqlite_backup.Progress | None = None
    ) -> None:
        """Copy the file as it is at this moment to `path`, which must not exist, while others go on writing."""
        self._read(lambda connection: sqlite_backup.backup(connection, path, progress))

    def rebuild_runs(self) -> list[str]:
        """Work out the summaries in agentor_runs again from the events.

        One sentence for each damaged run, whose summary stays as it is; [] is fine.
        """
        return self._write(runs.rebuild)

    def delete(self, run_id: str) -> Removed:
        """Take a run away, and what no fork needs of it. `RunNotFoundError`; `LeaseHeldError` while it is held.

        It is gone at once; its events go in small transactions, and the space they took is given back.
        `UnfinishedDeleteError`: it is gone, but one of these steps failed.
        """
        check_run_id(run_id)
        sweep = deleting.Sweep([run_id])
        with sweep.told(self._leftovers):
            sweep.mark(partial(deleting.mark_one, run_id=run_id), self._read, self._write)
            self._bell.ring(run_id)
            sweep.take_away(self._write)
        self._leftovers.take_some(self._read, self._write)
        return sweep.removed()

    def prune(
        self,
        *,
        older_than: Age | None = None,
        status: str | Iterable[str] | None = None,
        keep: int | None = None,
        only: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> Removed:
        """Delete the runs that everything given applies to: see `agentor.engine.store.protocol.Deletes`.

        With them goes what other deletes have left, and is counted.
        `UnfinishedDeleteError`: those that it names are deleted, then a step failed.
        """
        choice = Choice.checked(older_than, status, keep, only)
        chosen = choice.of(self._read(runs.ages))
        if dry_run:
            return self._read(lambda connection: deleting.foretold(connection, chosen))
        sweep = deleting.Sweep()
        with sweep.told(self._leftovers):
            for first in range(0, len(chosen), _RUNS_PER_STEP):
                some = chosen[first : first + _RUNS_PER_STEP]
                sweep.mark(partial(deleting.mark_chosen, chosen=some), self._read, self._write)
            sweep.run_ids, sweep.pages = self._read(deleting.unfinished), math.inf
            sweep.take_away(self._write)
        return sweep.removed()

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        """The right to append to a run for `ttl_s` seconds; `LeaseHeldError` while a living other has it."""
        check_run_id(run_id)
        check_wanted(owner, ttl_s)
        return self._write(
            partial(leases.acquire, run_id=run_id, owner=owner, ttl_s=ttl_s), self.release
        )

    def renew(self, lease: Lease) -> Lease:
        """The same term for another `ttl_s` seconds; `LeaseLostError` if it is no longer ours."""
        return self._write(lambda connection: leases.renew(connection, lease))

    def release(self, lease: Lease) -> None:
        """Let others have the run at once. Nothing happens if the lease is no longer ours."""
        self._write(lambda connection: leases.release(connection, lease))

    def holder(self, run_id: str) -> Holder | None:
        """Who works on a run; None if nobody does. Reads only."""
        return self._read(lambda connection: leases.holder(connection, check_run_id(run_id)))

    def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
        """Ask something of a run, whoever works on it; return when the question is on disk."""
        check_run_id(run_id)
        check_signal(kind)
        by = check_asker(by)
        self._write(lambda connection: signals.ask(connection, run_id, kind, by))

    def asked(self, run_id: str) -> list[str]:
        """The kinds of questions to a run that are not answered yet, by name."""
        check_run_id(run_id)
        return self._read(lambda connection: signals.asked(connection, run_id))

    def runs_asked(self, kind: str) -> list[str]:
        """The ids of the runs that are asked this and have not answered yet."""
        check_signal(kind)
        return self._read(lambda connection: signals.runs_asked(connection, kind))

    def asked_by(self, run_id: str, kind: str) -> str | None:
        """Who asked it, if it is asked and they said who they are."""
        check_run_id(run_id)
        return self._read(
            lambda connection: signals.asked_by(connection, run_id, check_signal(kind))
        )

    def answered(self, run_id: str, kind: str) -> None:
        """Take a question away; nothing happens if it was not asked."""
        check_run_id(run_id)
        self._write(lambda connection: signals.answered(connection, run_id, check_signal(kind)))

    def transact(
        self, run_id: str, lease: Lease | None = None, limit_s: float = 5.0
    ) -> SQLiteTransaction:
        """Open a transaction for a tool's own tables and the run's events: see `Transacts`."""
        transaction = SQLiteTransaction(check_run_id(run_id), lease, limit_s, self._tools_read_runs)
        self._check_writable()
        transaction.submitted(self._writer.submit_alone(transaction.serve))
        return transaction

    def claim_letter(self, ttl_s: float) -> Letter | None:
        """The oldest letter of the outbox that is due, for nobody else during `ttl_s` seconds."""
        if not self._read(outbox.is_due):
            return None  # without a commit
        return self._write(lambda connection: outbox.claim(connection, ttl_s))

    def letter_delivered(self, letter: Letter) -> None:
        """Forget a letter; nothing happens if somebody else has claimed it since."""
        self._write(lambda connection: outbox.delivered(connection, letter))

    def letter_failed(self, letter: Letter, wait_s: float, error: str) -> None:
        """Let a letter be claimed again in `wait_s` seconds."""
        self._write(lambda connection: outbox.failed(connection, letter, wait_s, error))

    def undelivered(self) -> int:
        """How many letters the outbox holds, claimed ones included."""
        return self._read(outbox.left)

    def letters(self, run_id: str | None = None) -> list[WaitingLetter]:
        """The letters that are not delivered yet, of a run or all, in the order in which they were committed."""
        return self._read(lambda connection: outbox.waiting(connection, run_id))

    def retry_letter(self, key: str) -> bool:
        """Let a letter be delivered now; False if there is none of this key, or it is being delivered."""
        return self._write(lambda connection: outbox.retry(connection, key))

    def drop_letter(self, key: str) -> bool:
        """Forget a letter as if it had been delivered; False if there is none of this key."""
        return self._write(lambda connection: outbox.drop(connection, key))

    def close(self) -> None:
        """Commit what is waiting and close the file; every later call is a `StoreError`. Closing twice is fine."""
        self._bell.close()
        self._close_file()

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"

    def __enter__(self) -> Self:
        if self._readers.is_closed:
            raise StoreClosedError(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def last_position(self) -> int:
        return self._read(log.last_position)

    def _news(self, run_id: str | None, after: int) -> News:
        number: int | None = None  # of the run that is followed: never given twice

        def of_one(run_id: str) -> list[Event]:
            nonlocal after, number
            there, found = self._read(
                lambda connection: log.load_after(connection, run_id, after, number)
            )
            if number is not None and there != number:
                raise deleted_meanwhile(run_id)
            number = there
            after = found[-1].seq or after if found else after
            return found

        def of_all() -> list[Found]:
            nonlocal after
            while True:  # events that cannot be read are not the end of the news
                before, look = after, partial(log.all_after, position=after, limit=_EVENTS_PER_LOOK)
                after, found = self._read(look)
                if found or after == before:
                    return found

        return of_all if run_id is None else partial(of_one, run_id)
