"""Agentor, call by call: run, resume, fork, with strings, lists of messages and lists of inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    FileStore,
    MemoryStore,
    RunExistsError,
    RunResult,
    SQLiteStore,
    function_tool,
)
from agentor.engine.events import Usage
from agentor.engine.models import ModelResponse, StreamChunk, ToolCall
from agentor.engine.store import final_event, is_complete, replay_messages, total_usage
from agentor.testing import FakeServer, ScriptedModel, calls, says
from tests.engine.agents import ANSWER, Tools, agent, scripted, without_times


def echo() -> ScriptedModel:
    return ScriptedModel(lambda messages: says(f"You said: {messages[-1]['content']}"))


# The model ------------------------------------------------------------------------------------------------------------


def test_the_default_model_is_gpt_5_nano() -> None:
    with FakeServer([says("Hi.")]) as server:
        Agentor("A", base_url=server.base_url, api_key="test").run("hi")
        assert server.requests[0].body["model"] == "gpt-5-nano"


def test_key_and_address_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer([says("Hi.")], api_key="from-env") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "from-env")
        assert str(Agentor("A").run("hi")) == "Hi."


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    with FakeServer([says("Hi.")], api_key="right") as server:
        assert str(Agentor("A", base_url=server.base_url, api_key="right").run("hi")) == "Hi."


def test_without_a_key_the_error_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        Agentor("A").run("hi")


def test_model_settings_go_into_the_request() -> None:
    from agentor import ModelSettings

    with FakeServer([says("Hi.")]) as server:
        settings = ModelSettings(temperature=0.2, max_tokens=50, seed=7)
        Agentor("A", base_url=server.base_url, api_key="k", model_settings=settings).run("hi")
        body = server.requests[0].body
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.2, 50, 7)


class OnlyComplete:
    """The least a model can be."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def complete(self, messages: Any, tools: Any = None) -> ModelResponse:
        self.asked.append((messages, tools))
        if messages[-1]["role"] == "tool":
            return ModelResponse(content=f"It is {messages[-1]['content']}.", usage=Usage(1, 1, 2))
        return ModelResponse(tool_calls=[ToolCall("c1", "add", '{"a": 2, "b": 3}')])


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_model_of_ones_own_needs_only_complete_with_two_arguments(store: Any) -> None:
    result = Agentor("A", model=OnlyComplete(), tools=[add], store=store).run("2 + 3?")  # type: ignore[arg-type]
    assert result.final_output == "It is 5."
    assert result.usage == Usage(1, 1, 2)


def test_a_model_without_stream_still_streams_as_one_chunk(store: Any) -> None:
    agent = Agentor("A", model=OnlyComplete(), tools=[add], store=store)  # type: ignore[arg-type]

    async def main() -> list[Any]:
        return [e async for e in agent.astream("2 + 3?")]

    events = asyncio.run(main())
    assert [e.text for e in events if e.type == "text_delta"] == ["It is 5."]
    assert events[-1].status == "completed"


def test_a_model_that_streams_with_two_arguments_is_streamed() -> None:
    class Streams(OnlyComplete):
        async def stream(self, messages: Any, tools: Any = None) -> Any:
            yield StreamChunk(delta="Hel")
            yield StreamChunk(delta="lo")
            yield StreamChunk(final=ModelResponse(content="Hello"))

    async def main() -> list[Any]:
        return [e async for e in Agentor("A", model=Streams()).astream("hi")]  # type: ignore[arg-type]

    events = asyncio.run(main())
    assert [e.text for e in events if e.type == "text_delta"] == ["Hel", "lo"]
    assert events[-1].text == "Hello"


@pytest.mark.parametrize("model", [None, 7, object(), ScriptedModel, ""])
def test_what_is_no_model_is_refused_at_once(model: Any) -> None:
    with pytest.raises(ConfigError, match="model"):
        Agentor("A", model=model)


@pytest.mark.parametrize("reply", [None, "text", {"content": "x"}])
def test_a_model_that_returns_something_else_fails_the_run_with_a_clear_error(reply: Any) -> None:
    class Wrong:
        async def complete(self, messages: Any, tools: Any = None) -> Any:
            return reply

    with pytest.raises(Exception, match="ModelResponse"):
        Agentor("A", model=Wrong()).run("hi")  # type: ignore[arg-type]


# The store ------------------------------------------------------------------------------------------------------------


