"""Delivering the letters of an outbox, at least once each.

A letter is claimed for a while, handed over, and forgotten. Whoever dies in between leaves a claim that expires, so the
letter is delivered again: with the same key, by which the receiver can know it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from agentor.engine import clock
from agentor.engine.daemon_thread import in_thread
from agentor.engine.recorder import is_cancelled, off_loop, uninterrupted
from agentor.engine.result_text import error_text
from agentor.engine.store.transacting import Letter, Posts
from agentor.errors import ConfigError

logger = logging.getLogger("agentor")

Handler: TypeAlias = Callable[[str, Any, str], Any]  # kind, payload, key; sync or async

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 300.0
LOOK_S: Final = 1.0  # between two looks into an empty outbox


async def deliver(store: object, handler: Handler, until_idle: bool, claim_s: float) -> int:
    """Deliver every letter that is due, or go on for ever; how many were delivered."""
    if not isinstance(store, Posts):
        has = "no store" if store is None else f"a {type(store).__name__}"
        raise ConfigError(f"there is no outbox: this agent has {has}; SQLiteStore has one")
    if not claim_s > 0:
        raise ConfigError(f"claim_s is a number of seconds above 0, not {claim_s!r}")
    delivered = 0
    while True:
        letter = await off_loop(store, store.claim_letter, claim_s)
        if letter is not None:
            delivered += await _deliver_one(store, handler, letter)
        elif until_idle:
            return delivered
        else:
            await clock.sleep(LOOK_S)


async def _deliver_one(store: Posts, handler: Handler, letter: Letter) -> bool:
    try:
        await _hand_over(handler, letter)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        told = error_text(error)
        wait_s = min(FIRST_WAIT_S * 2 ** min(letter.attempts - 1, 20), LONGEST_WAIT_S)
        logger.warning(
            "letter %s (%s) was not delivered at attempt %d, the next is in %g s: %s",
            letter.key, letter.kind, letter.attempts, wait_s, told,
        )  # fmt: skip
        await off_loop(store, store.letter_failed, letter, wait_s, told)
        return False
    await uninterrupted(off_loop(store, store.letter_delivered, letter))
    return True


async def _hand_over(handler: Handler, letter: Letter) -> None:
    """A sync handler has a thread of its own: it may take its time."""
    given = (letter.kind, letter.payload, letter.key)
    call = getattr(type(handler), "__call__", None)  # noqa: B004  # of an object that can be called
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):
        answer = handler(*given)
    else:
        answer = await in_thread(lambda: handler(*given), "deliver")
    if inspect.isawaitable(answer):
        await answer
