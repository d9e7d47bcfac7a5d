"""Ending a run from outside: somebody cancels it, or its time is up.

A run that another process works on is asked by a signal in the store, which its worker looks at twice a second. A run of
this process is told at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeGuard, TypeVar

from agentor.asked import asked_now, asked_of
from agentor.engine import clock
from agentor.engine.decide import Finish
from agentor.engine.ending import stopped
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder, off_loop
from agentor.engine.staged import Staged
from agentor.engine.store.protocol import Signals, Store, check_run_id
from agentor.errors import (
    LeaseHeldError,
    LeaseLostError,
    RunNotFoundError,
    SequenceConflictError,
    StoreClosedError,
    StoreError,
)
from agentor.recorded import Recorded, identity, overtaken, recorded, reread

logger = logging.getLogger("agentor")

CANCEL: Final = "cancel"
LOOK_S: Final = 0.5  # between two looks at the signals of a run
LEAVING_S: Final = 2.0  # how long whoever has ended a run may take to let go of it
ENDABLE: Final = (None, "failed", "paused", "max_turns")  # statuses that somebody may still change
TAKES: Final = (None, "failed", "paused")  # statuses of runs that a worker may go on with
PARKABLE: Final = (None, "failed")  # whoever gives a run up may come after somebody who did better

Cancelled: TypeAlias = Literal["cancelled", "asked", "over"]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ends before its work does."""

    status: str  # of its run_end
    error: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class LetGo:
    """A run is left where it is, for another worker to take: this one is to stop."""


def is_cancel(reason: Stop | LetGo | None) -> TypeGuard[Stop]:
    return isinstance(reason, Stop) and reason.status == "cancelled"