def test_a_path_is_an_sqlite_file_and_a_directory_path_holds_files(tmp_path: Path) -> None:
    for path, kind in [("runs.db", SQLiteStore), ("runs/", FileStore)]:
        made = Agentor("A", model=echo(), store=f"{tmp_path}/{path}")
        assert isinstance(made.store, kind)
        made.run("hi", run_id="r")
        assert (tmp_path / path).exists()
        made.close()
    assert (tmp_path / "runs" / "r.jsonl").is_file()


def test_a_pathlib_path_is_a_path(tmp_path: Path) -> None:
    made = Agentor("A", model=echo(), store=tmp_path / "runs.db")
    assert isinstance(made.store, SQLiteStore)
    made.close()


@pytest.mark.parametrize("store", [7, object(), {}])
def test_what_is_no_store_is_refused_at_once(store: Any) -> None:
    with pytest.raises(ConfigError, match="store"):
        Agentor("A", model=echo(), store=store)


def test_without_a_store_there_is_no_run_id_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = Agentor("A", model=echo()).run("hi")
    assert (result.run_id, result.final_output) == (None, "You said: hi")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_empty_and_falsy_is_still_a_store() -> None:
    class Sized(MemoryStore):
        def __len__(self) -> int:
            return len(self.list_runs())

    result = Agentor("A", model=echo(), store=Sized()).run("hi")
    assert result.run_id is not None


# run ------------------------------------------------------------------------------------------------------------------


def test_a_chosen_run_id_is_the_id(store: Any) -> None:
    result = agent(store, echo()).run("hi", run_id="my-run.1_A")
    assert result.run_id == "my-run.1_A"
    assert store.list_runs() == ["my-run.1_A"]


def test_a_taken_run_id_is_a_value_error_and_nothing_is_written_or_asked(store: Any) -> None:
    agent(store, echo()).run("hi", run_id="r")
    before = store.load("r")
    model = ScriptedModel([])
    with pytest.raises(ValueError, match="'r'") as caught:
        agent(store, model).run("hi", run_id="r")
    assert isinstance(caught.value, RunExistsError)
    assert store.load("r") == before
    assert model.requests == []


@pytest.mark.parametrize("bad", ["", ".x", "a/b", "..", "a" * 129, "ü", "a\n", 7])
@pytest.mark.parametrize("kind", ["run", "astream", "stream_chat", "fork_id"])
def test_a_bad_run_id_is_a_value_error_at_every_way_in(store: Any, kind: str, bad: Any) -> None:
    made = agent(store, echo())

    async def read(stream: Any) -> None:
        async for _ in stream:
            pass

    if kind == "fork_id":
        made.run("hi", run_id="parent")
    runs = store.list_runs()
    ways: dict[str, Callable[[], Any]] = {
        "run": lambda: made.run("hi", run_id=bad),
        "fork_id": lambda: made.fork("parent", "more", fork_id=bad),
        "astream": lambda: asyncio.run(read(made.astream("hi", run_id=bad))),
        "stream_chat": lambda: asyncio.run(read(made.stream_chat("hi", run_id=bad))),
    }
    with pytest.raises(ValueError, match="run id"):
        ways[kind]()
    assert store.list_runs() == runs


def test_messages_of_a_result_plus_a_new_one_continue_the_conversation(store: Any) -> None:
    made = agent(store, scripted())
    first = made.run("What is the weather?")
    model = echo()
    second = agent(store, model).run([*first.messages, {"role": "user", "content": "And now?"}])
    assert second.final_output == "You said: And now?"
    assert model.requests[0].messages == [*first.messages, {"role": "user", "content": "And now?"}]
    assert [m["role"] for m in second.messages].count("system") == 1
    assert second.run_id != first.run_id


def test_messages_given_are_not_changed() -> None:
    given = [{"role": "user", "content": "hi"}]
    agent(model=echo()).run(given)
    assert given == [{"role": "user", "content": "hi"}]


def test_the_messages_of_a_result_are_the_callers_own() -> None:
    made = agent(model=echo())
    result = made.run("hi")
    result.messages.append({"role": "user", "content": "mine"})
    assert made.run("hi").messages[-1]["role"] == "assistant"


