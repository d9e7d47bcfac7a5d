"""A signal comes between any two steps: nothing stays held, nothing is lost, and who waits can be interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from agentor.engine import interrupts
from agentor.engine.interrupts import (
    Answer,
    Waiters,
    allowed,
    deferred,
    ended,
    held,
    kept,
    result_of,
)
from tests.interrupting import SIGNAL, Interrupt, handled, interrupt, interrupted_at


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    with handled():
        yield
    assert not interrupts._main.is_in_section
    assert interrupts._main.is_open
    assert not interrupts._main.came


def raise_signal() -> None:
    signal.raise_signal(SIGNAL)


def test_a_signal_waits_for_the_end_of_the_outermost_block() -> None:
    done = []
    with pytest.raises(Interrupt), deferred():  # noqa: PT012
        with deferred():
            raise_signal()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    assert signal.getsignal(SIGNAL) is interrupt


def test_an_error_of_the_block_stays_with_the_interrupt_that_came_meanwhile() -> None:
    with pytest.raises(Interrupt) as told, deferred():  # noqa: PT012
        raise_signal()
        raise KeyError("mine")
    assert isinstance(told.value.__context__, KeyError)


def test_what_is_allowed_is_interrupted_at_once_and_what_follows_is_not() -> None:
    done = []
    with pytest.raises(Interrupt), deferred():  # noqa: PT012
        try:
            allowed(raise_signal)
            done.append("after")
        finally:
            raise_signal()
            done.append("given back")
    assert done == ["given back"]


def test_what_came_before_is_told_before_what_is_allowed_begins() -> None:
    done: list[int] = []
    with pytest.raises(Interrupt), deferred():  # noqa: PT012
        raise_signal()
        allowed(done.append, 1)
    assert done == []


def test_no_signal_is_lost_when_the_handler_of_another_raises() -> None:
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        told.append(number)
        raise Interrupt

    before = signal.signal(signal.SIGUSR2, tell)
    try:
        with handled(tell), pytest.raises(Interrupt), deferred():  # noqa: PT012
            raise_signal()
            signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert sorted(told) == [SIGNAL, signal.SIGUSR2]


def test_a_handler_that_only_listens_hears_each_signal_once() -> None:
    heard: list[int] = []
    with handled(lambda number, frame: heard.append(number)):
        with deferred():
            raise_signal()
            assert heard == []
        assert heard == [SIGNAL]
        raise_signal()
    assert heard == [SIGNAL, SIGNAL]


def test_a_handler_that_the_program_sets_meanwhile_stays() -> None:
    def other(*_: object) -> None: ...

    with deferred():
        signal.signal(SIGNAL, other)
    assert signal.getsignal(SIGNAL) is other


def test_a_program_that_puts_back_what_it_found_in_a_block_is_interrupted_as_before() -> None:
    with deferred():
        found = signal.getsignal(SIGNAL)
    signal.signal(SIGNAL, found)
    with pytest.raises(Interrupt):
        raise_signal()


def test_what_is_ignored_or_left_to_the_system_is_left_alone() -> None:
    with handled(signal.SIG_IGN), deferred():
        assert signal.getsignal(SIGNAL) is signal.SIG_IGN


def test_other_threads_change_no_handler() -> None:
    found: list[Any] = []

    def look() -> None:
        with deferred():
            found.append(signal.getsignal(SIGNAL))
            allowed(found.append, None)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [interrupt, None]


def test_where_no_handler_can_be_set_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    monkeypatch.setattr(interrupts, "_set_handler", refused)
    with pytest.raises(Interrupt), deferred():  # noqa: PT012
        raise_signal()
        pytest.fail("not interrupted")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_another_thread_forks_is_not_held_back() -> None:
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(SIGNAL)
                os._exit(1)
            except Interrupt:
                os._exit(signal.getsignal(SIGNAL) is not interrupt)
        codes.append(os.waitpid(child, 0)[1])

    with deferred():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert codes == [0]


def test_at_whatever_step_it_comes_a_block_is_whole_or_has_not_begun() -> None:
    for step in range(1, 10_000):
        done: list[str] = []

        def act(done: list[str] = done) -> None:
            with deferred():
                done.append("taken")
                try:
                    allowed(len, done)
                    with deferred():
                        done.append("inner")
                    allowed(len, done)
                finally:
                    done.append("given back")

        error, reached = interrupted_at(step, act)
        assert done in ([], ["taken", "given back"], ["taken", "inner", "given back"])
        assert isinstance(error, Interrupt) == reached
        with pytest.raises(Interrupt):  # also where it came as the handlers were put back
            raise_signal()
        if not reached:
            return


def test_at_whatever_step_it_comes_a_lock_is_free_afterwards() -> None:
    lock = threading.Lock()

    def hold() -> None:
        with held(lock):
            assert lock.locked()

    reached = True
    for step in range(1, 10_000):
        if reached:
            _, reached = interrupted_at(step, hold)
            assert not lock.locked()
    assert not reached


def test_who_waits_for_a_lock_is_interrupted_and_does_not_get_it() -> None:
    lock = threading.Lock()
    lock.acquire()
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupt), held(lock):
            pytest.fail("it is held by us")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lock.release()
    assert lock.acquire(blocking=False)


def test_at_whatever_step_who_asks_a_future_is_interrupted_it_can_still_be_answered() -> None:
    reached = True
    for step in range(1, 10_000):
        if not reached:
            return
        answer: Answer[int] = Answer()

        def ask(answer: Answer[int] = answer) -> None:
            answer.add_done_callback(lambda _: None)
            assert not answer.running()
            assert not answer.done()
            assert not answer.cancelled()
            with pytest.raises(TimeoutError):
                answer.result(timeout=0)
            with pytest.raises(TimeoutError):
                answer.exception(timeout=0)

        error, reached = interrupted_at(step, ask)
        assert isinstance(error, Interrupt) == reached
        thread = threading.Thread(target=answer.set_result, args=(1,), daemon=True)
        thread.start()
        thread.join(30)
        assert answer.result(timeout=0) == 1
        assert answer.exception(timeout=0) is None


def test_what_the_caller_does_not_get_is_given_back() -> None:
    reached = True
    for step in range(1, 10_000):
        if not reached:
            break
        free = {"it"}
        got: list[str] = []

        def act(free: set[str] = free, got: list[str] = got) -> None:
            it = kept(free.pop, free.add)
            got.append(it)

        _, reached = interrupted_at(step, act)
        assert len(free) + len(got) == 1
    assert not reached


def test_who_is_interrupted_withdraws_what_has_not_begun() -> None:
    future: Future[None] = Future()
    with pytest.raises(Interrupt):
        result_of(lambda: (raise_signal(), future)[1])
    assert future.cancelled()


def test_who_is_interrupted_sees_through_what_has_begun_and_undoes_it() -> None:
    future: Future[int] = Future()
    undone: list[int] = []
    answering = threading.Thread(target=future.set_result, args=(7,))

    def start() -> Future[int]:
        future.set_running_or_notify_cancel()
        raise_signal()
        answering.start()
        return future

    with pytest.raises(Interrupt):
        result_of(start, undone.append)
    answering.join()
    assert undone == [7]


def test_waiting_ends_when_the_time_is_over() -> None:
    assert not ended(Future(), timeout_s=0.001)
    assert not Waiters().wait_until(lambda: False, timeout_s=0.001)


def test_whoever_waits_for_a_change_is_told_of_it() -> None:
    waiters, so = Waiters(), threading.Event()
    asked = threading.Event()

    def is_so() -> bool:
        asked.set()
        return so.is_set()

    waiting = threading.Thread(target=waiters.wait_until, args=(is_so,), daemon=True)
    waiting.start()
    asked.wait(30)
    so.set()
    waiters.tell()
    waiting.join(30)
    assert not waiting.is_alive()
