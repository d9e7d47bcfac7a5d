"""The loop: written before it is performed, performed side by side, told in the order asked."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, MemoryStore, ModelError, RunContext, function_tool
from agentor.engine.events import Event, Usage
from agentor.engine.responses import ModelResponse, ToolCall
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import Tools, agent, types


class Commits(MemoryStore):
    """A memory store that keeps what was committed together."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[list[str]] = []

    def append_many(self, run_id: str, events: Sequence[Event], lease: Any = None) -> None:
        super().append_many(run_id, events, lease)
        self.commits.append(types(list(events)))


def stored_types(store: Any) -> list[str]:
    [run_id] = store.list_runs()
    return types(store.load(run_id))


def results(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type == "tool_result"]


def test_a_turn_with_one_tool_costs_two_commits_and_an_answer_one() -> None:
    store = Commits()
    script = [calls(("get_weather", {"city": c})) for c in ("London", "Paris")] + [says("Sunny.")]
    agent(store, ScriptedModel(script)).run("Weather?")
    assert store.commits == [
        ["run_start"],
        ["generation", "tool_call"],
        ["tool_result"],
        ["generation", "tool_call"],
        ["tool_result"],
        ["generation", "message", "run_end"],
    ]


def test_a_tool_starts_only_after_its_call_is_in_the_log() -> None:
    store = MemoryStore()
    seen = []

    def look() -> str:
        """Look at the log."""
        seen.append(stored_types(store))
        return "ok"

    Agentor(
        "A", model=ScriptedModel([calls(("look", {})), says("done")]), tools=[look], store=store
    ).run("go")
    assert seen == [["run_start", "generation", "tool_call"]]


def test_the_model_is_asked_only_after_the_start_is_in_the_log() -> None:
    store = MemoryStore()
    seen = []

    def answer(messages: Any) -> str:
        seen.append(stored_types(store))
        return "done"

    Agentor("A", model=ScriptedModel(answer), store=store).run("go")
    assert seen == [["run_start"]]


async def test_calls_run_side_by_side_results_are_recorded_as_they_arrive_and_told_as_asked() -> (
    None
):
    store = MemoryStore()
    first_may_end, second_recorded = asyncio.Event(), asyncio.Event()

    @function_tool
    async def first() -> str:
        """Ends last."""
        await first_may_end.wait()
        return "one"

    @function_tool
    async def second() -> str:
        """Ends first."""
        return "two"

    model = ScriptedModel([calls(("first", {}), ("second", {})), says("done")])
    a = Agentor("A", model=model, tools=[first, second], store=store)
    async for event in a.astream("go"):
        if event.type == "tool_result":
            if not first_may_end.is_set():
                assert event.result == "two"
                assert stored_types(store)[-1] == "tool_result"
                second_recorded.set()
            first_may_end.set()
    assert second_recorded.is_set()
    told = [m["content"] for m in model.requests[1].messages if m["role"] == "tool"]
    assert told == ["one", "two"]


async def test_results_that_arrive_together_share_a_commit() -> None:
    store = Commits()

    @function_tool
    async def quick() -> str:
        """At once."""
        return "ok"

    model = ScriptedModel([calls(*[("quick", {})] * 8), says("done")])
    await Agentor("A", model=model, tools=[quick], store=store).arun("go")
    assert sum(commit.count("tool_result") for commit in store.commits) == 8
    assert len(store.commits) < 8


def test_a_failing_tool_is_told_to_the_model_and_the_run_goes_on() -> None:
    result = agent(model=ScriptedModel([calls(("pay", {"amount": 1})), says("Cannot.")])).run("pay")
    [failed] = results(result.events)
    assert failed.error == "RuntimeError: database unavailable"
    assert failed.result == "Error: RuntimeError: database unavailable"
    assert result.final_output == "Cannot."


def test_a_tool_is_withdrawn_when_its_failures_are_used_up() -> None:
    model = ScriptedModel([calls(("pay", {"amount": 1}))] * 3 + [says("Cannot.")])
    tools = Tools()
    result = agent(model=model, tools=tools).run("pay")
    first, second, third = results(result.events)
    assert "no longer available" not in str(first.result)
    assert "failed 2 times and is no longer available" in str(second.result)
    assert third.error == "tool disabled"
    assert tools.ran["pay 1"] == 2
    offered = [[t["function"]["name"] for t in request.tools] for request in model.requests]
    assert offered == [["get_weather", "pay"]] * 2 + [["get_weather"]] * 2