@pytest.mark.parametrize(
    "bad",
    ["", "  ", None, 7, [], {}, {"role": "user", "content": "x"}, [7], [{"content": "x"}],
     [{"role": "bard", "content": "x"}], [{"role": "user", "content": object()}],
     [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]],
)  # fmt: skip
def test_input_that_says_nothing_is_refused_before_anything_is_written(
    store: Any, bad: Any
) -> None:
    model = ScriptedModel([])
    with pytest.raises(ConfigError):
        agent(store, model).run(bad)
    assert (store.list_runs(), model.requests) == ([], [])


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "3"])
def test_a_turn_budget_is_a_whole_number_of_at_least_one(bad: Any) -> None:
    with pytest.raises(ConfigError, match="max_turns"):
        agent(model=echo()).run("hi", max_turns=bad)
    with pytest.raises(ConfigError, match="max_turns"):
        agent(model=echo(), max_turns=bad)
    with pytest.raises(ConfigError, match="max_tool_failures"):
        agent(model=echo(), max_tool_failures=bad)


def test_max_turns_is_no_exception() -> None:
    result = agent().run("What is the weather?", max_turns=2)
    assert (result.status, result.final_output) == ("max_turns", None)
    assert result.error == "Reached max_turns (2) without a final answer."
    assert str(result) == ""


def test_a_tool_withdrawn_after_two_failures_is_no_longer_offered(store: Any) -> None:
    script = [*(calls(("pay", {"amount": n})) for n in (1, 2, 3)), says("no")]
    model, tools = ScriptedModel(script), Tools()
    result = agent(store, model, tools).run("pay")
    assert sum(tools.ran.values()) == 2
    offered = [[t["function"]["name"] for t in r.tools or []] for r in model.requests]
    assert offered == [["get_weather", "pay"]] * 2 + [["get_weather"]] * 2
    errors = [e.error for e in result.events if e.type == "tool_result"]
    assert errors[:2] == ["RuntimeError: database unavailable"] * 2
    assert errors[2]
    assert result.status == "completed"


def test_max_tool_failures_says_after_how_many_a_tool_is_withdrawn() -> None:
    script = [*(calls(("pay", {"amount": n})) for n in range(4)), says("no")]
    tools = Tools()
    agent(model=ScriptedModel(script), tools=tools, max_tool_failures=3).run("pay")
    assert sum(tools.ran.values()) == 3


# Lists of inputs ------------------------------------------------------------------------------------------------------


class Crowd:
    """A model that knows how many ask it at the same time."""

    def __init__(self) -> None:
        self.active = 0
        self.most = 0

    async def complete(self, messages: Any, tools: Any = None) -> ModelResponse:
        self.active += 1
        self.most = max(self.most, self.active)
        for _ in range(20):
            await asyncio.sleep(0)
        self.active -= 1
        text = messages[-1]["content"]
        if "bad" in text:
            raise RuntimeError(f"cannot {text}")
        return ModelResponse(content=f"did {text}")


@pytest.mark.parametrize(("limit", "most"), [(None, 10), (1, 1), (3, 3), (50, 25)])
def test_a_list_of_inputs_runs_side_by_side_within_its_limit(limit: int | None, most: int) -> None:
    crowd = Crowd()
    made = Agentor("A", model=crowd)  # type: ignore[arg-type]
    options = {} if limit is None else {"limit_concurrency": limit}
    results = made.run([f"number {n}" for n in range(25)], **options)
    assert [str(result) for result in results] == [f"did number {n}" for n in range(25)]
    assert crowd.most == most


def test_a_list_of_inputs_gives_results_or_exceptions_in_order(store: Any) -> None:
    made = Agentor("A", model=Crowd(), store=store)  # type: ignore[arg-type]
    one, two, three = made.run(["one", "bad", "three"])
    assert (str(one), str(three)) == ("did one", "did three")
    assert isinstance(two, RuntimeError)
    assert any("run" in note for note in two.__notes__)
    assert len({one.run_id, three.run_id}) == 2
    assert len(store.list_runs()) == 3


@pytest.mark.parametrize("limit", [0, -1, True, 2.5])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit_concurrency"):
        Agentor("A", model=Crowd()).run(["a"], limit_concurrency=limit)  # type: ignore[arg-type]


def test_one_run_id_cannot_name_several_runs(store: Any) -> None:
    with pytest.raises(ValueError, match="run_id"):
        Agentor("A", model=Crowd(), store=store).run(["a", "b"], run_id="r")  # type: ignore[arg-type]
    assert store.list_runs() == []


