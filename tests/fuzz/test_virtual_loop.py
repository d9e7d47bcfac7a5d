"""Virtual time: it jumps, it is the same for all processes, and a stuck program shows."""

from __future__ import annotations

import asyncio
import queue
import random
import time
from concurrent.futures import Future

import pytest

from agentor.engine import clock
from fuzz import threads
from fuzz.loop import Deadlock, ProcessLoop, Timeline
from fuzz.shrink import shrink
from fuzz.virtual_clock import VirtualClock


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(random.Random(1), start=0.0)


def test_a_day_of_sleep_takes_no_time(timeline: Timeline) -> None:
    began = time.monotonic()

    async def sleep() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert ProcessLoop(timeline).run_until_complete(sleep()) == 86_400
    assert time.monotonic() - began < 5


def test_the_clock_of_agentor_is_the_timelines(timeline: Timeline) -> None:
    process = ProcessLoop(timeline)
    process.skew_s = 0.5

    async def look() -> tuple[float, float]:
        await clock.sleep(10)
        return clock.now(), clock.monotonic()

    with clock.installed(VirtualClock(timeline, 1)):
        assert process.run_until_complete(look()) == (10.5, 10.0)
        ids = [clock.new_id(), clock.new_id()]
    assert all(len(new) == 32 for new in ids)
    assert ids[0] != ids[1]
    with clock.installed(VirtualClock(timeline, 1)):
        assert clock.new_id() == ids[0]


def test_who_waits_for_ever_is_a_deadlock(timeline: Timeline) -> None:
    process = ProcessLoop(timeline)

    async def wait() -> None:
        await process.create_future()

    with pytest.raises(Deadlock):
        process.run_until_complete(wait())
    assert timeline.deadlocked()
    process.end()


def test_timers_of_all_processes_go_off_in_order_of_time(timeline: Timeline) -> None:
    heard: list[str] = []

    async def tell(name: str, after: float) -> None:
        await asyncio.sleep(after)
        heard.append(name)

    for name, after in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        ProcessLoop(timeline, name).create_task(tell(name, after))
    timeline.run_until(10)
    assert heard == ["a", "b", "c"]
    assert timeline.now == 10


def test_a_suspended_process_sleeps_through_its_timers_and_catches_up(timeline: Timeline) -> None:
    process, heard = ProcessLoop(timeline), []

    async def tick() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            heard.append(timeline.now)

    process.create_task(tick())
    timeline.run_until(1.5)
    process.suspended = True
    timeline.run_until(50)
    assert heard == [1.0]
    process.suspended = False
    timeline.run_until(60)
    assert heard == [1.0, 50.0, 51.0]


def test_a_process_that_ends_unwinds_what_it_was_doing_and_does_nothing_more(
    timeline: Timeline,
) -> None:
    process, heard = ProcessLoop(timeline), []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
            heard.append("done")
        finally:
            await asyncio.sleep(1)
            heard.append("unwound")

    task = process.create_task(work())
    timeline.run_until(5)
    process.end()
    assert task.cancelled()
    assert heard == ["unwound"]
    timeline.run_until(100)
    assert heard == ["unwound"]


def test_work_for_a_thread_is_done_on_the_loop_after_its_delay(timeline: Timeline) -> None:
    process = ProcessLoop(timeline, delay_s=lambda: 2.0)

    async def work() -> tuple[float, bool]:
        return await asyncio.to_thread(lambda: (timeline.now, process.in_thread))

    assert process.run_until_complete(work()) == (2.0, True)
    assert not process.in_thread


@pytest.mark.parametrize("guilty", [[], [3], [0, 19], [7, 8, 9]])
def test_shrinking_leaves_only_what_is_needed(guilty: list[int]) -> None:
    assert shrink(range(20), lambda part: set(guilty) <= set(part)) == guilty


def test_a_thread_that_waits_for_a_future_gives_its_turn_back(timeline: Timeline) -> None:
    process, heard = ProcessLoop(timeline), []
    future: Future[str] = Future()

    def wait() -> None:
        heard.append("waits")
        heard.append(threads.result(future))

    async def work() -> None:
        waiting = asyncio.to_thread(wait)
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(5)
        heard.append("loop")
        future.set_result("done")
        await task

    process.run_until_complete(work())
    assert heard == ["waits", "loop", "done"]
    assert process.threads == []


def test_a_queue_between_two_threads_of_a_process_runs_out_of_time_in_virtual_time(
    timeline: Timeline,
) -> None:
    process, between = ProcessLoop(timeline), threads.SimpleQueue[int]()

    def give() -> None:
        threads.sleep(3)
        between.put(7)

    def take() -> tuple[int, float]:
        first = between.get(timeout=10)
        with pytest.raises(queue.Empty):
            between.get(timeout=10)
        return first, timeline.now

    async def work() -> tuple[int, float]:
        taking = asyncio.to_thread(take)
        taken, _ = await asyncio.gather(taking, asyncio.to_thread(give))
        return taken

    assert process.run_until_complete(work()) == (7, 13.0)


def test_a_thread_of_a_process_that_ends_is_unwound(timeline: Timeline) -> None:
    process, heard = ProcessLoop(timeline), []

    def wait() -> None:
        try:
            threads.sleep(100)
        finally:
            heard.append("unwound")

    async def work() -> None:
        await asyncio.to_thread(wait)

    process.create_task(work())
    timeline.run_until(5)
    process.end()
    assert heard == ["unwound"]
    assert process.threads == []
