"""Faults to plant in how runs end, go and stay as they are, each while the block lasts. See `fuzz.canaries`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import apsw

from agentor import launch, stopping
from agentor import worker as working
from agentor.engine.events import Event, RunResult
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder
from agentor.engine.runner import Runner
from agentor.engine.store import pruning, sqlite_leases, sqlite_log
from agentor.engine.store import sqlite_deleting as deleting
from agentor.engine.store.protocol import Lease
from agentor.engine.store.sqlite_writer import Writer
from agentor.errors import StoreError


@contextlib.contextmanager
def cancels_are_forgotten() -> Iterator[None]:
    """Whoever takes a run up takes its cancel away, and goes on."""
    real = launch.Launch._finish

    async def forget_and_finish(
        self: launch.Launch, runner: Runner, keeper: Keeper, opening: Sequence[Event]
    ) -> RunResult:
        await stopping.answered(self.store, runner.run_id)
        return await real(self, runner, keeper, opening)

    with mock.patch.object(launch.Launch, "_finish", forget_and_finish):
        yield


@contextlib.contextmanager
def cancelled_is_open() -> Iterator[None]:
    """A worker that looks for work takes cancelled runs, too."""
    takes = (*stopping.TAKES, "cancelled")
    with mock.patch.object(working, "TAKES", takes), mock.patch.object(launch, "TAKES", takes):
        yield


@contextlib.contextmanager
def answers_can_be_cancelled() -> Iterator[None]:
    """A run that has its answer can be cancelled."""
    with mock.patch.object(stopping, "ENDABLE", (*stopping.ENDABLE, "completed")):
        yield


@contextlib.contextmanager
def deleted_under_way() -> Iterator[None]:
    """A run is deleted whoever works on it."""
    nobody = SimpleNamespace(check=lambda *_: None, is_held=lambda *_: False)
    with mock.patch.object(deleting, "leases", nobody):
        yield


@contextlib.contextmanager
def everything_is_pruned() -> Iterator[None]:
    """A prune takes runs that have not ended."""
    with mock.patch.object(pruning, "NOT_ENDED", frozenset()):
        yield


@contextlib.contextmanager
def refused_too_late() -> Iterator[None]:
    """The store looks at the lease after it has written, and takes nothing back that it refuses."""
    check, append = sqlite_leases.check, sqlite_log.append
    presented: dict[str, Lease | None] = {}

    def present(connection: apsw.Connection, run_id: str, lease: Lease | None) -> None:
        presented[run_id] = lease

    def append_and_check(connection: apsw.Connection, run_id: str, events: Sequence[Event]) -> None:
        append(connection, run_id, events)
        check(connection, run_id, presented.get(run_id))

    def perform(self: Writer, submission: Any) -> None:
        try:
            submission.value = submission.operation(self._connection)
        except Exception as error:
            self._refuse(submission, error)

    with (
        mock.patch.object(sqlite_leases, "check", present),
        mock.patch.object(sqlite_log, "append", append_and_check),
        mock.patch.object(Writer, "_perform", perform),
        mock.patch.object(Writer, "_perform_only", perform),
    ):
        yield


@contextlib.contextmanager
def strict_goes_on() -> Iterator[None]:
    """A run goes on with what it could not save, also if its durability is strict."""
    with mock.patch.object(Recorder, "_failed"):
        yield


@contextlib.contextmanager
def no_fork_is_made() -> Iterator[None]:
    """Every fork fails."""
    with mock.patch.object(launch.Launch, "_copy", side_effect=StoreError("no")):
        yield
