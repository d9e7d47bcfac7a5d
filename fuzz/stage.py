"""Where worlds are played: a directory, a disk, and what agentor finds there instead of clock, threads and processes."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final
from unittest import mock

import apsw

from agentor import stopping
from agentor.engine import clock, holding, interrupts
from agentor.engine import lease as lease_module
from agentor.engine.events import Event
from agentor.engine.runner import Runner
from agentor.engine.store import (
    file,
    file_ends,
    file_lock,
    file_opening,
    file_signals,
    sqlite_deleting,
    sqlite_leases,
    sqlite_transact,
)
from fuzz import memory, threads
from fuzz.disk import DiskVFS
from fuzz.evidence import Marked
from fuzz.liveness import bring_to_end
from fuzz.script import Action
from fuzz.worker import Worker
from fuzz.world import Outcome, World

FILES_SHARE: Final = 0.125
_FILE_MODULES: Final = (file, file_ends, file_lock, file_opening, file_signals, pathlib)
LOOK_S: Final = 10.0  # between two looks for a cancel; twice a virtual second would be most of what a world does


@contextlib.contextmanager
def living(
    seed: int,
    store_options: dict[str, Any] | None = None,
    trace: Callable[[str], None] | None = None,
    on_files: bool = False,
) -> Iterator[World]:
    """A new world in a directory of its own, with its clock, its disk and its processes installed."""
    directory = tempfile.mkdtemp(prefix="agentor-fuzz-", dir=_fast_directory())
    world = World(seed, directory, store_options, trace, on_files)
    vfs = DiskVFS(f"fuzz-{os.path.basename(directory)}", world.disk)
    logger = logging.getLogger("agentor")
    try:
        with (
            clock.installed(world.clock),
            mock.patch.object(lease_module, "owner_id", world.owner_id),
            mock.patch.object(sqlite_leases, "is_gone", world.is_gone),
            mock.patch.object(threading, "Thread", threads.SteppedThread),
            mock.patch.object(Future, "result", threads.result),
            mock.patch.object(interrupts, "ended", threads.ended),
            # No thread is the main one: all of them are steps of one, whose sections would not nest.
            mock.patch.object(interrupts._main, "thread", None),
            mock.patch.object(sqlite_transact, "queue", threads.QUEUES),
            mock.patch.object(holding, "pause", threads.sleep),
            mock.patch.object(stopping, "LOOK_S", LOOK_S),
            mock.patch.object(sqlite_deleting, "mark", _observed_mark(world)),
            mock.patch.object(Runner, "go", _observed),
            mock.patch.object(logger, "disabled", True),
            mock.patch.object(logging.getLogger("agentor.tools"), "disabled", True),
            contextlib.ExitStack() as remembering,
        ):
            for patch in [*memory.patches(), *_file_patches(world)]:
                remembering.enter_context(patch)
            try:
                yield world
            finally:
                world.close()
    finally:
        vfs.unregister()
        shutil.rmtree(directory)


def is_on_files(seed: int) -> bool:
    """Whether the runs of a world are in a file store: those of every eighth, about."""
    return random.Random(f"{seed}/store").random() < FILES_SHARE


def _file_patches(world: World) -> list[Any]:
    if world.files is None:
        return []
    os.makedirs(os.path.join(world.path, ".locks"))  # on the platter from the beginning
    return [
        *(mock.patch.object(module, "os", world.files) for module in _FILE_MODULES),
        mock.patch.object(file_lock, "is_gone", world.is_gone),
    ]


def _observed_mark(world: World) -> Callable[[apsw.Connection, str], None]:
    """`sqlite_deleting.mark`, with a look at how the run stands just before."""
    real = sqlite_deleting.mark

    def mark(connection: apsw.Connection, run_id: str) -> None:
        found: Any = connection.execute(_BEFORE, (run_id,)).get
        real(connection, run_id)
        if found is not None:
            status, owner, expires_at = found
            is_held = owner is not None and expires_at > clock.now() and not world.is_gone(owner)
            world.evidence.marked[run_id] = Marked(run_id, status, owner if is_held else None)

    return mark


_BEFORE: Final = """
SELECT status, owner, expires_at FROM agentor_runs LEFT JOIN agentor_leases USING (run_id)
WHERE run_id = ? AND deleted_at IS NULL
"""

_go = Runner.go


async def _observed(runner: Runner, opening: Sequence[Event] = ()) -> None:
    """`Runner.go`, for a run whose worker is told that it is live."""
    worker: Worker = runner._spec.context
    with worker.working_on(runner.run_id):
        await _go(runner, opening)


def play(
    seed: int,
    script: Sequence[Action],
    store_options: dict[str, Any] | None = None,
    trace: Callable[[str], None] | None = None,
    on_files: bool | None = None,
) -> Outcome:
    """Play a script in the world of a seed and judge it. Whether its runs are in files, the seed says if nobody does."""
    on_files = is_on_files(seed) if on_files is None else on_files
    with living(seed, store_options, trace, on_files) as world:
        world.play(script)
        bring_to_end(world)
        return world.outcome()


def _fast_directory() -> str | None:
    """Memory, if the system has some in its file tree: the simulated disk is what must be durable, not the real one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