def test_cancelling_a_batch_ends_all_of_its_runs() -> None:
    async def main() -> None:
        started: list[str] = []
        all_started = asyncio.Event()

        class Slow:
            async def complete(self, messages: Any, tools: Any = None) -> Any:
                started.append(messages[-1]["content"])
                if len(started) == 3:
                    all_started.set()
                await asyncio.Event().wait()

        batch = asyncio.create_task(Agentor("A", model=Slow()).arun(["a", "b", "c"]))  # type: ignore[arg-type]
        await all_started.wait()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# Failing --------------------------------------------------------------------------------------------------------------


def test_a_failure_reaches_the_caller_and_is_recorded_and_names_the_run(store: Any) -> None:
    class Down(Exception):
        pass

    with pytest.raises(Down) as caught:
        agent(store, ScriptedModel([Down("no power")])).run("hi", run_id="the-run")
    assert any("the-run" in note for note in caught.value.__notes__)
    end = final_event(store.load("the-run"))
    assert end is not None
    assert (end.status, end.error) == ("failed", "Down: no power")


# Fork -----------------------------------------------------------------------------------------------------------------


def test_a_fork_with_input_goes_on_although_the_parent_had_finished(store: Any) -> None:
    parent = agent(store, echo()).run("one")
    before = [e.to_json() for e in store.load(parent.run_id)]
    child = agent(store, echo()).fork(parent.run_id, "two")
    assert child.run_id not in (None, parent.run_id)
    assert child.final_output == "You said: two"
    assert [m["content"] for m in child.messages] == [
        *("You are kind.", "one", "You said: one", "two", "You said: two")
    ]
    assert [e.to_json() for e in store.load(parent.run_id)] == before
    assert child.usage == Usage(20, 10, 30)


def test_a_fork_with_a_list_of_messages_adds_them(store: Any) -> None:
    parent = agent(store, echo()).run("one")
    child = agent(store, echo()).fork(parent.run_id, [{"role": "user", "content": "two"}])
    assert child.final_output == "You said: two"


def test_a_fork_of_a_finished_run_without_input_is_a_copy_without_a_model_call(store: Any) -> None:
    parent = agent(store).run("What is the weather?")
    copy = agent(store, ScriptedModel([])).fork(parent.run_id)
    assert (copy.final_output, copy.status) == (parent.final_output, "completed")
    assert copy.messages == parent.messages
    assert copy.usage == parent.usage
    log = store.load(copy.run_id)
    assert [without_times(e) for e in log[:-1]] == [
        without_times(e) for e in store.load(parent.run_id)
    ]
    assert (log[-1].type, log[-1].forked_from) == ("fork", parent.run_id)
    assert is_complete(log)


@pytest.mark.parametrize("length", range(1, 13))
def test_an_unfinished_parent_is_finished_on_the_fork_and_stays_unfinished(
    store: Any, length: int
) -> None:
    events = agent().run("What is the weather?").events[:length]
    for event in events:
        store.append("r", event)
    child = agent(store).fork("r", fork_id="child")
    assert (child.final_output, child.status) == (ANSWER, "completed")
    assert store.load("r") == events
    log = store.load("child")
    assert [e.seq for e in log] == list(range(1, len(log) + 1))
    assert replay_messages(log) == child.messages
    assert total_usage(log) == child.usage


@pytest.mark.parametrize("length", range(1, 13))
def test_a_fork_with_input_is_legal_wherever_the_parent_ended(store: Any, length: int) -> None:
    for event in agent().run("What is the weather?").events[:length]:
        store.append("r", event)
    model = echo()
    child = agent(store, model).fork("r", "Never mind. Say hello.")
    assert child.final_output == "You said: Never mind. Say hello."
    assert len(model.requests) == 1


@pytest.mark.parametrize("at", range(1, 13))
def test_a_fork_may_branch_at_any_seq_and_goes_on_from_a_legal_point(store: Any, at: int) -> None:
    parent = agent(store).run("What is the weather?")
    tools = Tools()
    child = agent(store, echo(), tools).fork(parent.run_id, "Something else.", at=at)
    assert child.final_output == "You said: Something else."
    assert not tools.ran


@pytest.mark.parametrize("at", [0, -1, 13, 99, True, 1.5, "3"])
def test_a_fork_at_a_seq_that_is_not_there_is_refused_and_copies_nothing(
    store: Any, at: Any
) -> None:
    parent = agent(store).run("What is the weather?")
    with pytest.raises(ValueError, match="seq"):
        agent(store).fork(parent.run_id, "x", at=at)
    assert store.list_runs() == [parent.run_id]


