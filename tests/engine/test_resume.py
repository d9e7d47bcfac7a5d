"""What resume does, by where the log ends. Run on every bundled store and on a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentor import Agentor, ConfigError, LogCorruptError, MemoryStore, RunNotFoundError
from agentor.engine.events import Event, Usage
from agentor.engine.replay import verify
from agentor.engine.store import is_complete, total_usage
from agentor.engine.store.protocol import Lease
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ANSWER, Tools, agent, scripted, types, without_times

WHOLE = [
    *("run_start", "generation", "tool_call", "tool_result"),
    *("generation", "tool_call", "tool_call", "tool_result", "tool_result"),
    *("generation", "message", "run_end"),
]


def whole_log() -> list[Event]:
    return agent().run("What is the weather?").events


def times(usage: Usage, count: int) -> Usage:
    return sum([usage] * count, Usage())


def prefix(store: Any, length: int, run_id: str = "r") -> list[Event]:
    events = whole_log()[:length]
    for event in events:
        store.append(run_id, event)
    return events


def test_a_run_writes_the_whole_story(store: Any) -> None:
    result = agent(store).run("What is the weather?")
    assert types(result.events) == WHOLE
    assert [without_times(e) for e in store.load(result.run_id)] == [
        without_times(e) for e in result.events
    ]
    assert store.list_runs() == [result.run_id]
    assert (result.final_output, result.status, result.error) == (ANSWER, "completed", None)
    assert result.usage == Usage(30, 15, 45)


@pytest.mark.parametrize("length", range(1, len(WHOLE) + 1))
def test_a_run_is_finished_from_every_point_its_log_can_end_at(store: Any, length: int) -> None:
    before = prefix(store, length)
    model, tools = scripted(), Tools()
    result = agent(store, model, tools).resume("r")

    assert (result.final_output, result.status) == (ANSWER, "completed")
    log = store.load("r")
    assert log[:length] == before
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert verify(log) == []
    assert is_complete(log)
    assert (
        result.usage == total_usage(log) == times(Usage(10, 5, 15), types(log).count("generation"))
    )
    assert len(model.requests) == types(log).count("generation") - types(before).count("generation")


@pytest.mark.parametrize("length", range(1, len(WHOLE) + 1))
def test_a_settled_batch_never_runs_again(store: Any, length: int) -> None:
    before = prefix(store, length)
    tools = Tools()
    agent(store, tools=tools).resume("r")
    if length >= 4:
        assert tools.ran["get_weather London"] == 0
    if types(before).count("tool_result") == 3:
        assert not tools.ran


@pytest.mark.parametrize("length", [10, 11])
def test_when_only_the_end_is_missing_it_is_written_without_asking_the_model(
    store: Any, length: int
) -> None:
    prefix(store, length)
    result = agent(store, ScriptedModel([])).resume("r")
    assert types(store.load("r")) == WHOLE
    assert result.final_output == ANSWER


def test_a_finished_run_is_returned_and_nothing_is_written_or_called(store: Any) -> None:
    first = agent(store).run("What is the weather?")
    tools = Tools()
    again = agent(store, ScriptedModel([]), tools).resume(first.run_id)
    assert again == first
    assert not tools.ran
    assert types(store.load(first.run_id)) == WHOLE


@pytest.mark.parametrize(
    ("length", "rewound"),
    [(2, ["call_1"]), (3, ["call_1"]), (6, ["call_2", "call_3"]), (8, ["call_2", "call_3"])],
)
def test_a_half_finished_batch_is_rewound_and_the_new_segment_names_its_calls(
    store: Any, length: int, rewound: list[str]
) -> None:
    prefix(store, length)
    model = scripted()
    result = agent(store, model).resume("r")
    start = result.events[length]
    assert (start.type, start.rewound, start.messages) == ("run_start", rewound, [])
    assert model.requests[0].messages == (result.events[length + 1].messages)


def test_tokens_of_a_rewound_turn_are_still_counted(store: Any) -> None:
    prefix(store, 3)
    assert agent(store).resume("r").usage == Usage(40, 20, 60)


def test_failures_before_a_crash_count_after_it(store: Any) -> None:
    failing = [calls(("pay", {"amount": n})) for n in (1, 2)] + [says("no")]
    events = agent(model=ScriptedModel(failing)).run("pay").events
    for event in events[:4]:  # one failure, then the process dies
        store.append("r", event)
    model = ScriptedModel(failing[1:])
    result = agent(store, model).resume("r")
    told = [event.result for event in result.events if event.type == "tool_result"]
    assert told[0] == "Error: RuntimeError: database unavailable"
    assert "no longer available" in told[1]
    offered = [tool["function"]["name"] for tool in model.requests[1].tools]
    assert offered == ["get_weather"]


def test_a_run_out_of_turns_goes_on_with_a_fresh_budget(store: Any) -> None:
    first = agent(store, max_turns=1).run("What is the weather?")
    assert (first.status, first.final_output) == ("max_turns", None)
    assert first.error == "Reached max_turns (1) without a final answer."
    tools = Tools()
    second = agent(store, tools=tools).resume(first.run_id, max_turns=2)
    assert (second.status, second.final_output) == ("completed", ANSWER)
    assert tools.ran["get_weather London"] == 0


def test_a_failed_run_goes_on_from_where_it_stood(store: Any) -> None:
    broken = ScriptedModel([calls(("get_weather", {"city": "London"})), ConnectionError("reset")])
    with pytest.raises(ConnectionError) as caught:
        agent(store, broken).run("What is the weather?")
    [run_id] = store.list_runs()
    assert run_id in caught.value.__notes__[0]
    end = store.load(run_id)[-1]
    assert (end.type, end.status, end.error) == ("run_end", "failed", "ConnectionError: reset")
    tools = Tools()
    assert agent(store, tools=tools).resume(run_id).final_output == ANSWER
    assert tools.ran["get_weather London"] == 0


def test_the_resumed_conversation_is_the_one_that_was_interrupted(store: Any) -> None:
    prefix(store, 9)
    model = scripted()
    agent(store, model).resume("r")
    whole = scripted()
    agent(model=whole).run("What is the weather?")
    assert model.requests[-1].messages == whole.requests[-1].messages


def test_an_unknown_run_is_a_key_error_that_names_it(store: Any) -> None:
    with pytest.raises(RunNotFoundError, match="nobody") as caught:
        agent(store).resume("nobody")
    assert isinstance(caught.value, KeyError)


def test_without_a_store_there_is_nothing_to_resume() -> None:
    with pytest.raises(ValueError, match="store"):
        agent().resume("r")
    with pytest.raises(ConfigError, match="store"):
        agent().fork("r")


@pytest.mark.parametrize("bad", ["", "../x", ".hidden", "a/b", "x" * 129, "a b", "ü", "a\n", None])
def test_a_bad_run_id_is_a_value_error_at_every_entry(store: Any, bad: Any) -> None:
    entries = [
        lambda a: a.resume(bad),
        lambda a: a.fork(bad),
        lambda a: a.fork("ok", fork_id=bad or " "),
        lambda a: a.run("hi", run_id=bad or " "),
    ]
    store.append("ok", whole_log()[0])
    for entry in entries:
        with pytest.raises(ValueError, match="run id"):
            entry(agent(store))


def test_a_log_that_says_nothing_of_the_conversation_is_not_replayed(store: Any) -> None:
    store.append("r", Event("tool_result", name="x", call_id="y", result="z"))
    with pytest.raises(LogCorruptError, match="'r'"):
        agent(store).resume("r")


def test_a_log_without_a_system_message_gets_the_agents_instructions(store: Any) -> None:
    bare = Agentor("Bare", model=scripted(), tools=Tools().functions())
    for event in bare.run("What is the weather?").events[:4]:
        store.append("r", event)
    model = scripted()
    agent(store, model).resume("r")
    roles = [message["role"] for message in model.requests[0].messages]
    assert roles == ["system", "user", "assistant", "tool"]
    assert verify(store.load("r")) == []


def test_an_event_of_an_unknown_type_is_kept_and_skipped(store: Any) -> None:
    events = whole_log()[:4]
    for event in [*events, Event("from_the_future", seq=5, extra={"x": 1})]:
        store.append("r", event)
    assert agent(store).resume("r").final_output == ANSWER
    assert store.load("r")[4].extra == {"x": 1}
    assert "unknown type" in verify(store.load("r"))[0]


class Meddled(MemoryStore):
    """Something happens to a run between the moment it is read and the moment its lease is given."""

    def __init__(self, meddle: Callable[[Meddled], None]) -> None:
        super().__init__()
        self._meddle = meddle
        self.loads = 0

    def load(self, run_id: str) -> list[Event]:
        self.loads += 1
        return super().load(run_id)

    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Lease:
        self._meddle(self)
        return super().acquire(run_id, owner, ttl_s)


def _add(store: Meddled) -> None:
    store.append("r", whole_log()[4])


def _make_anew(store: Meddled) -> None:
    store.delete("r")
    for event in agent().run("Another question").events[:4]:
        store.append("r", event)


def test_a_log_that_nobody_touched_is_read_once_for_a_resume() -> None:
    store = Meddled(lambda _: None)
    prefix(store, 4)
    assert agent(store).resume("r").final_output == ANSWER
    assert store.loads == 1


def test_what_is_added_to_a_log_before_the_lease_is_given_is_seen() -> None:
    store = Meddled(_add)
    prefix(store, 4)
    result = agent(store).resume("r")
    assert (result.final_output, verify(store.load("r"))) == (ANSWER, [])
    assert result.events == store.load("r")


def test_a_run_that_is_made_anew_before_the_lease_is_given_is_not_the_one_to_be_resumed() -> None:
    store = Meddled(_make_anew)
    prefix(store, 4)
    with pytest.raises(RunNotFoundError) as gone:
        agent(store).resume("r")
    assert gone.value.__notes__ == [
        "the run r that was meant was deleted; another may have its id by now"
    ]
    assert len(store.load("r")) == 4
    assert store.holder("r") is None
