"""A save that fails: the run goes on and says so, or ends; order is kept and there is never a hole."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentor import (
    Agentor,
    FileStore,
    LeaseHeldError,
    LeaseLostError,
    LogCorruptError,
    MemoryStore,
    RunExistsError,
    SequenceConflictError,
    StoreError,
    function_tool,
)
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.engine.store import fork_run
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ANSWER, ThreeMethods, Tools, agent, types
from tests.engine.leases import force_takeover


class Failing(ThreeMethods):
    """A user's store whose disk is full for the writes named in `bad`, before or after it has written."""

    def __init__(self, bad: set[int], after: bool = False) -> None:
        super().__init__()
        self.bad, self.after, self.writes = bad, after, 0

    def append(self, run_id: str, event: Event) -> None:
        self.writes += 1
        if self.writes in self.bad and not self.after:
            raise OSError(28, "No space left on device")
        super().append(run_id, event)
        if self.writes in self.bad:
            raise OSError(5, "Input/output error")


@pytest.mark.parametrize("bad", [{1}, {3}, {2, 3, 4}, {1, 2, 3, 4, 5}])
def test_a_disk_that_is_full_for_a_while_loses_nothing(
    bad: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(bad)
    with caplog.at_level(logging.ERROR):
        result = agent(store).run("go")
    assert (result.final_output, result.unsaved) == (ANSWER, 0)
    assert store.load(result.run_id) == result.events
    assert "not saved" in caplog.text
    assert str(result.run_id) in caplog.text


def test_a_disk_that_stays_full_costs_the_record_but_not_the_answer() -> None:
    store = Failing(set(range(4, 1000)))
    result = agent(store).run("go")
    assert result.final_output == ANSWER
    assert result.unsaved == 12 - 3
    log = store.load(result.run_id)
    assert log == result.events[:3]
    assert agent(store).resume(result.run_id).final_output == ANSWER


@pytest.mark.parametrize("number", range(1, 13))
def test_a_save_that_fails_after_it_has_written_is_not_written_twice_in_the_conversation(
    number: int,
) -> None:
    store = Failing({number}, after=True)
    result = agent(store).run("go")
    assert result.final_output == ANSWER
    again = agent(store).resume(result.run_id)
    assert again.final_output == ANSWER
    assert again.usage == result.usage


class FailingTogether(Failing):
    """The same store, with a verb to write several events: some, or all, are written twice."""

    def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
        self.writes += 1
        for event in events:
            ThreeMethods.append(self, run_id, event)
        if self.writes in self.bad:
            raise OSError(5, "Input/output error")


class ForksWhatItHas(Failing):
    """The same store, with a verb to fork that copies the first so many of what it holds."""

    def fork(self, src_run_id: str, dst_run_id: str, at: int | None = None) -> None:
        self.runs[dst_run_id] = self.runs[src_run_id][:at]


@pytest.mark.parametrize("number", range(1, 13))
@pytest.mark.parametrize("kind", [Failing, FailingTogether, ForksWhatItHas])
def test_what_a_store_holds_twice_is_read_once_by_all_who_read_it(
    kind: type[Failing], number: int
) -> None:
    store, tools = kind({number}, after=True), Tools()
    result = agent(store, tools=tools).run("go", run_id="r")
    log, ran = agent(store).result("r").events, tools.ran.copy()
    assert log == result.events[: len(log)]
    assert len(store.load("r")) > len(log) or number > 5  # the last save is not tried again
    store.bad.clear()
    assert verify(store.load("r")) == []
    for at in (None, *range(1, len(log) + 1)):
        fork_id = fork_run(store, "r", f"at-{at}", at)
        *copied, last = store.load(fork_id)
        assert copied == log[:at]
        assert last.forked_at == last.seq - 1 == len(copied)
        assert verify(store.load(fork_id)) == []
    fork = agent(store, tools=tools).fork("r")
    assert (fork.final_output, fork.usage) == (ANSWER, result.usage)
    assert tools.ran == ran


def test_a_fork_of_a_log_that_two_have_written_is_refused() -> None:
    store = ThreeMethods()
    for event in (Event("run_start", messages=[], seq=1), Event("message", text="a", seq=2)):
        store.append("r", event)
    store.append("r", Event("message", text="b", seq=2))
    with pytest.raises(LogCorruptError, match="'r' is damaged at seq 3"):
        fork_run(store, "r", "fork")
    assert store.list_runs() == ["r"]


class FailsAfterWriting(MemoryStore):
    """A store that refuses doubled seqs, and once reports a failure although it has written."""

    failed = False

    def append_many(self, run_id: str, events: Any, lease: Any = None) -> None:
        super().append_many(run_id, events, lease)
        if len(self.load(run_id)) >= 3 and not self.failed:
            self.failed = True
            raise OSError(5, "Input/output error")


def test_a_failed_save_that_had_reached_the_disk_is_no_conflict() -> None:
    store = FailsAfterWriting()
    result = agent(store).run("go")
    assert (result.final_output, result.unsaved) == (ANSWER, 0)
    assert store.load(result.run_id) == result.events
    assert verify(store.load(result.run_id)) == []


@pytest.mark.parametrize("number", range(1, 13))
def test_strict_durability_ends_the_run_before_anything_follows(number: int) -> None:
    store, tools = Failing({number}), Tools()
    with pytest.raises(StoreError, match="could not be saved") as caught:
        agent(store, tools=tools, durability="strict").run("go", run_id="r")
    assert isinstance(caught.value.__cause__, OSError)
    assert len(store.load("r")) == number - 1
    if number <= 3:
        assert not tools.ran
    if number > 1:
        assert agent(store, durability="strict").resume("r").final_output == ANSWER


def test_a_rival_at_one_seq_ends_this_worker_before_its_tool_starts(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store that checks no seq cannot see a rival")
    tools = Tools()

    def rival(messages: Any) -> Any:
        """Somebody without a lease writes at the seq that is this worker's next."""
        _steal(store, "r")
        return calls(("get_weather", {"city": "London"}))

    with pytest.raises((SequenceConflictError, LeaseLostError)):
        agent(store, ScriptedModel(rival), tools).run("go", run_id="r")
    assert not tools.ran
    assert types(store.load("r"))[:2] == ["run_start", "run_start"]


def _steal(store: Any, run_id: str) -> None:
    """Write the next event as a worker does that has taken the run over."""
    seq = len(store.load(run_id)) + 1
    start = Event("run_start", kept=2, messages=[], seq=seq)
    if isinstance(
        store, FileStore
    ):  # its lock dies with its holder and cannot be taken: a careless hand, then
        with store.path(run_id).open("a") as file:
            file.write(start.to_json() + "\n")
    else:
        store.append_many(run_id, [start], force_takeover(store, run_id))


def test_two_workers_at_one_run_only_one_runs_the_tool(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    first, second = Tools(), Tools()
    refused: list[LeaseHeldError] = []

    def intrude(messages: Any) -> Any:
        other = ScriptedModel([])
        with pytest.raises(LeaseHeldError) as caught:
            agent(store, other, second).resume("r")
        refused.append(caught.value)
        assert other.requests == []
        return calls(("get_weather", {"city": "London"}))

    agent(store, ScriptedModel([intrude, says("done")]), first).run("go", run_id="r")
    assert (first.ran.total(), second.ran.total()) == (1, 0)
    assert refused[0].run_id == "r"
    assert refused[0].owner
    finished = agent(store, ScriptedModel([])).resume("r")  # the lease was let go
    assert finished.final_output == "done"


def test_an_id_that_is_taken_is_refused_and_nothing_is_written(store: Any) -> None:
    agent(store).run("go", run_id="r")
    before = store.load("r")
    for attempt in (
        lambda: agent(store).run("again", run_id="r"),
        lambda: agent(store).fork("r", "again", fork_id="r"),
    ):
        with pytest.raises(RunExistsError) as caught:
            attempt()
        assert isinstance(caught.value, ValueError)
    assert store.load("r") == before


@pytest.mark.parametrize(
    "options",
    [{"effect": "once"}, {"effect": "idempotent"}, {"needs_approval": lambda ctx, args: False}],
)
def test_a_tool_with_consequences_is_not_started_when_its_claim_is_not_saved(options: Any) -> None:
    ran = []

    @function_tool(**options)
    def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    store = Failing({2})
    mine = Agentor(
        "A",
        model=ScriptedModel.by_turn([calls(("pay", {})), says("done")]),
        tools=[pay],
        store=store,
    )
    with pytest.raises(StoreError, match="'pay' was not started"):
        mine.run("go", run_id="r")
    assert not ran
    assert mine.resume("r").final_output == "done"
    assert ran == [1]