def test_each_failing_call_of_a_parallel_batch_counts() -> None:
    model = ScriptedModel([calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), says("Cannot.")])
    agent(model=model).run("pay")
    assert [t["function"]["name"] for t in model.requests[1].tools] == ["get_weather"]


def test_max_tool_failures_is_a_setting() -> None:
    model = ScriptedModel([calls(("pay", {"amount": 1}))] * 4 + [says("Cannot.")])
    tools = Tools()
    agent(model=model, tools=tools, max_tool_failures=3).run("pay")
    assert tools.ran["pay 1"] == 3


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("nope", {}), "unknown tool 'nope'"),
        (("", {}), "unknown tool ''"),
        (("get_weather", '{"city": '), "InvalidArgumentsError: the arguments are not valid JSON"),
        (
            ("get_weather", "[]"),
            "InvalidArgumentsError: the arguments must be a JSON object, not an array",
        ),
        (("get_weather", '{"city": "a", "city": "b"}'), "name 'city' twice"),
        (("get_weather", {}), "city"),
        (("get_weather", ""), "city"),
        (("get_weather", {"city": ["a"]}), "city"),
    ],
)
def test_a_call_that_cannot_be_run_is_told_why_and_the_tool_is_not_run(
    call: tuple[str, Any], error: str
) -> None:
    tools = Tools()
    model = ScriptedModel([calls(call), says("Sorry.")])
    result = agent(model=model, tools=tools).run("go")
    [refused] = results(result.events)
    assert error in str(refused.error)
    assert str(refused.result).startswith("Error: ")
    assert not tools.ran
    assert result.final_output == "Sorry."


def test_calls_of_a_reply_that_was_cut_off_do_not_run() -> None:
    tools = Tools()
    cut = calls(("get_weather", {"city": "Lon"}), finish_reason="length")
    result = agent(model=ScriptedModel([cut, says("Sorry.")]), tools=tools).run("go")
    [refused] = results(result.events)
    assert refused.error == "cut off (length)"
    assert "send it again" in str(refused.result)
    assert not tools.ran


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_an_answer_that_was_cut_off_is_a_failure_that_keeps_the_part(reason: str) -> None:
    store = MemoryStore()
    with pytest.raises(ModelError, match="cut off") as caught:
        agent(store, ScriptedModel([says("The weather is", finish_reason=reason)])).run("go")
    assert "The weather is" in str(caught.value)
    [run_id] = store.list_runs()
    assert types(store.load(run_id)) == ["run_start", "generation", "run_end"]
    again = ScriptedModel([says("Sunny.")])
    assert agent(store, again).resume(run_id).final_output == "Sunny."
    assert [m["role"] for m in again.requests[0].messages] == ["system", "user"]


def test_a_refusal_is_a_failure_with_the_models_words() -> None:
    with pytest.raises(ModelError, match="I must not"):
        agent(model=ScriptedModel([says(None, refusal="I must not.")])).run("go")


def test_calls_decide_whatever_the_finish_reason_says() -> None:
    tools = Tools()
    odd = calls(("get_weather", {"city": "London"}), finish_reason="stop")
    assert agent(model=ScriptedModel([odd, says("ok")]), tools=tools).run("go").final_output == "ok"
    assert tools.ran["get_weather London"] == 1


def test_an_empty_answer_is_asked_once_more_and_then_accepted() -> None:
    model = ScriptedModel([says(None), says("Here.")])
    assert agent(model=model).run("go").final_output == "Here."
    silent = agent(model=ScriptedModel([says(None), says("")])).run("go")
    assert (silent.status, silent.final_output) == ("completed", "")
    assert [m["role"] for m in silent.messages] == ["system", "user"]


def test_max_turns_is_a_status_not_an_exception() -> None:
    model = ScriptedModel([calls(("get_weather", {"city": "London"}))] * 3)
    result = agent(model=model, max_turns=3).run("go")
    assert (result.status, result.final_output) == ("max_turns", None)
    assert result.error == "Reached max_turns (3) without a final answer."
    assert str(result) == ""


