"""One JSONL file per run: readable with `tail`, `grep` and `jq`, and durable at every line.

A line is written with its newline in one go and synced before `append` returns, so a crash leaves at most one
torn line at the end. Several events of one `append_many` share one sync: a crash while they are written may
leave the first few of them, which is a prefix, and saving is always a prefix.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, Self

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.interrupts import allowed, deferred, kept
from agentor.engine.store import file_opening
from agentor.engine.store.copying import check_whole
from agentor.engine.store.file_ends import End, Ends
from agentor.engine.store.file_errors import check_directory, deleting, full_path, saving
from agentor.engine.store.file_lock import FileLocks
from agentor.engine.store.file_opening import put_in_place, sync_directory, write_at
from agentor.engine.store.file_reading import (
    SUFFIX,
    Version,
    check_file,
    content_of,
    content_up_to,
    holds_run,
    last_changes,
    lines_of,
    reading,
    status_at_end,
    torn,
    version_of,
)
from agentor.engine.store.file_signals import FileSignals
from agentor.engine.store.file_tail import Follower
from agentor.engine.store.jsonl import JsonlLog, read_jsonl
from agentor.engine.store.numbering import bodies_after, check_fork_point, check_meant, fork_tail
from agentor.engine.store.protocol import (
    Holder,
    Lease,
    Removed,
    check_run_id,
    check_seq,
    check_signal,
    check_wanted,
)
from agentor.engine.store.pruning import Age, Choice, removed
from agentor.engine.store.summary import status_of
from agentor.engine.store.tailing import Bell, News, Tailing
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LogCorruptError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)

# For one file: a reader is gone by then, and the other runs are waiting.
_LONGEST_PRUNE_S: Final = 1.0

_NOTHING_WHOLE: Final = (
    "holds no whole event, and so no run: a crash before its first event leaves such a file, or a disk that lost the "
    "rest. The next run of that id takes its place"
)


class FileStore(Tailing):
    """Runs as `<directory>/<run_id>.jsonl`, one event a line. The directory is made when it is missing."""

    def __init__(self, directory: str | os.PathLike[str] = "runs") -> None:
        self.directory = full_path(directory)
        self._ages: dict[
            str, tuple[int, int]
        ] = {}  # by run id: when it was first seen, and how many before
        with saving(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            os.scandir(self.directory).close()  # unreadable: better told now than at the first load
        self._locks = FileLocks(self.directory / ".locks")
        self._signals = FileSignals(self.directory / ".locks")
        self._ends = Ends(self.directory)
        self._bell = Bell()

    def path(self, run_id: str) -> Path:
        """The file of a run, whether it is there or not."""
        return self.directory / f"{check_run_id(run_id)}{SUFFIX}"

    def append(self, run_id: str, event: Event) -> None:
        self.append_many(run_id, [event])

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        path = self.path(run_id)
        with saving(path):
            self._locks.check(run_id, lease)
            if events:
                self._append(run_id, path, events)
        self._bell.ring(run_id)

    def load(self, run_id: str) -> list[Event]:
        """Every event of a run, on the disk for good: what others left unsynced is synced before.

        `StoreError` if somebody has been saving something for ten seconds, `LogCorruptError` if the file is damaged.
        """
        log = self._on_disk(run_id)
        log.warn_of_problems(run_id)
        return log.events

    def peek(self, run_id: str, seq: int) -> tuple[int, Event | None]:
        """The last seq of a run and its event `seq`. Reads the whole file, as everything here does."""
        check_seq("seq", seq)
        events = self.load(run_id)
        return len(events), events[seq - 1] if 0 < seq <= len(events) else None

    def read(self, run_id: str) -> JsonlLog:
        """What stands in the file of a run, with the lines of a 0.1 log that `load` passes over. `LogCorruptError`.

        A look that waits for nobody: what is being saved may be in it, and a power cut may take that back.
        """
        return read_jsonl(run_id, content_of(run_id, self.path(run_id)))

    def status_at_end(self, run_id: str) -> str | None:
        """The status of a run as the end of its file has it, in no time; None if only its whole log can tell.

        Damage further up is not seen, nor which events there are. `LogCorruptError` if the file cannot be read.
        """
        return status_at_end(run_id, self.path(run_id))

    def list_runs(self) -> list[str]:
        """Run ids, newest last: by creation here, by last change for runs made elsewhere before the first look."""
        check_directory(self.directory)
        known = set(self._ages)  # before the look, which may miss a run that is new
        with reading(self.directory):
            found = [(self._age(*each), each[0]) for each in last_changes(self.directory)]
        for run_id in known.difference(run_id for _, run_id in found):
            self._forget(run_id)
        return [run_id for _, run_id in sorted(found)]

    def integrity_check(self) -> list[str]:
        """What is wrong with the directory as a whole; [] if nothing is. What `load` says of each run is not in it."""
        check_directory(self.directory)
        with reading(self.directory):
            return [f"{name} {_NOTHING_WHOLE}" for name in torn(self.directory)]

    def fork(
        self,
        src_run_id: str,
        dst_run_id: str,
        *,
        at: int | None = None,
        event: Event | None = None,
        of: Event | None = None,
    ) -> None:
        """Copy a run, up to `at` (itself included) if given; `event` is appended in the same step. `of`: an event that
        the run has, else `RunNotFoundError`."""
        target = self.path(dst_run_id)
        source = self.load(src_run_id)
        if not source:
            raise RunNotFoundError(src_run_id)
        check_meant(src_run_id, source, of)
        check_whole(src_run_id, source)
        if holds_run(target):
            raise RunExistsError(dst_run_id)
        copied = source[: check_fork_point(src_run_id, len(source), at)]
        copied += fork_tail(event, len(copied))
        content = _lines(bodies_after(dst_run_id, 0, copied))
        with saving(target):
            self._create_whole(dst_run_id, target, content)
        self._bell.ring(dst_run_id)

    def create_run(self, run_id: str, events: Sequence[Event]) -> None:
        """Write a new run that appears with all its events, or not at all. `RunExistsError`, `LeaseHeldError`."""
        target = self.path(run_id)
        content = _lines(bodies_after(run_id, 0, events))
        with saving(target):
            self._locks.check(run_id, None)
            self._create_whole(run_id, target, content)
        self._bell.ring(run_id)

    def delete(self, run_id: str) -> Removed:
        """Take a run away; forks are copies and keep all they have. `RunNotFoundError`, `LeaseHeldError`."""
        path = self.path(run_id)
        with saving(path):
            self._locks.check(run_id, None)
        if not holds_run(path):
            check_directory(self.directory)
            raise RunNotFoundError(run_id)
        lines = self._remove(run_id)
        if lines is None:
            raise RunNotFoundError(run_id)
        return removed([(run_id, lines)], [])

    def prune(
        self,
        *,
        older_than: Age | None = None,
        status: str | Iterable[str] | None = None,
        keep: int | None = None,
        only: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> Removed:
        """Delete the runs that everything given applies to: see `agentor.engine.store.protocol.Deletes`."""
        choice = Choice.checked(older_than, status, keep, only)
        found = dict(self._found())
        ages = [
            (run_id, status, version.changed_at_ns / 1e9)
            for run_id, (status, version) in found.items()
        ]
        logs, held = [], []
        for run_id, _ in choice.of(ages):
            try:
                lines = self._look_at(run_id) if dry_run else self._remove(run_id, found[run_id][1])
                logs.append((run_id, lines))
            except LeaseHeldError:
                held.append(run_id)
        return removed([(run_id, lines) for run_id, lines in logs if lines], held)

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        """Lock the run for this process until `release`, or until the process ends."""
        check_wanted(owner, ttl_s)
        return kept(lambda: self._acquire(run_id, owner, ttl_s), self.release)

    def renew(self, lease: Lease) -> Lease:
        with saving(self.path(lease.run_id)):
            return self._locks.renew(lease)

    def release(self, lease: Lease) -> None:
        with saving(self.path(lease.run_id)):
            self._locks.release(lease)

    def holder(self, run_id: str) -> Holder | None:
        """Who works on a run; None if nobody does. Reads only."""
        with reading(self.path(run_id)):
            return self._locks.holder(run_id)

    def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
        """Ask something of a run, whoever works on it."""
        with saving(self.path(run_id)):
            self._signals.ask(run_id, check_signal(kind), by, partial(self._busy, run_id))

    def asked(self, run_id: str) -> list[str]:
        """The kinds of questions to a run that are not answered yet, by name."""
        with reading(self.path(run_id)):
            return self._signals.asked(run_id)

    def asked_by(self, run_id: str, kind: str) -> str | None:
        """Who asked it, if it is asked and they said who they are."""
        with reading(self.path(run_id)):
            return self._signals.asked_by(run_id, check_signal(kind))

    def answered(self, run_id: str, kind: str) -> None:
        """Take a question away; nothing happens if it was not asked."""
        with saving(self.path(run_id)):
            self._signals.answered(run_id, check_signal(kind))

    def close(self) -> None:
        """Give back every lease. The files need no closing: none stays open between two appends."""
        self._bell.close()
        self._locks.close()

    def __repr__(self) -> str:
        return f"FileStore({str(self.directory)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def last_position(self) -> int:
        """`ConfigError`: files have no order among each other."""
        raise _no_order()

    def _acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        with saving(self.path(run_id)):
            return self._locks.acquire(run_id, owner, ttl_s)

    def _news(self, run_id: str | None, after: int) -> News:
        if run_id is None:
            raise _no_order()
        return Follower(run_id, self.path(run_id), after, self._ends).news

    def _on_disk(self, run_id: str) -> JsonlLog:
        path = self.path(run_id)
        with contextlib.suppress(FileNotFoundError), reading(path, run_id):
            known = self._known(run_id, path)
            if known is not None:
                return read_jsonl(run_id, known)
            with self._opened(run_id, os.O_RDONLY, fcntl.LOCK_SH) as (descriptor, _):
                return self._brought_to_disk(run_id, descriptor)
        check_directory(self.directory)
        return JsonlLog()

    @deferred()
    def _known(self, run_id: str, path: Path) -> bytes | None:
        """What stands in the file, if that is on the disk as far as this store knows. An append may be under way."""
        check_file(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = self._ends.known(run_id, descriptor)
            return None if end is None else content_up_to(descriptor, end.size)
        finally:
            os.close(descriptor)

    def _brought_to_disk(self, run_id: str, descriptor: int) -> JsonlLog:
        """What stands in a locked file, after it was synced: whoever wrote it may have died before that."""
        content = content_up_to(descriptor, os.fstat(descriptor).st_size)
        log = allowed(read_jsonl, run_id, content)
        if content:
            self._ends.bring_to_disk(run_id, descriptor)
        self._ends.keep(run_id, descriptor, End.of(log), len(content))
        return log

    def _opened(
        self, run_id: str, flags: int = os.O_RDWR | os.O_CREAT, kind: int = fcntl.LOCK_EX
    ) -> AbstractContextManager[tuple[int, bool]]:
        return file_opening.opened(self.path(run_id), flags, kind, partial(self._busy, run_id))

    def _opened_soon(self, run_id: str) -> AbstractContextManager[tuple[int, bool]]:
        """For a prune, to which a file that is kept locked is a run that is held."""
        longest_s = min(_LONGEST_PRUNE_S, file_opening.LONGEST_WAIT_S)
        held = LeaseHeldError(run_id, None, None)
        path = self.path(run_id)
        return file_opening.opened(path, os.O_RDONLY, fcntl.LOCK_EX, lambda _: held, longest_s)

    def _busy(self, run_id: str, waited_s: float) -> StoreError:
        holder = self._locks.holder(run_id)
        return StoreError(
            f"run {run_id!r}: {holder.owner if holder else 'another process'} has kept {self.path(run_id)} locked for "
            f"{waited_s:g} s, as a process does that is suspended or waits for its disk while it saves. "
            "Nothing was done. Let it go on (kill -CONT) or end it, and try again."
        )

    def _remove(self, run_id: str, chosen: Version | None = None) -> list[str] | None:
        """Take a run away that nobody holds; its lines, None if somebody was quicker, or if it is not as it was chosen."""
        path = self.path(run_id)
        opened = self._opened(run_id, os.O_RDONLY) if chosen is None else self._opened_soon(run_id)
        with (
            deleting(path),
            self._locks.removing(run_id),
            contextlib.suppress(FileNotFoundError),
            opened,  # no append is under way
        ):
            if holds_run(path) and chosen in (None, allowed(version_of, run_id, path)[0]):
                return self._take_away(run_id, path)
        return None

    def _take_away(self, run_id: str, path: Path) -> list[str]:
        lines = allowed(lines_of, run_id, path)
        try:
            # First, and for good: the next run of this id must not be asked what this one was.
            self._signals.forget(run_id)
            path.unlink()
            self._locks.forget(run_id)
            sync_directory(self.directory)
        finally:
            self._forget(run_id)
            self._bell.ring(run_id)
        return lines

    def _forget(self, run_id: str) -> None:
        """A run that is gone, perhaps by somebody else's hand."""
        self._ends.forget(run_id)
        self._ages.pop(run_id, None)

    def _look_at(self, run_id: str) -> list[str]:
        with saving(self.path(run_id)):
            self._locks.check(run_id, None)
        return lines_of(run_id, self.path(run_id))

    def _found(self) -> Iterator[tuple[str, tuple[str, Version]]]:
        """Every run's id, and its status and file as they are now. A damaged run is for a person to look at."""
        for run_id in self.list_runs():
            with contextlib.suppress(LogCorruptError, FileNotFoundError):
                version, content = version_of(run_id, self.path(run_id))
                yield run_id, (status_of(read_jsonl(run_id, content).events), version)

    def _append(self, run_id: str, path: Path, events: Sequence[Event]) -> None:
        with self._opened(run_id) as (descriptor, is_new):
            end = self._ends.known(run_id, descriptor)
            if end is None:
                end = End.of(self._brought_to_disk(run_id, descriptor))
            bodies = allowed(bodies_after, run_id, end.last_seq, events)
            content = (b"\n" if end.needs_newline else b"") + _lines(bodies)
            try:
                write_at(descriptor, end.size, content)
                if not end.size:  # new, or left over by somebody who died
                    sync_directory(self.directory)
            except BaseException:
                self._undo(run_id, descriptor, end)
                raise
            if is_new:
                self._age(run_id, os.fstat(descriptor).st_mtime_ns)
            size = end.size + len(content)
            self._ends.keep(run_id, descriptor, End(size, end.last_seq + len(bodies)), size)

    def _age(self, run_id: str, changed_at: int) -> tuple[int, int]:
        # Remembered, so that an append does not move its run; counted, since clocks of file systems are coarse.
        return self._ages.setdefault(run_id, (changed_at, len(self._ages)))

    def _undo(self, run_id: str, descriptor: int, end: End) -> None:
        """Take back a half-written append; if even that fails, the torn line is ignored when it is read."""
        self._ends.forget(run_id)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end.size)

    @deferred()
    def _create_whole(self, run_id: str, target: Path, content: bytes) -> None:
        """Make the file appear at once with all its content, or not at all; never over an existing one."""
        scratch = self.directory / f".{run_id}.{clock.new_id()}.tmp"
        try:
            descriptor = os.open(
                scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            try:
                write_at(descriptor, 0, content)
            finally:
                os.close(descriptor)
            put_in_place(scratch, target, partial(self._busy, run_id))
            sync_directory(self.directory)
            with contextlib.suppress(FileNotFoundError):  # deleted already
                self._age(run_id, os.stat(target).st_mtime_ns)
        except FileExistsError:
            raise RunExistsError(run_id) from None
        finally:
            scratch.unlink(missing_ok=True)


def _no_order() -> ConfigError:
    return ConfigError(
        "files have no order among each other: tail one run, or keep your runs in a SQLiteStore"
    )


def _lines(bodies: Sequence[str]) -> bytes:
    return "".join(f"{body}\n" for body in bodies).encode()
