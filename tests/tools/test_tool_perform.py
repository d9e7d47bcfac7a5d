"""One call, whatever the tool does: it ends in an outcome, and only its caller's cancellation gets through."""

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from standing_clock import StandingClock, settled

from agentor.engine.tool_perform import GRACE_S, CancelledWithOutcomeError
from agentor.engine.tools import RunContext, Tool, ToolOutcome, function_tool, perform

CONTEXT = RunContext()
FOREVER = 60.0  # seconds after which a stuck test fails


def tool_of(invoke: Any, **options: Any) -> Tool:
    return Tool("probe", "", {"type": "object"}, invoke, **options)


def outcome_of(invoke: Any, args: Any = None, **options: Any) -> ToolOutcome:
    return asyncio.run(perform(tool_of(invoke, **options), args or {}, CONTEXT))


def raising(error: BaseException) -> Any:
    def sync() -> None:
        raise error

    return sync


def raising_later(error: BaseException) -> Any:
    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    return later


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


FAILURES: list[tuple[BaseException, str]] = [
    (RuntimeError("database unavailable"), "RuntimeError: database unavailable"),
    (ValueError(), "ValueError"),
    (KeyError("city"), "KeyError: 'city'"),
    (OSError(2, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
    (asyncio.CancelledError(), "CancelledError"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (TimeoutError("slow"), "TimeoutError: slow"),
    (Unspeakable(), "Unspeakable: <Unspeakable that cannot be shown>"),
    (ValueError("a\ud800b"), "ValueError: a�b"),
    (
        BaseExceptionGroup("two", [ValueError("a"), asyncio.CancelledError()]),
        "BaseExceptionGroup: two (2 sub-exceptions): ValueError: a; CancelledError",
    ),
]


@pytest.mark.parametrize(("error", "told"), FAILURES, ids=lambda v: str(type(v).__name__))
@pytest.mark.parametrize("make", [raising, raising_later])
def test_whatever_a_tool_raises_is_a_failed_call(make: Any, error: Any, told: str) -> None:
    outcome = outcome_of(make(error))
    assert outcome.error == told
    assert outcome.text == f"Error: {told}"


@pytest.mark.parametrize("make", [raising, raising_later])
def test_stop_iteration_breaks_nothing(make: Any) -> None:
    assert "StopIteration" in str(outcome_of(make(StopIteration(1))).error)


def test_a_very_long_error_is_cut() -> None:
    outcome = outcome_of(raising(ValueError("x" * 1_000_000)))
    assert "cut here: " in outcome.text
    assert len(outcome.text) < 25_000


def test_a_validation_error_of_the_tools_own_has_no_links() -> None:
    class Row(BaseModel):
        id: int

    outcome = outcome_of(lambda: Row.model_validate({"id": "x"}))
    assert str(outcome.error).startswith("ValidationError: id: Input should be a valid integer")
    assert "http" not in outcome.text


def test_wrong_arguments_are_a_failed_call_and_the_tool_is_not_started() -> None:
    started = []

    @function_tool
    def find(city: str, days: int) -> None:
        started.append(city)

    outcome = asyncio.run(perform(find, {"days": "soon"}, CONTEXT))
    assert outcome.error is not None
    assert outcome.error.startswith("InvalidArgumentsError: city: Field required; days: ")
    assert started == []
    assert "JSON object" in str(asyncio.run(perform(find, [1], CONTEXT)).error)


def test_times_are_taken_around_the_call(standing: StandingClock) -> None:
    async def slow() -> str:
        await standing.advance(3.0)
        return "done"

    assert outcome_of(slow) == ToolOutcome("done", None, 1000.0, 1003.0)


def test_a_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentor.tools")
    outcome_of(raising(RuntimeError("boom")))
    assert "tool probe failed: RuntimeError: boom" in caplog.text
    assert "Traceback" in caplog.text


# Sync tools ----------------------------------------------------------------------------------------------------------


def test_sync_tools_run_side_by_side_and_never_block_the_loop() -> None:
    meeting = threading.Barrier(3, timeout=FOREVER)

    async def main() -> list[ToolOutcome]:
        return list(await asyncio.gather(*(perform(tool, {}, CONTEXT) for _ in range(3))))

    tool = tool_of(lambda: meeting.wait() >= 0)
    assert [outcome.text for outcome in asyncio.run(main())] == ["true"] * 3


def test_tools_see_the_callers_context_variables_and_cannot_change_them() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    def sync() -> str:
        seen = user.get()
        user.set("thief")
        return seen

    async def later() -> str:
        return sync()

    async def main() -> None:
        user.set("ada")
        for invoke in (sync, later):
            assert (await perform(tool_of(invoke), {}, CONTEXT)).text == "ada"
        assert user.get() == "ada"

    asyncio.run(main())


def test_a_sync_tool_may_run_a_loop_of_its_own() -> None:
    async def inner() -> str:
        return "inner"

    assert outcome_of(lambda: asyncio.run(inner())).text == "inner"


def test_no_thread_left_is_a_failed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_start)
    assert outcome_of(lambda: 1).error == "NoThreadError: can't start new thread"


@pytest.mark.slow
def test_a_stuck_sync_tool_does_not_hold_up_the_exit_of_the_interpreter() -> None:
    code = """if True:
        import asyncio, threading
        from agentor.engine.tools import *
        tool = Tool("stuck", "", {"type": "object"}, lambda: threading.Event().wait(), timeout_s=0.01)
        print(asyncio.run(perform(tool, {}, RunContext())).error)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=FOREVER
    )
    assert done.stdout.startswith("TimeoutError: no result within 0.01 s")
    assert (done.stderr, done.returncode) == ("", 0)


# Generators ------------------------------------------------------------------------------------------------------------


def pieces() -> Iterator[int]:
    yield 1
    yield 2


async def pieces_later() -> AsyncIterator[int]:
    yield 1
    await asyncio.sleep(0)
    yield 2


def broken() -> Iterator[int]:
    yield 1
    raise ValueError("half-way")


async def broken_later() -> AsyncIterator[int]:
    yield 1
    raise ValueError("half-way")


@pytest.mark.parametrize("invoke", [pieces, pieces_later, lambda: map(int, "12")])
def test_what_a_generator_yields_is_collected(invoke: Any) -> None:
    assert outcome_of(invoke).text == "[1, 2]"


@pytest.mark.parametrize("invoke", [broken, broken_later])
def test_a_generator_that_fails_half_way_is_a_failed_call(invoke: Any) -> None:
    assert outcome_of(invoke).error == "ValueError: half-way"


def test_a_generator_that_never_ends_is_stopped() -> None:
    closed = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    async def endless_later() -> AsyncIterator[int]:
        for item in endless():
            yield item

    for invoke in (endless, endless_later):
        assert outcome_of(invoke).text.endswith('0, "<stopped after 100000 items>"]')
    gc.collect()
    assert closed == [True, True]


# Timeouts --------------------------------------------------------------------------------------------------------------


async def started(call: Coroutine[Any, Any, ToolOutcome]) -> asyncio.Task[ToolOutcome]:
    task = asyncio.ensure_future(call)
    await settled()
    return task


def test_a_tool_past_its_timeout_is_cancelled_and_failed(standing: StandingClock) -> None:
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    async def main() -> ToolOutcome:
        call = await started(perform(tool_of(hang), {}, CONTEXT, timeout_s=5))
        await standing.advance(4.9)
        assert not call.done()
        await standing.advance(0.1)
        return call.result()

    seen: list[str] = []
    outcome = asyncio.run(main())
    assert str(outcome.error).startswith("TimeoutError: no result within 5 s")
    assert outcome.text == f"Error: {outcome.error}"
    assert (seen, outcome.ended_at) == (["cleaned up"], 1005.0)


def test_a_tools_own_timeout_comes_before_the_general_one(standing: StandingClock) -> None:
    async def main() -> ToolOutcome:
        tool = tool_of(asyncio.Event().wait, timeout_s=2)
        call = await started(perform(tool, {}, CONTEXT, timeout_s=60))
        await standing.advance(2)
        return call.result()

    assert "within 2 s" in str(asyncio.run(main()).error)


def test_a_sync_tool_past_its_timeout_is_left_to_itself_unheard(standing: StandingClock) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def slow() -> str:
        go_on.wait(FOREVER)
        ended.set()
        return "late"

    async def main() -> ToolOutcome:
        call = await started(perform(tool_of(slow), {}, CONTEXT, timeout_s=5))
        await standing.advance(5)
        outcome = call.result()
        go_on.set()
        await asyncio.to_thread(ended.wait, FOREVER)
        await settled()
        return outcome

    assert "within 5 s" in str(asyncio.run(main()).error)


def test_a_result_that_comes_while_the_tool_is_stopped_is_kept(standing: StandingClock) -> None:
    async def saved() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved what there was"
        return ""

    async def main() -> ToolOutcome:
        call = await started(perform(tool_of(saved), {}, CONTEXT, timeout_s=5))
        await standing.advance(5)
        return call.result()

    assert asyncio.run(main()).text == "saved what there was"


def test_a_tool_that_ignores_its_timeout_is_abandoned_after_the_grace(
    standing: StandingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> ToolOutcome:
        call = await started(perform(tool_of(stubborn), {}, CONTEXT, timeout_s=5))
        await standing.advance(5)
        await standing.advance(GRACE_S - 0.1)
        assert not call.done()
        await standing.advance(0.1)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing of it is left"
        return call.result()

    assert "within 5 s" in str(asyncio.run(main()).error)
    assert "did not stop" in caplog.text


async def stubborn() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


# Cancellation ------------------------------------------------------------------------------------------------------------


async def hanging() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_cancelled_caller_is_cancelled(kind: str, turns: int) -> None:
    release = threading.Event()

    async def main() -> None:
        invoke = hanging if kind == "async" else lambda: release.wait(FOREVER)
        call = asyncio.ensure_future(perform(tool_of(invoke), {}, CONTEXT))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    release.set()


def test_a_cancelled_caller_waits_for_the_tool_to_clean_up() -> None:
    seen = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await settled()
            seen.append("tidied")

    async def main() -> None:
        call = await started(perform(tool_of(tidy), {}, CONTEXT))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert seen == ["tidied"]

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["raises", "is cancelled", "exits"])
def test_outer_cancellation_wins_whatever_the_tool_makes_of_it(ending: str) -> None:
    async def tool() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            match ending:
                case "raises":
                    raise ValueError("own") from None
                case "exits":
                    raise SystemExit from None
                case "is cancelled":
                    raise
        return "done"

    assert isinstance(asyncio.run(cancelled_in(tool)), asyncio.CancelledError)


async def cancelled_in(tool: Any) -> ToolOutcome | asyncio.CancelledError:
    """What a caller hears of who is cancelled while the tool is under way; the outcome, if it is told one."""

    async def call() -> ToolOutcome | asyncio.CancelledError:
        try:
            return await perform(tool_of(tool), {}, CONTEXT)
        except CancelledWithOutcomeError as cancelled:
            return cancelled.outcome
        except asyncio.CancelledError as cancelled:
            return cancelled

    calling = asyncio.ensure_future(call())
    await settled()
    calling.cancel("outer")
    return await calling


def test_what_a_tool_returns_while_its_caller_is_cancelled_goes_along_with_the_cancellation() -> (
    None
):
    async def pay() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await settled()
            return "receipt 4711"
        return ""

    outcome = asyncio.run(cancelled_in(pay))
    assert isinstance(outcome, ToolOutcome)
    assert (outcome.text, outcome.error) == ("receipt 4711", None)


def test_a_tool_that_had_ended_when_its_caller_was_cancelled_has_its_outcome() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def pay() -> str:
            await gate.wait()
            call.cancel()  # it is heard of after this has returned
            return "paid"

        call = await started(perform(tool_of(pay), {}, CONTEXT))
        gate.set()
        with pytest.raises(CancelledWithOutcomeError) as caught:
            await call
        assert caught.value.outcome.text == "paid"

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_thread_that_ended_before_the_loop_heard_of_it_is_heard(ending: str) -> None:
    may_end = threading.Event()

    def pay() -> str:
        may_end.wait(FOREVER)
        if ending == "raises":
            raise ValueError("declined")
        return "paid"

    async def main() -> str | None:
        threads: list[threading.Thread] = []
        call = await started(perform(tool_of(pay), {}, CONTEXT, on_thread=threads.append))
        call.cancel()
        may_end.set()
        threads[0].join(FOREVER)
        try:
            await call
        except CancelledWithOutcomeError as cancelled:
            return cancelled.outcome.text
        except asyncio.CancelledError:
            return None
        raise AssertionError("outer cancellation wins")

    assert asyncio.run(main()) == ("paid" if ending == "returns" else None)


def test_whoever_calls_a_tool_without_perform_is_cancelled_also_when_its_thread_has_ended() -> None:
    may_end, entered = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def pay() -> str:
        threads.append(threading.current_thread())
        entered.set()
        may_end.wait(FOREVER)
        return "paid"

    async def main() -> None:
        call = asyncio.ensure_future(tool_of(pay).call({}, CONTEXT))
        await asyncio.to_thread(entered.wait, FOREVER)
        call.cancel()
        may_end.set()
        threads[0].join(FOREVER)
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())


def test_outer_cancellation_wins_when_the_tool_has_just_ended() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        call = await started(perform(tool_of(gate.wait), {}, CONTEXT))
        gate.set()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())


def test_outer_cancellation_wins_while_a_timed_out_tool_is_cleaning_up(
    standing: StandingClock,
) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def tidy() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                await gate.wait()
            return ""

        call = await started(perform(tool_of(tidy), {}, CONTEXT, timeout_s=5))
        await standing.advance(5)
        call.cancel("outer")
        await settled()
        assert not call.done(), "the tool still has its grace"
        gate.set()
        with pytest.raises(CancelledWithOutcomeError, match="outer") as caught:
            await call
        assert "within 5 s" in str(caught.value.outcome.error), "it had failed already"

    asyncio.run(main())


def test_a_tool_that_swallows_cancellation_holds_its_caller_only_for_the_grace(
    standing: StandingClock,
) -> None:
    async def main() -> None:
        call = await started(perform(tool_of(stubborn), {}, CONTEXT))
        for _ in range(3):  # an impatient caller gains nothing and breaks nothing
            call.cancel()
            await settled()
        assert not call.done()
        await standing.advance(GRACE_S)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_tool_that_cancels_its_own_task_has_failed_and_its_caller_goes_on() -> None:
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    assert outcome_of(suicidal).error == "CancelledError"


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_tool_whose_task_somebody_else_cancels_has_failed_whether_it_had_begun_or_not(
    turns: int,
) -> None:
    has_begun = False

    async def forever() -> None:
        nonlocal has_begun
        has_begun = True
        await asyncio.sleep(FOREVER)

    async def main() -> ToolOutcome:
        performing = asyncio.create_task(perform(tool_of(forever), {}, CONTEXT))
        for _ in range(1 + turns):
            await asyncio.sleep(0)
        assert has_begun == (turns > 0)
        [task] = asyncio.all_tasks() - {performing, asyncio.current_task()}
        task.cancel()
        return await performing

    assert asyncio.run(main()).error == "CancelledError"


def test_a_result_is_kept_though_the_tool_left_a_cancellation_behind() -> None:
    async def careless() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    assert outcome_of(careless).text == "done"


def test_a_timeout_around_perform_works_as_usual() -> None:
    async def main() -> str:
        try:
            async with asyncio.timeout(0):
                await perform(tool_of(hanging), {}, CONTEXT)
        except TimeoutError:
            return "timed out"
        return ""

    assert asyncio.run(main()) == "timed out"