def test_ids_that_a_model_doubles_or_leaves_out_are_made_unique() -> None:
    doubled = calls(*[("get_weather", {"city": c}, "same") for c in ("London", "Paris")])
    nameless = ModelResponse(tool_calls=[ToolCall("", "get_weather", '{"city": "Rome"}')])
    model = ScriptedModel([doubled, doubled, nameless, says("done")])
    result = agent(model=model).run("go")
    ids = [event.call_id for event in result.tool_calls]
    assert len(set(ids)) == 5
    assert "" not in ids
    cities = [event.result for event in results(result.events)]
    assert sorted(cities) == sorted(
        ["sunny in London", "sunny in Paris", "sunny in London", "sunny in Paris", "sunny in Rome"]
    )


def test_every_call_has_a_key_of_its_own_for_idempotency() -> None:
    keys = []

    @function_tool
    def pay(ctx: RunContext) -> str:
        """Pay."""
        keys.append((ctx.run_id, ctx.call_id, ctx.idempotency_key, ctx.context))
        return "ok"

    model = ScriptedModel([calls(("pay", {}), ("pay", {})), calls(("pay", {})), says("done")])
    result = Agentor("A", model=model, tools=[pay], store=MemoryStore(), context="mine").run("go")
    assert {key[0] for key in keys} == {result.run_id}
    assert {key[3] for key in keys} == {"mine"}
    assert len({key[1] for key in keys}) == len({key[2] for key in keys}) == 3


@pytest.mark.parametrize(
    "reply",
    [None, "text", ModelResponse(content=3), ModelResponse(extra={"x": object()})],  # type: ignore[arg-type]
)
def test_a_model_that_returns_nonsense_fails_the_run_with_a_clear_error(reply: Any) -> None:
    class Odd:
        async def complete(self, messages: Any, tools: Any = None) -> Any:
            return reply

    store = MemoryStore()
    with pytest.raises(ModelError, match=r"not a ModelResponse|cannot be recorded"):
        Agentor("A", model=Odd(), store=store).run("go")
    assert stored_types(store) == ["run_start", "run_end"]


def test_a_model_of_two_arguments_that_cannot_stream_does_both() -> None:
    class Plain:
        async def complete(self, messages: Any, tools: Any) -> ModelResponse:
            return ModelResponse(content="hello", usage=Usage(1, 1, 2))

    async def texts() -> list[str]:
        stream = Agentor("A", model=Plain()).astream("hi")
        return [str(event.text) async for event in stream if event.type == "text_delta"]

    assert Agentor("A", model=Plain()).run("hi").final_output == "hello"
    assert asyncio.run(texts()) == ["hello"]


def test_provider_fields_survive_the_log_and_go_back_to_the_model() -> None:
    store = MemoryStore()
    asked = calls(("get_weather", {"city": "London"}), reasoning_content="hm", reasoning="hm")
    model = ScriptedModel([asked, RuntimeError("down")])
    with pytest.raises(RuntimeError):
        agent(store, model).run("go")
    [run_id] = store.list_runs()
    again = ScriptedModel([says("done")])
    agent(store, again).resume(run_id)
    assert again.requests[0].messages[2]["reasoning_content"] == "hm"
    generation = store.load(run_id)[1]
    assert generation.reasoning == "hm"
    elsewhere = ScriptedModel([says("done")], model="another server")
    result = agent(store, elsewhere).fork(run_id, "And now?", at=6)
    assert "reasoning_content" not in elsewhere.requests[0].messages[2]
    assert result.final_output == "done"


def test_text_of_models_and_tools_is_made_valid_before_it_is_stored() -> None:
    @function_tool
    def odd() -> str:
        """Odd."""
        return "a\ud800b\x00c"

    model = ScriptedModel([calls(("odd", {}), text="x\udfffy"), says("\ud83d\ude00")])
    store = MemoryStore()
    result = Agentor("A", model=model, tools=[odd], store=store).run("h\udc00i")
    assert result.final_output == "😀"
    assert results(result.events)[0].result == "a�b\x00c"
    for event in store.load(result.run_id):
        event.to_json().encode()


