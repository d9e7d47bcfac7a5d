"""A store that can be followed: what comes, in which order, and when it ends."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.store.forking import fork_run
from agentor.engine.store.protocol import (
    Closes,
    Deletes,
    Store,
    Tails,
)
from agentor.errors import (
    ConfigError,
    RunNotFoundError,
)
from agentor.testing.contract import Contract, close, fill, offered, said, start


class TailingContract(Contract):
    """`tail` and `atail`, where they are there."""

    def test_a_tail_gives_what_is_there_and_ends_when_nothing_more_comes(
        self, store: Store
    ) -> None:
        tails: Tails = offered(store, Tails)
        fill(store, "run", 4)
        fork_run(store, "run", "fork", at=2)
        assert list(tails.tail("run", timeout=0)) == store.load("run")
        assert list(tails.tail("run", after=3, timeout=0)) == store.load("run")[3:]
        assert list(tails.tail("fork", after=1, timeout=0)) == store.load("fork")[1:]
        assert list(tails.tail("run", after=4, timeout=0.01)) == []
        assert list(tails.tail("nobody", timeout=0)) == []

    def test_a_tail_gives_what_is_appended_meanwhile_until_it_is_stopped(
        self, store: Store
    ) -> None:
        tails: Tails = offered(store, Tails)
        stop = threading.Event()
        fill(store, "run", 2)
        seen = []
        for event in tails.tail("run", after=1, stop=stop, timeout=30):
            seen.append(event.seq)
            if event.seq == 12:
                stop.set()
            elif event.seq is not None:
                store.append("other", said("not for us"))
                store.append("run", said("next", seq=event.seq + 1))
        assert seen == list(range(2, 13))

    def test_a_waiting_tail_is_woken_by_an_append_and_by_close(self, store: Store) -> None:
        tails: Tails = offered(store, Tails)
        closes: Closes = offered(store, Closes)
        seen: queue.Queue[Any] = queue.Queue()

        def follow() -> None:
            for event in tails.tail("run"):
                seen.put(event.seq)
            seen.put("ended")

        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(follow)
            for seq in (1, 2, 3):
                store.append("run", said(f"{seq}", seq=seq))
                assert seen.get(timeout=30) == seq
            closes.close()
            assert seen.get(timeout=30) == "ended"
            following.result(timeout=30)

    @pytest.mark.parametrize("length_of_the_next", [0, 1, 4, 9])
    def test_a_tail_ends_with_its_run_and_never_goes_on_in_the_next_of_that_id(
        self, store: Store, length_of_the_next: int
    ) -> None:
        tails: Tails = offered(store, Tails)
        deletes: Deletes = offered(store, Deletes)
        fill(store, "run", 4)
        following = tails.tail("run", after=2, timeout=30)
        assert [next(following).seq for _ in range(2)] == [3, 4]
        deletes.delete("run")
        if length_of_the_next:
            fill(store, "run", length_of_the_next)
        with pytest.raises(RunNotFoundError) as caught:
            next(following)
        assert caught.value.run_id == "run"
        assert list(tails.tail("run", timeout=0)) == store.load("run")

    def test_a_waiting_tail_ends_when_its_run_is_deleted(self, store: Store) -> None:
        tails: Tails = offered(store, Tails)
        deletes: Deletes = offered(store, Deletes)
        fill(store, "run", 1)

        seen = []

        async def follow() -> None:
            async for event in tails.atail("run", timeout=30):
                seen.append(event.seq)
                asyncio.get_running_loop().call_soon(deletes.delete, "run")

        with pytest.raises(RunNotFoundError):
            asyncio.run(follow())
        assert seen == [1]

    def test_a_tail_of_all_runs_gives_each_event_once_in_the_order_of_saving(
        self, store: Store
    ) -> None:
        tails: Tails = offered(store, Tails)
        try:
            tails.tail(timeout=0)
        except ConfigError:
            pytest.skip("has no order over all runs")
        for run_id in ("a", "b", "a"):
            store.append(run_id, said(run_id))
        fork_run(store, "a", "c")
        found = list(tails.tail(timeout=0))
        assert [(run_id, event.seq) for _, run_id, event in found] == [
            *(("a", 1), ("b", 1), ("a", 2), ("c", 3))
        ]
        positions = [position for position, _, _ in found]
        assert positions == sorted(set(positions))
        assert tails.last_position() == positions[-1]
        assert list(tails.tail(after=positions[1], timeout=0)) == found[2:]
        offered(store, Deletes).delete("a")
        store.append("a", said("anew"))
        left = list(tails.tail(timeout=0))
        assert [(run_id, event.seq) for _, run_id, event in left] == [("b", 1), ("c", 3), ("a", 1)]
        assert left[-1][0] > positions[-1]

    def test_a_tail_can_be_followed_without_holding_up_the_loop(self, store: Store) -> None:
        tails: Tails = offered(store, Tails)

        async def follow() -> list[int | None]:
            seen: list[int | None] = []
            async for event in tails.atail("run", timeout=30):
                seen.append(event.seq)
                if event.seq == 5:
                    break
                await asyncio.to_thread(store.append, "run", said("next"))
            quiet = [event async for event in tails.atail("run", after=5, timeout=0.01)]
            return [*seen, len(quiet)]

        store.append("run", start(seq=1))
        assert asyncio.run(follow()) == [1, 2, 3, 4, 5, 0]

    def test_a_second_store_follows_what_the_first_appends(self, tmp_path: Path) -> None:
        if not self.is_persistent:
            pytest.skip("keeps its runs in memory")
        first = self.make_store(tmp_path)
        offered(first, Tails)
        second: Any = self.make_store(tmp_path)
        first.append("run", start(seq=1))
        seen = []
        for event in second.tail("run", timeout=30):
            seen.append(event.seq)
            if event.seq == 4:
                break
            first.append("run", said("next", seq=event.seq + 1))
        assert seen == [1, 2, 3, 4]
        close(first)
        close(second)

    @pytest.mark.parametrize("nonsense", [{"after": -1}, {"after": "1"}, {"timeout": -1}])
    def test_a_tail_that_makes_no_sense_is_a_value_error(
        self, store: Store, nonsense: dict[str, Any]
    ) -> None:
        tails: Tails = offered(store, Tails)
        for follow in (tails.tail, tails.atail):
            with pytest.raises(ValueError, match=next(iter(nonsense))):
                follow("run", **nonsense)
