"""Holding a run: acquire, keep alive, trust for a while, let go.

A lease is a *term*: one higher at each change of hands, and checked by the store inside every append. So two workers
can never both write. The trust window is what keeps them from both acting: the holder stops by itself a margin before
the lease could expire, counted on the monotonic clock from the moment the renewal was sent. Neither a jump of the wall
clock nor a process that was asleep can stretch it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Final

from agentor.engine import clock
from agentor.engine.holding import RENEWALS_PER_TTL, held_for, hold
from agentor.engine.recorder import off_loop, uninterrupted
from agentor.engine.store.own import answer_of, failing_as_ours
from agentor.engine.store.owner import owner_id
from agentor.engine.store.protocol import Lease, Leases, NamesHolder
from agentor.errors import LeaseHeldError, LeaseLostError, StoreClosedError

logger = logging.getLogger("agentor")

DEFAULT_TTL_S: Final = 30.0
GIVING_BACK_S: Final = 2.0  # how long somebody who has failed already is held up by it
MARGIN: Final = 0.1  # of the ttl: how long before the expiry the holder stops trusting its lease


class Keeper:
    """The lease of one run for as long as this worker works on it; nothing at all with a store that has no leases.

    `acquire` before the work, `keep` beside it, `check` before every act that has a price, `release` on every way out, or
    `hold_for` what could not be stopped.
    """

    def __init__(self, store: object, run_id: str) -> None:
        self._store = store if isinstance(store, Leases) else None
        self.run_id = run_id
        self._owner = ""  # the same each time: what seemed to fail may have been granted
        self._ttl_s = float(getattr(store, "lease_ttl_s", DEFAULT_TTL_S))
        self._trusted_until = 0.0  # on the monotonic clock
        self._released = False
        self._asked: _Asked | None = None  # for what we do not hold, or do not know that we do
        self.lease: Lease | None = None
        self.lost: LeaseLostError | StoreClosedError | None = None

    async def acquire(self) -> None:
        """Take the run, or raise: `LeaseHeldError` if somebody works on it, `StoreError` if the store cannot say.

        Nothing is left behind by one who was refused, has gone, or was not answered: what the store may have granted all
        the same is given back, if it can be.
        """
        if self._store is None:
            return
        try:
            await self._ask(self._store)
        except (Exception, asyncio.CancelledError):
            await self.release()
            raise

    async def ensure(self) -> None:
        """`acquire` for as long as the run has no lease, each time that one is needed: nothing is written to a store with
        leases without one. Whoever fails here may ask again, and releases at the end."""
        if self._store is not None and self.lease is None and not self._released:
            await self._ask(self._store)

    async def _ask(self, store: Leases) -> None:
        self._owner = self._owner or owner_id()
        self._asked = asked = _Asked(asyncio.get_running_loop())
        sent = clock.monotonic()
        asking = off_loop(store, asked.acquire, store, self.run_id, self._owner, self._ttl_s)
        try:
            self._hold(await uninterrupted(asking), sent)
        except LeaseHeldError as error:
            if names := held_for(store, self.run_id):
                error.add_note(
                    f"Tools of it that still run, and cannot be stopped: {', '.join(names)}."
                )
            raise
        except asyncio.CancelledError:
            if (lease := asked.leave()) is not None:
                self._hold(lease, sent)
            raise
        except GeneratorExit:
            # The loop was closed: nobody can wait any more, for a release neither.
            self._asked = None
            if (lease := asked.leave()) is not None:
                hold(store, lease, ())
            raise

    def _hold(self, lease: Lease, sent: float) -> None:
        self.lease, self._asked = lease, None
        self._trust_from(sent)

    @property
    def is_trusted(self) -> bool:
        """Whether there is a lease, and nobody else can have the run by now."""
        is_in_time = clock.monotonic() < self._trusted_until
        return self.lease is not None and self.lost is None and is_in_time

    def check(self) -> None:
        """Raise `LeaseLostError` unless the lease can still be trusted, `StoreClosedError` if nobody can renew it.

        Called before every act that has a price.
        """
        if self.lost is not None:
            raise self.lost
        if self.lease is not None and clock.monotonic() >= self._trusted_until:
            self.lost = LeaseLostError(self.run_id)
            raise self.lost

    async def keep(self) -> None:
        """Renew until cancelled; returns only when the lease is lost."""
        if self._store is None:
            await asyncio.get_running_loop().create_future()
            return
        while self.lost is None:
            trusted_s = self._trusted_until - clock.monotonic() if self.lease else self._ttl_s
            await clock.sleep(min(self._ttl_s / RENEWALS_PER_TTL, max(trusted_s, 0.0)))
            if self.lease is None:
                continue  # a new run whose store could not give one yet: see `ensure`
            if clock.monotonic() >= self._trusted_until:
                self.lost = LeaseLostError(self.run_id)
            else:
                await self._renew_in_time(self._store, self.lease)

    def hold_for(self, threads: Sequence[threading.Thread]) -> None:
        """Release when the last of the threads has ended, and not before: what they do is this run's. Returns at once."""
        if self._store is None or self.lease is None:
            return
        lease, self.lease, self._released = self.lease, None, True
        hold(self._store, lease, threads)

    async def release(self) -> None:
        """Let others have the run at once. A release that fails is tried again beside whatever comes next."""
        if self._store is None:
            return
        if self.lease is None:
            await self._give_back(self._store)
            return
        lease, self.lease, self._released = self.lease, None, True
        await self._let_go(self._store, lease)

    async def _let_go(self, store: Leases, lease: Lease) -> None:
        has_begun = False

        async def let_go() -> None:
            nonlocal has_begun
            has_begun = True
            try:
                await off_loop(store, store.release, lease)
            except Exception as error:
                self._not_let_go(store, lease, error)

        try:
            await uninterrupted(let_go())
        except asyncio.CancelledError:
            if not has_begun:  # the loop is torn down, and with it whoever was to do it
                hold(store, lease, ())
            raise

    def _not_let_go(self, store: Leases, lease: Lease, error: Exception) -> None:
        is_closed = isinstance(error, StoreClosedError)
        logger.warning(
            "run %s: the release of its lease failed (%s); %s",
            self.run_id,
            error,
            "if it is still held, it expires by itself" if is_closed else "it is tried again",
        )
        if not is_closed:
            hold(store, lease, ())

    async def _give_back(self, store: Leases) -> None:
        """One attempt to release what an `acquire` that failed may have been granted. It is waited for a little, and
        goes on to its end in any case."""
        asked, self._asked = self._asked, None
        if asked is None or asked.is_refused:
            return
        owner = self._owner
        self._owner = ""  # another one's, if we ask again: this one may be released at any moment
        giving = asyncio.ensure_future(off_loop(store, self._release_any, store, owner))
        patience = asyncio.ensure_future(clock.sleep(GIVING_BACK_S))
        first = asyncio.wait({giving, patience}, return_when=asyncio.FIRST_COMPLETED)
        try:
            await uninterrupted(first)
        finally:
            patience.cancel()
            giving.cancel()

    def _release_any(self, store: Leases, owner: str) -> None:
        """Whoever holds a run gets it again under the same name, and so learns the term to release."""
        try:
            if isinstance(store, NamesHolder):
                holder = answer_of(store.holder, self.run_id)
                if holder is None or holder.owner != owner:
                    return
            answer_of(store.release, answer_of(store.acquire, self.run_id, owner, self._ttl_s))
        except Exception as error:  # what the caller hears of is why it had failed
            logger.debug("run %s: what was granted, if it was: %s", self.run_id, error)

    async def _renew_in_time(self, store: Leases, lease: Lease) -> None:
        """A renewal that hangs is no renewal: the trust ends when it ends, whatever the store is doing."""
        renewing = asyncio.ensure_future(self._renew(store, lease))
        out_of_time = asyncio.ensure_future(
            clock.sleep(max(self._trusted_until - clock.monotonic(), 0.0))
        )
        try:
            await asyncio.wait({renewing, out_of_time}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            out_of_time.cancel()
            renewing.cancel()  # what its thread still does changes nothing here

    async def _renew(self, store: Leases, lease: Lease) -> None:
        sent = clock.monotonic()
        try:
            self.lease = await off_loop(store, store.renew, lease)
        except (LeaseLostError, StoreClosedError) as error:
            self.lost = error
        except Exception as error:  # a busy or full disk: try again until the trust runs out
            logger.warning("run %s: its lease was not renewed (%s)", self.run_id, error)
        else:
            self._trust_from(sent)

    def _trust_from(self, sent: float) -> None:
        self._trusted_until = sent + self._ttl_s * (1 - MARGIN)


class _Asked:
    """One question for a lease, asked on the store's thread, which goes on if nobody waits for it any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._lock = threading.Lock()
        self._loop = loop  # of whoever is to be told
        self._given: Lease | None = None
        self._is_left = False
        self.is_refused = False

    def acquire(self, store: Leases, run_id: str, owner: str, ttl_s: float) -> Lease:
        try:
            with failing_as_ours(f"run {run_id!r}: its lease could not be had"):
                lease = answer_of(store.acquire, run_id, owner, ttl_s)
        except LeaseHeldError:
            self.is_refused = True
            raise
        with self._lock:
            self._given, is_left = lease, self._is_left
        if is_left or (self._loop is not None and self._loop.is_closed()):
            answer_of(store.release, lease)
        return lease

    def leave(self) -> Lease | None:
        """The lease, if it has been granted; else it is let go where it is."""
        with self._lock:
            self._is_left = True
            return self._given