class Strange(Exception):
    """An exception whose parts are not what one expects."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)
        self.args = (self.args, [self])  # holds itself

    @property
    def message(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "error",
    [
        Strange("a", "b"),
        UnicodeDecodeError("utf8", b"x", 0, 1, "reason"),
        KeyError("k"),
        TimeoutError(),
        ExceptionGroup("many", [ValueError("x")]),
    ],
)
def test_a_models_exception_reaches_the_caller_as_it_is(error: Exception) -> None:
    store = MemoryStore()
    with pytest.raises(type(error)) as caught:
        agent(store, ScriptedModel([error])).run("go")
    assert caught.value is error
    assert stored_types(store) == ["run_start", "run_end"]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        "many",
        3,
        {"input_tokens": 10**30, "output_tokens": -1},
        Usage(10**400, 1, 1),
        Usage(float("nan"), 1, 1),
    ],  # type: ignore[arg-type]
)
def test_counts_that_cannot_be_are_recorded_as_ones_that_can(store: Any, usage: Any) -> None:
    result = agent(store, ScriptedModel(lambda messages: ModelResponse("hi", usage=usage))).run(
        "go"
    )
    assert (result.final_output, result.unsaved) == ("hi", 0)
    assert 0 <= result.usage.input_tokens <= 2**53
    assert store.load(result.run_id)[-1].status == "completed"


COUNTS = st.integers(-3, 2**54) | st.booleans() | st.floats(allow_infinity=False) | st.none()


@given(st.builds(Usage, *[COUNTS] * 5))
def test_the_counts_of_a_usage_are_recorded_as_they_are_read_from_a_log(usage: Usage) -> None:
    result = agent(model=ScriptedModel([ModelResponse("hi", usage=usage)])).run("go")
    recorded = next(event.usage for event in result.events if event.type == "generation")
    assert repr(recorded) == repr(Usage.from_dict(dataclasses.asdict(usage)))


def test_calls_in_chat_form_are_understood() -> None:
    raw: Any = {
        "id": "x",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    model = ScriptedModel([ModelResponse(tool_calls=[raw]), says("done")])
    result = agent(model=model).run("go")
    assert [event.result for event in results(result.events)] == ["sunny in Rome"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "tool_call_id": "x", "content": "?"}],
        [{"role": "system", "content": "s"}],
        [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}],
        [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"},
            {"role": "tool", "tool_call_id": "x", "content": "?"},
        ],
        [{"role": "user", "content": "u", "n": 10**5000}],
        [{"role": "bard", "content": "u"}],
        ["text", {"role": "user", "content": "u"}],
        [],
        "",
        " \n",
        7,
        {"role": "user", "content": "u"},
    ],
)
def test_input_that_cannot_be_sent_is_refused_and_nothing_is_written(messages: Any) -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match=r".+"):
        agent(store, ScriptedModel([])).run(messages)
    assert store.list_runs() == []


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), BaseException("odd")])
def test_a_model_that_exits_or_cancels_is_a_failure_that_is_recorded_and_raised(
    store: Any, error: BaseException
) -> None:
    expected = ModelError if isinstance(error, asyncio.CancelledError) else type(error)
    with pytest.raises(expected):
        agent(store, ScriptedModel(lambda messages: error)).run("go")
    [run_id] = store.list_runs()
    end = store.load(run_id)[-1]
    assert (end.type, end.status) == ("run_end", "failed")
    assert agent(store, ScriptedModel(["done"])).resume(run_id).final_output == "done"


def test_a_stream_of_nonsense_is_a_model_error() -> None:
    class Odd:
        async def complete(self, messages: Any, tools: Any = None) -> Any: ...

        async def stream(self, messages: Any, tools: Any = None) -> Any:
            yield "text"

    class Worse(Odd):
        def stream(self, messages: Any, tools: Any = None) -> Any:
            return ["text"]

    async def read(model: Any) -> None:
        async for _ in Agentor("A", model=model).astream("hi"):
            pass

    for model in (Odd(), Worse()):
        with pytest.raises(ModelError, match=r"not a StreamChunk|not async"):
            asyncio.run(read(model))


def test_fallback_models_are_a_list() -> None:
    with pytest.raises(ValueError, match="list of models"):
        agent(model=ScriptedModel([])).run("hi", fallback_models="gpt")
