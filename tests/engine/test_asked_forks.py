"""A fork and what it is asked are one commit: whoever goes on with the fork, and whenever, does what it was made for."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest

from agentor import (
    Agentor,
    Budget,
    ConfigError,
    LeaseHeldError,
    LogCorruptError,
    MemoryStore,
    RunExistsError,
    RunNotFoundError,
    SQLiteStore,
    StoreError,
    function_tool,
)
from agentor.cli.timeline import timeline, what_resume_would_do
from agentor.cli.working import in_short
from agentor.engine.events import Event
from agentor.engine.replay import is_complete, replay, verify
from agentor.engine.store import FileStore, fork_run
from agentor.plan import plan_from_log
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import STORES, ThreeMethods, types, without_times
from tests.engine.test_broken_copies import Died, Dying

STOP = "Stop: do not pay."
ASKED = [{"role": "user", "content": STOP}]


class Till:
    """An agent whose model pays, unless it is told something more, and says what it was asked last."""

    def __init__(self, store: Any, name: str = "A", **options: Any) -> None:
        self.paid: list[int] = []

        @function_tool(**({"effect": "idempotent"} | options))
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        self.model = ScriptedModel(_reply)
        self.agent = Agentor(name, model=self.model, tools=[pay], store=store, durability="strict")


def _reply(messages: list[dict[str, Any]]) -> Any:
    asked = [message["content"] for message in messages if message["role"] == "user"]
    if len(asked) == 1 and not any(message["role"] == "tool" for message in messages):
        return calls(("pay", {"amount": 40}))
    return says(f"Asked: {asked[-1]}")


WHOLE = Till(MemoryStore()).agent.run("Pay 40.").events
BEFORE_THE_CALL = 1  # events
CALLED = 3


def saved(store: Any, length: int = len(WHOLE)) -> Till:
    """A run `p` of which so many events are there."""
    for event in WHOLE[:length]:
        store.append("p", event)
    return Till(store)


def left(store: Any, length: int = len(WHOLE), name: str = "A") -> Till:
    """What an agent of that name leaves that dies, or loses the disk, when it has forked `p` as `f` to be told to stop."""
    till = saved(store, length)
    fork_run(store, "p", "f", messages=ASKED, agent=name)
    return till


@pytest.mark.parametrize("length", range(1, len(WHOLE) + 1))
def test_whoever_resumes_a_fork_after_a_crash_does_what_it_was_asked(
    store: Any, length: int
) -> None:
    till = left(store, length)
    resumed, whole = till.agent.resume("f"), Till(store).agent.fork("p", STOP, fork_id="whole")
    assert list(map(without_times, resumed.events)) == list(map(without_times, whole.events))
    assert resumed.final_output == f"Asked: {STOP}"
    for request in till.model.requests:
        assert ASKED[0] in request.messages
    assert verify(store.load("f")) == []


class Failing:
    """A store that fails one of its calls, after so many."""

    def __init__(self, store: Any, calls: int) -> None:
        self._store, self._left = store, calls

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb):
            return verb

        @functools.wraps(verb)
        def call(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                raise StoreError("disk I/O error")
            return verb(*args, **named)

        return call


@pytest.mark.parametrize("length", [BEFORE_THE_CALL, len(WHOLE)])
@pytest.mark.parametrize("kind", STORES)
def test_wherever_the_disk_fails_a_fork_is_not_there_or_does_what_it_was_asked(
    tmp_path: Path, kind: str, length: int
) -> None:
    for calls_made in range(20):
        (place := tmp_path / str(calls_made)).mkdir()
        store = STORES[kind](place)
        till = saved(store, length)
        with contextlib.suppress(StoreError):
            Till(Failing(store, calls_made)).agent.fork("p", STOP, fork_id="f")
        try:
            result = till.agent.resume("f")
        except (RunNotFoundError, LogCorruptError):  # it is no run yet
            result = till.agent.fork("p", STOP, fork_id="f")
        assert (result.status, result.final_output) == ("completed", f"Asked: {STOP}")
        assert till.paid == []


def test_no_tool_is_started_against_what_a_fork_was_told(store: Any) -> None:
    till = left(store, BEFORE_THE_CALL)
    assert till.agent.resume("f").status == "completed"
    assert till.paid == []


def test_a_fork_that_was_asked_something_is_not_done_although_its_parent_is(store: Any) -> None:
    till = left(store, name="What if")
    found = till.agent.result("f")
    assert (found.status, found.final_output, found.error) == ("unfinished", None, None)
    assert not is_complete(store.load("f"))
    assert replay(store.load("f")).agent == "What if"
    assert is_complete(store.load("p"))


def test_a_row_of_sqlite_says_unfinished_of_an_asked_fork_and_whose_it_is(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        left(store, name="What if")
        fork_run(store, "f", "again", at=len(WHOLE) + 1)
        fork_run(store, "p", "copy")
        rows = {row.run_id: row for row in store.runs()}
        for run_id in ("f", "again"):
            row = rows[run_id]
            assert (row.status, row.agent, row.ended_at) == ("unfinished", "What if", None)
        assert (rows["copy"].status, rows["copy"].agent) == ("completed", "A")
        store.rebuild_runs()
        assert {row.run_id: row for row in store.runs()} == rows


def test_the_end_of_a_file_says_unfinished_of_an_asked_fork(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    left(store)
    fork_run(store, "p", "copy")
    assert store.status_at_end("f") == "unfinished"
    assert store.status_at_end("copy") in (None, "completed")


def test_a_worker_answers_what_a_fork_was_asked_whose_maker_died(store: Any) -> None:
    till = left(store)
    report = till.agent.work(until_idle=True, poll_s=0.01)
    assert report.finished == {"f": "completed"}
    assert till.agent.result("f").final_output == f"Asked: {STOP}"


def test_workers_of_the_parents_name_leave_a_fork_by_another_agent_alone(store: Any) -> None:
    till = left(store, BEFORE_THE_CALL, name="What if")
    assert "f" not in till.agent.work(until_idle=True, poll_s=0.01).finished
    assert types(store.load("f")) == ["run_start", "fork"]


def test_a_fork_without_an_input_bears_the_name_of_whoever_goes_on_with_it(store: Any) -> None:
    saved(store, BEFORE_THE_CALL)
    fork = Till(store, "What if").agent.fork("p", fork_id="f")
    assert [e.agent for e in fork.events if e.type == "fork"] == ["What if"]
    copy = Till(store, "Another").agent.fork("f", fork_id="copy")
    assert copy.events[-1].agent is None  # nobody goes on with it
    earlier = Till(store, "Another").agent.fork("f", at=2, fork_id="earlier")
    assert earlier.events[2].agent == "Another"


@pytest.mark.parametrize("length", [BEFORE_THE_CALL, CALLED, len(WHOLE)])
def test_the_plan_tells_that_the_fork_was_asked_something(store: Any, length: int) -> None:
    till = left(store, length)
    plan = till.agent.plan("f")
    assert (plan.asked, plan.ask_model, plan.writes_end) == (True, True, False)
    assert "  add what the fork was asked\n  ask the model" in str(plan)
    assert "add what the fork was asked, ask the model" in in_short(plan)
    events = store.load("f")
    assert plan_from_log("f", replay(events), events) == plan
    assert not till.agent.plan("p").asked


def test_the_timeline_shows_what_an_asked_fork_waits_to_be_told() -> None:
    store = MemoryStore()
    till = left(store)
    events = store.load("f")
    assert [(line.label, line.text) for line in timeline(events)][-1] == ("user", STOP)
    told = what_resume_would_do(replay(events))
    assert told == "asks the model what the fork was asked; no tool runs again"
    lines = [line.text for line in timeline(till.agent.resume("f").events)]
    assert lines.count(STOP) == 1  # told where it was told


def test_a_fork_of_a_fork_is_asked_what_that_was_asked_too(store: Any) -> None:
    till = left(store)
    assert till.agent.fork("f", fork_id="same").final_output == f"Asked: {STOP}"
    more = till.agent.fork("f", "And then?", fork_id="more")
    said = [m["content"] for m in more.messages if m["role"] == "user"]
    assert said == ["Pay 40.", STOP, "And then?"]
    earlier = till.agent.fork("f", at=len(WHOLE), fork_id="earlier")
    assert earlier.final_output == "Asked: Pay 40."  # from before it was asked


def test_what_a_fork_of_a_waiting_run_is_asked_is_told_after_the_persons_decision(
    store: Any,
) -> None:
    till = Till(store, needs_approval=True)
    assert till.agent.run("Pay 40.", run_id="p").status == "paused"
    fork_run(store, "p", "f", messages=ASKED, agent="A")
    assert till.agent.plan("f").waiting == ("call_1",)
    assert till.agent.resume("f").status == "paused"
    till.agent.reject("f", "call_1", reason="no")
    done = till.agent.resume("f")
    assert done.final_output == f"Asked: {STOP}"
    assert [m["role"] for m in done.messages] == ["user", "assistant", "tool", "user", "assistant"]


def test_a_fork_cancelled_before_it_was_told_is_told_when_somebody_resumes_it(store: Any) -> None:
    till = left(store)
    assert till.agent.cancel("f")
    assert till.agent.result("f").status == "cancelled"
    assert till.agent.resume("f").final_output == f"Asked: {STOP}"


def test_the_instructions_of_the_agent_come_with_what_the_fork_was_asked(store: Any) -> None:
    left(store)
    kind = Agentor("A", "Be kind.", model=ScriptedModel(_reply), store=store)
    assert kind.resume("f").messages[0]["content"] == "Be kind."


@pytest.mark.parametrize("copied", range(1, len(WHOLE) + 1))
def test_a_copy_broken_off_before_it_was_asked_is_no_run_whatever_its_tools_declare(
    copied: int,
) -> None:
    store = Dying()
    for event in Till(MemoryStore(), effect=None).agent.run("Pay 40.").events:
        store.append("p", event)
    till, store.left = Till(store, effect=None), copied
    with pytest.raises(Died):
        till.agent.fork("p", STOP, fork_id="f")
    store.left = 10**9
    with pytest.raises(LogCorruptError, match="with the input that it was made for"):
        till.agent.resume("f")
    assert till.agent.fork("p", STOP, fork_id="f").final_output == f"Asked: {STOP}"


class Watched(MemoryStore):
    """Tells who held the new run's id when the fork was made, and may fail then."""

    held = False
    failure: Exception | None = None

    def fork(
        self, src_run_id: str, dst_run_id: str, *, at: int | None = None, event: Event | None = None
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.held = self.holder(dst_run_id) is not None
        super().fork(src_run_id, dst_run_id, at=at, event=event)


def test_nobody_can_take_a_fork_before_the_one_who_makes_it() -> None:
    store = Watched()
    till = saved(store)
    till.agent.fork("p", STOP, fork_id="f")
    assert store.held
    assert store.holder("f") is None
    till.agent.fork("p", fork_id="copy")
    assert not store.held  # there is nothing to go on with


def test_a_fork_that_cannot_be_made_leaves_its_id_to_others() -> None:
    store = Watched()
    till, store.failure = saved(store), StoreError("disk I/O error")
    with pytest.raises(StoreError):
        till.agent.fork("p", STOP, fork_id="f")
    assert store.load("f") == []
    assert store.holder("f") is None


def test_a_fork_under_an_id_that_somebody_holds_is_refused_and_nothing_is_copied() -> None:
    store = MemoryStore()
    till = saved(store)
    lease = store.acquire("f", "somebody", 30.0)
    with pytest.raises(LeaseHeldError):
        till.agent.fork("p", STOP, fork_id="f")
    assert store.load("f") == []
    store.append_many("f", WHOLE[:1], lease)
    with pytest.raises(RunExistsError):
        till.agent.fork("p", STOP, fork_id="f")


def test_a_store_of_three_methods_holds_no_ids_and_forks_all_the_same() -> None:
    store = ThreeMethods()
    assert saved(store).agent.fork("p", STOP, fork_id="f").final_output == f"Asked: {STOP}"
    assert types(store.load("f")).count("fork") == 1


def test_the_plan_of_a_waiting_fork_tells_what_would_refuse_what_it_was_asked() -> None:
    store = MemoryStore()
    till = Till(store, needs_approval=True)
    till.agent.run("Pay 40.", run_id="p")
    fork_run(store, "p", "f", messages=ASKED)
    budget, tools = Budget(money=1.0, prices={"newer": (1.0, 1.0)}), list(till.agent.tools.values())
    newer = ScriptedModel(_reply, model="newer")
    pricing = Agentor("A", model=newer, tools=tools, store=store, budget=budget)
    assert pricing.plan("p").problems == ()  # it only waits
    (problem,) = pricing.plan("f").problems
    with pytest.raises(ConfigError) as refused:
        pricing.resume("f")
    assert problem in str(refused.value)