class Stopper:
    """Waits for a reason to end one run of this process, until it is closed."""

    def __init__(
        self,
        store: object,
        run_id: str,
        ends_at: float | None = None,
        nonce: str | None = None,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._ends_at = ends_at  # seconds since the epoch
        self.nonce = nonce  # of the run; None in older logs
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[None] = self._loop.create_future()
        self._reason: Stop | LetGo | None = None
        self._is_closed = False

    @property
    def is_overdue(self) -> bool:
        return self._ends_at is not None and clock.now() >= self._ends_at

    def tell(self, stop: Stop | LetGo) -> bool:
        """From any thread; whether that is still in time. Whoever lets go of what has ended always is.

        False as well if its event loop was closed over the run, which will never hear of anything.
        """

        def wake() -> None:
            if not self._told.done():
                self._told.set_result(None)

        with _lock:
            if self._is_closed:
                return isinstance(stop, LetGo)
            self._take(stop)
        try:
            self._loop.call_soon_threadsafe(wake)
        except RuntimeError:  # it is closed
            return False
        return True

    def _take(self, stop: Stop | LetGo) -> None:
        """The first reason counts, and a cancel before all others: whoever cancels was told that it is done."""
        if self._reason is None or (is_cancel(stop) and not is_cancel(self._reason)):
            self._reason = stop

    def close(self) -> Stop | LetGo | None:
        """The reason, if there is one by now; whoever tells another one from here on learns that it is too late."""
        with _lock:
            self._is_closed = True
            return self._reason

    async def wait(self) -> Stop | LetGo:
        """Return when there is a reason."""
        key = (id(self._store), self._run_id)
        watches: list[asyncio.Future[Stop]] = [
            asyncio.ensure_future(self._watch_time()),
            asyncio.ensure_future(self._look()),
        ]
        with _lock:
            _live[key] = self
        try:
            reasons: list[asyncio.Future[Any]] = [self._told, *watches]
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            with _lock:
                for watch in watches:
                    if watch.done():
                        self._take(watch.result())
                assert self._reason is not None
                return self._reason
        finally:
            with _lock:
                if _live.get(key) is self:  # else somebody of this process has taken the run over
                    del _live[key]
            if not self._loop.is_closed():  # else they have ended with it
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
            except StoreClosedError:
                # By the exit perhaps. A run that goes on learns it by its next write or renewal.
                await self._loop.create_future()
            except Exception as error:  # a busy disk: look again
                logger.warning("run %s: its signals cannot be read (%s)", self._run_id, error)
            await clock.sleep(LOOK_S)


OVERDUE: Final = Stop("deadline", "Reached the deadline of the run.")

# Not a plain lock: while it is held, the collector may close a run whose loop is gone, and that asks for it.
_lock = threading.RLock()
# Weakly: a run that nobody goes on with does not live on here, nor does its loop.
_live: weakref.WeakValueDictionary[tuple[int, str], Stopper] = weakref.WeakValueDictionary()


def tell(store: object, run_id: str, stop: Stop | LetGo, which: str | None = None) -> bool:
    """Tell a run of this process; whether there is one that hears it. `which`: the `identity` of the run that is meant,
    if the teller has read it; else it is told whichever has the id."""
    with _lock:
        stopper = _live.get((id(store), run_id))
    if stopper is None or (which is not None and stopper.nonce not in (None, which)):
        return False
    return stopper.tell(stop)


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
    if tell(store, run_id, stop, identity(known[1])):
        return "cancelled"
    try:
        return "cancelled" if await end_run(store, run_id, stop, known) else "over"
    except LeaseHeldError:
        if not isinstance(store, Signals):
            raise
    # It is the id that is asked, and whoever has it hears.
    known = await reread(store, run_id, known)
    await off_loop(store, store.ask, run_id, CANCEL, by)
    try:
        return await _heard(store, run_id, stop, known)
    except RunNotFoundError:  # the next run of that id is not asked
        await answered(store, run_id)
        raise
    except (StoreError, LeaseLostError):  # whoever has the run next hears of it
        return "asked"


async def _heard(store: Store, run_id: str, stop: Stop, known: Recorded) -> Cancelled:
    """What becomes of a question that is put. Whoever had the run may have let go of it without hearing this, or be about
    to; a run that goes on is looked at once more when it has ended."""
    try:
        if await patiently(store, run_id, known, partial(end_run, store, run_id, stop)):
            return "cancelled"
    except LeaseHeldError:
        return "asked"
    await answered(store, run_id)
    state, _ = await reread(store, run_id, known)
    return "cancelled" if state.status == "cancelled" else "over"


async def patiently(
    store: Store, run_id: str, known: Recorded, attempt: Callable[[Recorded], Awaitable[_Result]]
) -> _Result:
    """What `attempt` gives that needs the run for itself, tried again while whoever has ended or paused it, or decides
    about it, is about to let go. `LeaseHeldError`: somebody works on the run, or keeps it for LEAVING_S.

    `attempt` is given the run as it is known by then. `RunNotFoundError` if it is gone.
    """
    patient_until = clock.monotonic() + LEAVING_S
    while True:
        try:
            return await attempt(known)
        except LeaseHeldError:
            known = await reread(store, run_id, known)
            if known[0].status is None or clock.monotonic() >= patient_until:
                raise
        await clock.sleep(LEAVING_S / 40)


async def end_run(store: Store, run_id: str, stop: Stop, known: Recorded | None = None) -> bool:
    """Write the end of a run that nobody works on; False if it has ended meanwhile. `LeaseHeldError`: somebody does.

    `known`: the run as it was just read.
    """
    endable = PARKABLE if stop.status == "parked" else ENDABLE
    keeper = Keeper(store, run_id)
    await keeper.acquire()
    try:
        while True:
            known = await reread(store, run_id, known)
            state = known[0]
            if state.status not in endable:
                return False
            end, now = Finish(stop.status, error=stop.error), clock.now()
            events = stopped(state, end, stop.by, now, now)
            staged = Staged(replace(state, status=None), events)
            try:
                await Recorder(store, run_id, "strict", lambda: keeper.lease).save(staged.events)
                break
            except SequenceConflictError as conflict:
                known = await overtaken(store, run_id, known, conflict)
        await answered(store, run_id)
        return True
    finally:
        await keeper.release()
