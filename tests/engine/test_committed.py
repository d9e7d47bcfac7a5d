"""Waiting for a store's futures, from one event loop or several, cancelled or not."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

import agentor.engine.committed as committing
from agentor.engine.committed import committed


class CountingLoop(asyncio.SelectorEventLoop):
    calls_from_outside = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:
        self.calls_from_outside += 1
        return super().call_soon_threadsafe(*args, **options)


def test_one_commit_that_answers_many_calls_into_their_event_loop_once() -> None:
    loop = CountingLoop()
    futures: list[Future[int]] = [Future() for _ in range(500)]

    async def all_of_them() -> list[int]:
        waiting = [asyncio.ensure_future(committed(future)) for future in futures]
        await asyncio.sleep(0)
        before = loop.calls_from_outside
        for number, future in enumerate(futures):  # in this thread: the loop cannot run between
            future.set_result(number)
        found = [await each for each in waiting]
        assert loop.calls_from_outside == before + 1
        return found

    try:
        assert loop.run_until_complete(all_of_them()) == list(range(500))
    finally:
        loop.close()


def test_nobody_is_overlooked_whatever_threads_answer_while_the_loop_wakes_others() -> None:
    async def rounds() -> None:
        for _ in range(20):
            futures: list[Future[None]] = [Future() for _ in range(64)]
            waiting = [asyncio.ensure_future(committed(future)) for future in futures]
            await asyncio.sleep(0)
            threads = [
                threading.Thread(
                    target=lambda part: [f.set_result(None) for f in part], args=(part,)
                )
                for part in (futures[::2], futures[1::2])
            ]
            for thread in threads:
                thread.start()
            await asyncio.wait_for(asyncio.gather(*waiting), 60)
            for thread in threads:
                thread.join()

    asyncio.run(rounds())


async def test_a_future_that_is_done_is_answered_at_once_and_a_failure_is_raised() -> None:
    done: Future[int] = Future()
    done.set_result(7)
    assert await committed(done) == 7
    failed: Future[int] = Future()
    failed.set_exception(OSError("full"))
    with pytest.raises(OSError, match="full"):
        await committed(failed)


async def test_a_cancellation_waits_for_the_commit() -> None:
    future: Future[None] = Future()
    task = asyncio.ensure_future(committed(future))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    future.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_second_cancellation_does_not_wait_for_a_disk_that_hangs() -> None:
    task = asyncio.ensure_future(committed(Future()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_that_a_cancellation_hides_is_no_exception_that_nobody_retrieved() -> None:
    future: Future[None] = Future()
    task = asyncio.ensure_future(committed(future))
    await asyncio.sleep(0)
    task.cancel()
    future.set_exception(OSError("full"))
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_answer_that_comes_after_the_loop_has_ended_harms_nobody() -> None:
    future: Future[None] = Future()

    async def leave() -> asyncio.Task[None]:
        task = asyncio.ensure_future(committed(future))
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(leave())
    loop.close()
    future.set_result(None)
    assert not task.done()
    task.get_coro().close()  # type: ignore[union-attr]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_waiter_whom_an_interrupt_took_the_answer_from_is_found_by_the_next_cancellation() -> (
    None
):
    future: Future[None] = Future()
    task = asyncio.ensure_future(committed(future))
    await asyncio.sleep(0)
    bell = committing._Bell(asyncio.get_running_loop())
    bell._is_rung = True  # rung, and whoever was to answer was interrupted
    committing._bells[asyncio.get_running_loop()] = bell
    future.set_result(None)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    assert not bell._is_rung


def test_what_waited_for_a_loop_that_has_ended_keeps_it_no_longer() -> None:
    futures: list[Future[None]] = [Future()]

    async def leave() -> weakref.ref[asyncio.AbstractEventLoop]:
        task = asyncio.ensure_future(committed(futures[0]))
        await asyncio.sleep(0)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(leave())
    futures.pop().set_result(None)
    gc.collect()
    assert loop() is None
