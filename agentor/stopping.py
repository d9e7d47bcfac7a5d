"""Ending a run from outside: somebody cancels it, or its time is up.

A run that another process works on is asked by a signal in the store, which its worker looks at twice a second. A run of
this process is told at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from agentor.asked import asked_now, asked_of
from agentor.engine import clock
from agentor.engine.decide import Finish
from agentor.engine.ending import stopped
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder, off_loop
from agentor.engine.staged import Staged
from agentor.engine.store.protocol import Signals, Store, check_run_id
from agentor.errors import LeaseHeldError, RunNotFoundError, SequenceConflictError
from agentor.recorded import Recorded, overtaken, recorded, reread

logger = logging.getLogger("agentor")

CANCEL: Final = "cancel"
LOOK_S: Final = 0.5  # between two looks at the signals of a run
ENDABLE: Final = (None, "failed", "paused", "max_turns")  # statuses that somebody may still change
PARKABLE: Final = (None, "failed")  # whoever gives a run up may come after somebody who did better

Cancelled: TypeAlias = Literal["cancelled", "asked", "over"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ends before its work does."""

    status: str  # of its run_end
    error: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class LetGo:
    """A run is left where it is, for another worker to take: this one is to stop."""


class Stopper:
    """Waits for a reason to end one run of this process."""

    def __init__(self, store: object, run_id: str, ends_at: float | None = None) -> None:
        self._store = store
        self._run_id = run_id
        self._ends_at = ends_at  # seconds since the epoch
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[Stop | LetGo] = self._loop.create_future()

    @property
    def is_overdue(self) -> bool:
        return self._ends_at is not None and clock.now() >= self._ends_at

    def tell(self, stop: Stop | LetGo) -> None:
        """From any thread."""

        def set_result() -> None:
            if not self._told.done():
                self._told.set_result(stop)

        self._loop.call_soon_threadsafe(set_result)

    async def wait(self) -> Stop | LetGo:
        """Return when there is a reason."""
        key = (id(self._store), self._run_id)
        watches: list[asyncio.Future[Stop | LetGo]] = [
            asyncio.ensure_future(self._watch_time()),
            asyncio.ensure_future(self._look()),
        ]
        with _lock:
            _live[key] = self
        try:
            await asyncio.wait([self._told, *watches], return_when=asyncio.FIRST_COMPLETED)
            return next(w.result() for w in (self._told, *watches) if w.done())
        finally:
            with _lock:
                if _live.get(key) is self:  # else somebody of this process has taken the run over
                    del _live[key]
            for watch in watches:
                watch.cancel()

    async def _watch_time(self) -> Stop:
        if self._ends_at is None:
            await self._loop.create_future()
            raise AssertionError("it is never done")
        while not self.is_overdue:
            await clock.sleep(self._ends_at - clock.now())
        return OVERDUE

    async def _look(self) -> Stop:
        store = self._store
        if not isinstance(store, Signals):
            await self._loop.create_future()
            raise AssertionError("it is never done")
        while True:
            try:
                if (asked := await asked_of(store, self._run_id, CANCEL)) is not None:
                    return Stop("cancelled", "Cancelled.", asked.by)
            except Exception as error:  # a busy disk: look again
                logger.warning("run %s: its signals cannot be read (%s)", self._run_id, error)
            await clock.sleep(LOOK_S)


OVERDUE: Final = Stop("deadline", "Reached the deadline of the run.")

_lock = threading.Lock()
_live: dict[tuple[int, str], Stopper] = {}


def tell(store: object, run_id: str, stop: Stop | LetGo) -> bool:
    """Tell a run of this process; whether there is one."""
    with _lock:
        stopper = _live.get((id(store), run_id))
    if stopper is not None:
        stopper.tell(stop)
    return stopper is not None


async def cancelled_meanwhile(store: object, run_id: str) -> Stop | None:
    """The cancel that is asked of the run and not answered, as of now."""
    if not isinstance(store, Signals):
        return None
    asked = await asked_now(store, run_id, CANCEL)
    return None if asked is None else Stop("cancelled", "Cancelled.", asked.by)


async def answered(store: object, run_id: str) -> None:
    """Take the signal away, now that what it asked for is recorded."""
    if not isinstance(store, Signals):
        return
    try:
        await off_loop(store, store.answered, run_id, CANCEL)
    except Exception as error:
        logger.warning("run %s: its signal was not taken away (%s)", run_id, error)


async def cancel_run(store: Store, run_id: str, by: str | None) -> Cancelled:
    """End a run wherever it is worked on.

    "cancelled": its end is recorded, or its worker in this process was told. "asked": a worker elsewhere has it and
    will notice. "over": it had ended already. `LeaseHeldError` if it is worked on and the store cannot pass the word.
    """
    stop = Stop("cancelled", "Cancelled.", by)
    try:
        known = await recorded(store, check_run_id(run_id))
    except RunNotFoundError:
        if tell(store, run_id, stop):  # it has begun, and its first event is on the way
            return "cancelled"
        raise
    if known[0].status not in ENDABLE:
        return "over"
    if tell(store, run_id, stop):
        return "cancelled"
    try:
        return "cancelled" if await end_run(store, run_id, stop, known) else "over"
    except LeaseHeldError:
        if not isinstance(store, Signals):
            raise
    await off_loop(store, store.ask, run_id, CANCEL, by)
    try:  # whoever had it may have let go of it without hearing this
        if await end_run(store, run_id, stop, known):
            return "cancelled"
    except LeaseHeldError:
        return "asked"
    except RunNotFoundError:  # the next run of that id is not asked
        await answered(store, run_id)
        raise
    await answered(store, run_id)
    return "over"


async def end_run(store: Store, run_id: str, stop: Stop, known: Recorded | None = None) -> bool:
    """Write the end of a run that nobody works on; False if it has ended meanwhile. `LeaseHeldError`: somebody does.

    `known`: the run as it was just read.
    """
    endable = PARKABLE if stop.status == "parked" else ENDABLE
    keeper = Keeper(store, run_id)
    await keeper.acquire()
    try:
        while True:
            state, _ = await reread(store, run_id, known)
            if state.status not in endable:
                return False
            end, now = Finish(stop.status, error=stop.error), clock.now()
            events = stopped(state, end, stop.by, now, now)
            staged = Staged(replace(state, status=None), events)
            try:
                await Recorder(store, run_id, "strict", lambda: keeper.lease).save(staged.events)
                break
            except SequenceConflictError as conflict:
                known = await overtaken(store, run_id, state, conflict)
        await answered(store, run_id)
        return True
    finally:
        await keeper.release()
