"""The real file store under observation, and what its files say to somebody who takes no part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from agentor.engine.events import Event
from agentor.engine.store.file import FileStore
from agentor.engine.store.protocol import Lease
from fuzz.bank import Books
from fuzz.ledger import Ledger, Log, Standing
from fuzz.observed import Observed, Observer

T = TypeVar("T")

_SUFFIX: Final = ".jsonl"


class SteppedFileStore(Observed, FileStore):
    """A `FileStore` in a simulated process, under observation. Its leases last as long as the process."""

    holds_lock: Final = False
    connections: Final[tuple[Any, ...]] = ()

    def __init__(self, directory: str, observer: Observer) -> None:
        super().__init__(directory)
        self._observer = observer

    def append_many(self, run_id: str, events: Sequence[Event], lease: Lease | None = None) -> None:
        try:
            self._commit(lambda: FileStore.append_many(self, run_id, events, lease))
        except Exception as error:
            self._observer.not_appended(run_id, error, events)
            raise
        self._observer.appended(run_id, events, lease)

    def load(self, run_id: str) -> list[Event]:
        events = super().load(run_id)
        self._observer.loaded(run_id, events)
        return events

    def renew(self, lease: Lease) -> Lease:
        return self._commit(lambda: FileStore.renew(self, lease))

    def release(self, lease: Lease) -> None:
        self._commit(lambda: FileStore.release(self, lease))

    def answered(self, run_id: str, kind: str) -> None:
        self._commit(lambda: FileStore.answered(self, run_id, kind))

    def _commit(self, change: Callable[[], T]) -> T:
        self._observer.at_commit("before a commit")
        made = change()
        self._observer.at_commit("after a commit")
        return made

    def kill(self) -> None:
        """Its locks are gone: see `FileSystem.killed`."""
        self._locks._held.clear()


class FileLedger(Ledger):
    """Keeps up with a directory of runs."""

    def refresh(self) -> None:
        if self._disk.writes == self._writes:
            return
        self._writes = self._disk.writes
        self._standings.clear()
        there = {
            name.removesuffix(_SUFFIX): os.path.join(self._path, name)
            for name in sorted(os.listdir(self._path))
            if name.endswith(_SUFFIX)
        }
        for run_id in [run_id for run_id in self.logs if run_id not in there]:
            del self.logs[run_id]
        for run_id, path in there.items():
            with open(path, "rb") as file:
                self._keep_up(run_id, file.read())

    def _keep_up(self, run_id: str, content: bytes) -> None:
        """Take what is new; all of it, if a torn end or what nobody was told of has been written over."""
        bodies = _bodies(content)
        log = self.logs.get(run_id)
        if log is None or log.bodies != bodies[: len(log.bodies)]:
            log = Log()
        if not bodies:
            self.logs.pop(run_id, None)
            return
        self.logs[run_id] = log
        for body in bodies[len(log.bodies) :]:
            try:
                event = Event.from_json(body)
            except ValueError:
                self.gaps.append(f"{run_id}: an unreadable line after seq {len(log.events)}")
                return
            self._take(run_id, log, event.seq or 0, body)
            if event.type == "fork":
                log.inherited = len(log.events) - 1

    def standing(self, run_id: str) -> Standing:
        self.refresh()
        log = self.logs.get(run_id)
        return Standing(
            status=None if log is None else log.state.status, cancel_asked_at=self._asked_at(run_id)
        )

    def _asked_at(self, run_id: str) -> float | None:
        path = os.path.join(self._path, ".locks", f"{run_id}.asked", "cancel")
        try:
            with open(path, "rb") as file:
                return float(json.loads(file.read())["asked_at"])
        except (FileNotFoundError, ValueError):
            return None

    def books(self) -> Books:
        return Books()

    def close(self) -> None:
        """Nothing stays open."""


def _bodies(content: bytes) -> list[str]:
    """The lines of a log; the last one counts without its newline if it is whole."""
    *lines, tail = content.split(b"\n")
    bodies = [line.decode() for line in lines if line.strip()]
    try:
        Event.from_json(tail)
    except ValueError:
        return bodies
    return [*bodies, tail.decode()]
