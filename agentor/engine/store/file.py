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
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store.file_lock import FileLocks, is_at
from agentor.engine.store.file_reading import (
    SUFFIX,
    content_of,
    last_changes,
    lines_of,
    reading,
    status_at_end,
)
from agentor.engine.store.file_signals import FileSignals
from agentor.engine.store.file_tail import Follower
from agentor.engine.store.jsonl import JsonlLog, read_jsonl
from agentor.engine.store.numbering import bodies_after, check_fork_point, fork_tail
from agentor.engine.store.protocol import Holder, Lease, Removed, check_run_id, check_signal
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


@dataclass(frozen=True, slots=True)
class _End:
    """How this store left a file. If its size is still this, its last event still has this seq."""

    size: int
    last_seq: int
    needs_newline: bool = False


class FileStore(Tailing):
    """Runs as `<directory>/<run_id>.jsonl`, one event a line. The directory is made when it is missing."""

    def __init__(self, directory: str | os.PathLike[str] = "runs") -> None:
        self.directory = Path(directory).absolute()  # a tool may change where the process stands
        self._ends: dict[str, _End] = {}
        self._ages: dict[
            str, tuple[int, int]
        ] = {}  # by run id: when it was first seen, and how many before
        with _store_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            os.scandir(self.directory).close()  # unreadable: better told now than at the first load
        self._locks = FileLocks(self.directory / ".locks")
        self._signals = FileSignals(self.directory / ".locks")
        self._bell = Bell()

    def path(self, run_id: str) -> Path:
        """The file of a run, whether it is there or not."""
        return self.directory / f"{check_run_id(run_id)}{SUFFIX}"

    def append(self, run_id: str, event: Event) -> None:
        self.append_many(run_id, [event])

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        path = self.path(run_id)
        with _store_errors(path):
            self._locks.check(run_id, lease)
            if events:
                self._append(run_id, path, events)
        self._bell.ring(run_id)

    def load(self, run_id: str) -> list[Event]:
        log = self.read(run_id)
        log.warn_of_problems(run_id)
        return log.events

    def read(self, run_id: str) -> JsonlLog:
        """What the file of a run holds, with the lines of a 0.1 log that `load` passes over. `LogCorruptError`."""
        return read_jsonl(run_id, content_of(run_id, self.path(run_id)))

    def status_at_end(self, run_id: str) -> str | None:
        """The status of a run as the end of its file has it, in no time; None if only its whole log can tell.

        Damage further up is not seen, nor which events there are. `LogCorruptError` if the file cannot be read.
        """
        return status_at_end(run_id, self.path(run_id))

    def list_runs(self) -> list[str]:
        """Run ids, newest last: by creation here, by last change for runs made elsewhere before the first look."""
        with reading(self.directory):
            found = [(self._age(*each), each[0]) for each in last_changes(self.directory)]
        return [run_id for _, run_id in sorted(found)]

    def fork(
        self, src_run_id: str, dst_run_id: str, *, at: int | None = None, event: Event | None = None
    ) -> None:
        """Copy a run, up to `at` (itself included) if given; `event` is appended in the same step."""
        target = self.path(dst_run_id)
        source = self._load_synced(src_run_id)
        if not source:
            raise RunNotFoundError(src_run_id)
        if target.exists():
            raise RunExistsError(dst_run_id)
        copied = source[: check_fork_point(src_run_id, len(source), at)]
        copied += fork_tail(event, len(copied))
        content = _lines(bodies_after(dst_run_id, 0, copied))
        with _store_errors(target):
            self._create_whole(dst_run_id, target, content)
        self._bell.ring(dst_run_id)

    def delete(self, run_id: str) -> Removed:
        """Take a run away; forks are copies and keep all they have. `RunNotFoundError`, `LeaseHeldError`."""
        path = self.path(run_id)
        with _store_errors(path):
            self._locks.check(run_id, None)
        if not path.exists():
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
        dry_run: bool = False,
    ) -> Removed:
        """Delete the runs that everything given applies to: see `agentor.engine.store.protocol.Deletes`."""
        choice = Choice.checked(older_than, status, keep)
        take = self._look_at if dry_run else self._remove
        logs, held = [], []
        for run_id, _ in choice.of(self._read_ages()):
            try:
                logs.append((run_id, take(run_id)))
            except LeaseHeldError:
                held.append(run_id)
        return removed([(run_id, lines) for run_id, lines in logs if lines], held)

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        """Lock the run for this process until `release`, or until the process ends."""
        with _store_errors(self.path(run_id)):
            return self._locks.acquire(run_id, owner, ttl_s)

    def renew(self, lease: Lease) -> Lease:
        with _store_errors(self.path(lease.run_id)):
            return self._locks.renew(lease)

    def release(self, lease: Lease) -> None:
        with _store_errors(self.path(lease.run_id)):
            self._locks.release(lease)

    def holder(self, run_id: str) -> Holder | None:
        """Who works on a run; None if nobody does. Reads only."""
        with reading(self.path(run_id)):
            return self._locks.holder(run_id)

    def ask(self, run_id: str, kind: str, by: str | None = None) -> None:
        """Ask something of a run, whoever works on it."""
        with _store_errors(self.path(run_id)):
            self._signals.ask(run_id, check_signal(kind), by)

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
        with _store_errors(self.path(run_id)):
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

    def _news(self, run_id: str | None, after: int) -> News:
        if run_id is None:
            raise _no_order()
        return Follower(run_id, self.path(run_id), after).news

    def _load_synced(self, run_id: str) -> list[Event]:
        """What is on the disk for good: whoever wrote the last lines may have died before that."""
        path = self.path(run_id)
        if not path.exists():
            return []
        with _store_errors(path), _opened(path, os.O_RDONLY) as (descriptor, _):
            log = self.load(run_id)  # no append is under way
            os.fsync(descriptor)
        return log

    def _remove(self, run_id: str) -> list[str] | None:
        """Take a run away that nobody holds; its lines, None if somebody was quicker."""
        path = self.path(run_id)
        lines = None
        with _store_errors(path), self._locks.removing(run_id):
            with contextlib.suppress(FileNotFoundError), _opened(path, os.O_RDONLY):
                lines = lines_of(run_id, path)  # no append is under way
                path.unlink()
            _sync_directory(self.directory)
            self._signals.forget(run_id)
            self._ends.pop(run_id, None)
            self._ages.pop(run_id, None)
        self._bell.ring(run_id)
        return lines

    def _look_at(self, run_id: str) -> list[str]:
        with _store_errors(self.path(run_id)):
            self._locks.check(run_id, None)
        return lines_of(run_id, self.path(run_id))

    def _read_ages(self) -> Iterator[tuple[str, str, float]]:
        """Every run's id, status and moment of its last change. A damaged run is for a person to look at."""
        for run_id in self.list_runs():
            path = self.path(run_id)
            with contextlib.suppress(LogCorruptError, FileNotFoundError), reading(path, run_id):
                yield run_id, status_of(self.read(run_id).events), path.stat().st_mtime

    def _append(self, run_id: str, path: Path, events: Sequence[Event]) -> None:
        if not path.exists():
            bodies_after(
                run_id, 0, events
            )  # a refusal must not leave an empty file, which would hold the id
        with _opened(path) as (descriptor, is_new):
            end = self._end(run_id, descriptor)
            if end.size and end is not self._ends.get(run_id):
                # Another's lines: whoever wrote them may have died before this.
                os.fsync(descriptor)
            bodies = bodies_after(run_id, end.last_seq, events)
            content = (b"\n" if end.needs_newline else b"") + _lines(bodies)
            try:
                _write_at(descriptor, end.size, content)
            except BaseException:
                self._undo(run_id, descriptor, end)
                raise
            if is_new or run_id not in self._ends:  # who made the file may have died before this
                _sync_directory(self.directory)
            if is_new:
                self._age(run_id, os.fstat(descriptor).st_mtime_ns)
            self._ends[run_id] = _End(end.size + len(content), end.last_seq + len(bodies))

    def _end(self, run_id: str, descriptor: int) -> _End:
        size = os.fstat(descriptor).st_size
        known = self._ends.get(run_id)
        if known is not None and known.size == size:
            return known
        log = read_jsonl(run_id, os.pread(descriptor, size, 0))
        return _End(log.good_size, len(log.events), log.needs_newline)

    def _age(self, run_id: str, changed_at: int) -> tuple[int, int]:
        # Remembered, so that an append does not move its run; counted, since clocks of file systems are coarse.
        return self._ages.setdefault(run_id, (changed_at, len(self._ages)))

    def _undo(self, run_id: str, descriptor: int, end: _End) -> None:
        """Take back a half-written append; if even that fails, the torn line is ignored when it is read."""
        self._ends.pop(run_id, None)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end.size)

    def _create_whole(self, run_id: str, target: Path, content: bytes) -> None:
        """Make the file appear at once with all its content, or not at all; never over an existing one."""
        scratch = self.directory / f".{run_id}.{clock.new_id()}.tmp"
        try:
            descriptor = os.open(
                scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            try:
                _write_at(descriptor, 0, content)
            finally:
                os.close(descriptor)
            _put_in_place(scratch, target)
            _sync_directory(self.directory)
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


@contextlib.contextmanager
def _opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[tuple[int, bool]]:
    """A locked descriptor for one change, and whether the file is new. The lock keeps processes apart."""
    while True:
        is_new = not path.exists()
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_at(descriptor, path):  # else it was deleted while we waited
                yield descriptor, is_new
                return
        finally:
            # Said and not left to the closing: a child that was forked meanwhile has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _write_at(descriptor: int, offset: int, content: bytes) -> None:
    # What lies beyond the good part is a torn line: never an event, and never to be glued to one.
    os.ftruncate(descriptor, offset)
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], offset + written)
    os.fsync(descriptor)


def _put_in_place(scratch: Path, target: Path) -> None:
    """Give a finished file its name, unless the name is taken."""
    try:
        os.link(scratch, target)
    except FileExistsError:
        raise
    except (
        OSError
    ):  # a file system without hard links: take the name first, then fill it in one step
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.replace(scratch, target)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"{path}: {reason}. Nothing of this step was saved; check that there is space and that "
            "the directory may be read and written."
        ) from error
