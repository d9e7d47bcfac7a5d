"""A call ends in time, whoever is waiting, and cancelling from outside is never taken for a timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from model_asking import InstantClock

from agentor.engine.patience import Alarm, Patience


async def soon(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def never() -> None:
    await asyncio.Event().wait()


def test_an_alarm_lets_steps_through_and_ends_the_one_that_takes_too_long() -> None:
    async def main() -> None:
        alarm = Alarm()
        alarm.set_in(0.02)
        assert [await alarm.limit(soon("a")) for _ in range(3)] == ["a"] * 3
        with pytest.raises(TimeoutError):
            await alarm.limit(never())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert await soon("goes on") == "goes on"

    asyncio.run(main())


def test_an_alarm_that_rang_while_nobody_waited_ends_the_next_wait() -> None:
    async def main() -> None:
        alarm = Alarm()
        alarm.set_in(-1)
        await soon("the reader of the last piece is at work")
        await soon("and still is")

        async def there() -> str:
            return "what is there already is still taken"

        assert (await alarm.limit(there())).startswith("what")
        with pytest.raises(TimeoutError):
            await alarm.limit(never())

    asyncio.run(main())


def test_an_alarm_that_was_stopped_does_not_ring() -> None:
    async def main() -> None:
        alarm = Alarm()
        alarm.set_in(0)
        alarm.stop()
        for _ in range(4):
            assert await alarm.limit(soon("a")) == "a"

    asyncio.run(main())


def test_an_alarm_is_only_ever_set_to_an_earlier_time() -> None:
    async def main() -> None:
        alarm = Alarm()
        alarm.set_in(0.01)
        alarm.set_in(3600)
        with pytest.raises(TimeoutError):
            await alarm.limit(never())

    asyncio.run(main())


@pytest.mark.parametrize("rang", [False, True])
def test_cancelling_from_outside_wins_over_the_alarm(rang: bool) -> None:
    async def main() -> None:
        alarm = Alarm()
        entered = asyncio.Event()

        async def step() -> None:
            entered.set()
            await never()

        task = asyncio.ensure_future(alarm.limit(step()))
        await entered.wait()
        task.cancel()
        if rang:
            alarm._ring()  # in the same turn of the event loop
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_errors_of_a_step_come_through() -> None:
    async def fails() -> None:
        raise LookupError("x")

    async def main() -> None:
        alarm = Alarm()
        alarm.set_in(60)
        with pytest.raises(LookupError):
            await alarm.limit(fails())
        alarm.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("retries", "timeout_s", "headers", "waits"),
    [
        (2, 60, {}, [True, True, False]),
        (0, 60, {}, [False]),
        (5, 0.4, {}, [False]),  # the first wait would be longer than the call may take
        (5, 60, {"retry-after": "61"}, [False]),
        (5, 600, {"retry-after": "121"}, [False]),
        (1, 60, {"retry-after-ms": "1500"}, [True, False]),
    ],
)
def test_patience_ends(
    retries: int,
    timeout_s: float,
    headers: dict[str, str],
    waits: list[bool],
    instant_clock: InstantClock,
) -> None:
    async def main() -> list[Any]:
        patience = Patience(retries, timeout_s)
        return [await patience.wait(headers) for _ in waits]

    assert asyncio.run(main()) == waits
    if "retry-after-ms" in headers:
        assert instant_clock.slept == [1.5]