def test_a_taken_fork_id_is_a_value_error_and_nothing_is_copied(store: Any) -> None:
    made = agent(store, echo())
    parent, other = made.run("one"), made.run("two")
    before = [e.to_json() for e in store.load(other.run_id)]
    with pytest.raises(ValueError, match=other.run_id):
        made.fork(parent.run_id, "three", fork_id=other.run_id)
    with pytest.raises(ValueError, match=parent.run_id):
        made.fork(parent.run_id, "three", fork_id=parent.run_id)
    assert [e.to_json() for e in store.load(other.run_id)] == before
    assert len(store.list_runs()) == 2


@pytest.mark.parametrize("empty", [[], "", "  "])
def test_a_fork_with_empty_input_is_refused_and_copies_nothing(store: Any, empty: Any) -> None:
    parent = agent(store, echo()).run("one")
    with pytest.raises(ValueError, match="empty"):
        agent(store, echo()).fork(parent.run_id, empty)
    assert store.list_runs() == [parent.run_id]


def test_a_fork_of_an_unknown_parent_is_a_key_error_and_makes_nothing(store: Any) -> None:
    with pytest.raises(KeyError, match="nobody"):
        agent(store, echo()).fork("nobody", "hi", fork_id="child")
    assert store.list_runs() == []


def test_a_fork_keeps_the_system_message_of_its_parent(store: Any) -> None:
    parent = agent(store, echo()).run("one")
    other = Agentor("Other", "You are stern.", model=echo(), store=store)
    child = other.fork(parent.run_id, "two")
    systems = [m["content"] for m in child.messages if m["role"] == "system"]
    assert systems == ["You are kind."]


def test_a_parent_without_a_system_message_gets_the_forking_agents_instructions(
    store: Any,
) -> None:
    parent = Agentor("Bare", model=echo(), store=store).run("one")
    child = agent(store, echo()).fork(parent.run_id, "two")
    assert child.messages[0] == {"role": "system", "content": "You are kind."}
    assert [m["role"] for m in child.messages].count("system") == 1
    assert child.usage == Usage(20, 10, 30)


def test_a_failure_while_a_fork_goes_on_names_the_fork_which_can_be_resumed(store: Any) -> None:
    parent = agent(store, echo()).run("one")
    with pytest.raises(ConnectionError) as caught:
        agent(store, ScriptedModel([ConnectionError("x")])).fork(parent.run_id, "two")
    [fork_id] = set(store.list_runs()) - {parent.run_id}
    assert any(fork_id in note for note in caught.value.__notes__)
    assert agent(store, echo()).resume(fork_id).final_output == "You said: two"


def test_a_fork_of_a_fork_has_the_whole_story(store: Any) -> None:
    made = agent(store, echo())
    first = made.run("one")
    second = made.fork(first.run_id, "two")
    third = made.fork(second.run_id, "three")
    assert [m["content"] for m in third.messages if m["role"] == "user"] == ["one", "two", "three"]
    assert [e.forked_from for e in third.events if e.type == "fork"] == [
        *(first.run_id, second.run_id)
    ]
    assert third.usage == Usage(30, 15, 45)


def test_max_turns_of_a_fork_is_for_its_continuation_only(store: Any) -> None:
    parent = agent(store).run("What is the weather?")
    child = agent(store, echo()).fork(parent.run_id, "more", max_turns=1)
    assert child.status == "completed"


def test_the_async_calls_do_what_the_sync_ones_do(store: Any) -> None:
    async def main() -> tuple[RunResult, RunResult, RunResult]:
        made = agent(store, echo())
        run = await made.arun("one")
        return run, await made.aresume(run.run_id), await made.afork(run.run_id, "two")

    run, resumed, forked = asyncio.run(main())
    assert resumed == run
    assert forked.final_output == "You said: two"


def test_a_user_store_with_a_fork_of_its_own_is_asked_for_it() -> None:
    from tests.engine.agents import ThreeMethods

    class Four(ThreeMethods):
        def __init__(self) -> None:
            super().__init__()
            self.forked: list[tuple[str, str]] = []

        def fork(self, src_run_id: str, dst_run_id: str) -> None:
            if dst_run_id in self.runs:
                raise ValueError("taken")
            self.forked.append((src_run_id, dst_run_id))
            self.runs[dst_run_id] = list(self.runs[src_run_id])

    store = Four()
    parent = agent(store, echo()).run("one")
    child = agent(store, echo()).fork(parent.run_id, "two", fork_id="child")
    assert store.forked == [(parent.run_id, "child")]
    assert child.final_output == "You said: two"
