"""One live run: its work, its lease and its stopper side by side."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from agentor.engine.events import Event
from agentor.engine.lease import Keeper
from agentor.engine.recorder import ended
from agentor.engine.request import Call
from agentor.engine.runner import Runner
from agentor.errors import AgentorError
from agentor.stopping import (
    ENDABLE,
    OVERDUE,
    LetGo,
    Stop,
    Stopper,
    answered,
    cancelled_meanwhile,
    is_cancel,
)

logger = logging.getLogger("agentor")


async def drive(runner: Runner, keeper: Keeper, stopper: Stopper, opening: Sequence[Event]) -> None:
    """Run the loop while the lease is kept alive beside it, until it ends or is told to; leave nothing running."""
    if stopper.is_overdue:
        await _close_overdue(runner, keeper, stopper, opening)
        return
    work = asyncio.create_task(runner.go(opening))
    watch = asyncio.create_task(keeper.keep())
    told = asyncio.create_task(stopper.wait())
    try:
        await asyncio.wait({work, watch, told}, return_when=asyncio.FIRST_COMPLETED)
        runner.halt()
        if told.done() and not work.done():
            work.cancel()
            await asyncio.wait({work})
            await _stop(runner, keeper, stopper.close() or told.result())
        await _settle(runner, keeper, stopper.close())
    finally:
        runner.halt()
        stopper.close()
        await _leave({work, watch, told}, runner, keeper)
    if not work.cancelled():
        work.result()
    elif keeper.lost is not None:
        raise keeper.lost


async def _close_overdue(
    runner: Runner, keeper: Keeper, stopper: Stopper, opening: Sequence[Event]
) -> None:
    """Nothing is begun when the time is up already; what was asked for is recorded, and that it was too late."""
    try:
        await runner.stop(OVERDUE.status, OVERDUE.error, opening=opening)
        await _settle(runner, keeper, stopper.close())
    finally:
        await keeper.release()


async def _leave(tasks: set[asyncio.Task[Any]], runner: Runner, keeper: Keeper) -> None:
    """See all of it end, whoever else loses patience meanwhile, and let the run go when nothing of it goes on."""
    for task in tasks:
        task.cancel()
    cancelled = await ended(tasks)
    if running := runner.left_running():
        held = "held until it ends" if keeper.is_trusted else "it goes on, and cannot be stopped"
        logger.warning("run %s: %s: %s", runner.run_id, held, _named(running))
        keeper.hold_for([thread for _, thread in running])
    else:
        await keeper.release()
    if cancelled is not None:
        raise cancelled


async def _stop(runner: Runner, keeper: Keeper, stop: Stop | LetGo) -> None:
    """End the run, unless it has come to another end meanwhile."""
    keeper.check()
    if isinstance(stop, LetGo):
        await _let_go(runner)
    else:
        await runner.stop(stop.status, _error(runner, stop), stop.by)


async def _settle(runner: Runner, keeper: Keeper, told: Stop | LetGo | None) -> None:
    """See to it that no cancel that came while the run ended is left unheard: it would meet whoever resumes the run, who
    knows nothing of it. It counts after an end that is none for good, and after another one there is nothing to cancel.

    After a completed run nobody looks: it is never gone on with, and a look would be a read more for every run.
    """
    status = runner.state.status
    if status is None or keeper.lost is not None or (status == "completed" and not is_cancel(told)):
        return
    try:
        if status in ENDABLE:
            await _cancel_late(runner, keeper, told)
        if runner.state.status not in ENDABLE and not runner.unsaved:  # else it is to be heard of
            await answered(runner.store, runner.run_id)
    except Exception as error:  # how the run ended is what is to be told
        logger.warning("run %s: whether it was cancelled is not known (%s)", runner.run_id, error)


async def _cancel_late(runner: Runner, keeper: Keeper, told: Stop | LetGo | None) -> None:
    stop = told if is_cancel(told) else await cancelled_meanwhile(runner.store, runner.run_id)
    if stop is not None:
        keeper.check()
        await runner.stop(stop.status, _error(runner, stop), stop.by, has_ended=True)


def _error(runner: Runner, stop: Stop) -> str:
    if running := runner.left_running():
        return f"{stop.error} Still running, since a thread cannot be stopped: {_named(running)}."
    return stop.error


async def _let_go(runner: Runner) -> None:
    if runner.left_running():  # that is no good order
        return
    try:
        await runner.let_go()
    except AgentorError as error:  # then this attempt counts
        logger.warning("run %s: that it was let go is not recorded (%s)", runner.run_id, error)


def _named(running: Iterable[tuple[Call, threading.Thread]]) -> str:
    return ", ".join(f"{call.name} ({call.call_id})" for call, _ in running)
