"""Tools as their author meets them: declared, described, validated, run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from agentor import Agentor, ConfigError, RunContext, RunResult, Tool, function_tool
from agentor.engine.models import ModelResponse, ToolCall
from agentor.testing import FakeServer, ScriptedModel, calls, says


class Address(BaseModel):
    street: str
    number: int


def use(tool: Any, *arguments: Any, **settings: Any) -> RunResult:
    """A run in which the model calls the tool once for each of the arguments, in one batch."""
    name = tool.name if isinstance(tool, Tool) else tool.__name__
    asked = calls(*((name, given) for given in arguments))
    model = ScriptedModel([asked, says("done")])
    result: RunResult = Agentor("A", model=model, tools=[tool], **settings).run("go")
    return result


def told(result: RunResult) -> list[Any]:
    return [event for event in result.events if event.type == "tool_result"]


GOOGLE = """Find a thing.

Args:
    city: The city to look in.
    limit: How many at most.
"""
NUMPY = """Find a thing.

Parameters
----------
city : str
    The city to look in.
limit : int
    How many at most.
"""
REST = """Find a thing.

:param city: The city to look in.
:param limit: How many at most.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_docstrings_of_three_styles_describe_tool_and_parameters(text: str) -> None:
    def find(city: str, limit: int = 3) -> str:
        return city

    find.__doc__ = text
    function = function_tool(find).to_openai()["function"]
    assert function["description"] == "Find a thing."
    properties = function["parameters"]["properties"]
    assert properties["city"]["description"] == "The city to look in."
    assert properties["limit"]["description"].startswith("How many at most.")
    assert function["parameters"]["required"] == ["city"]


def test_the_decorator_works_bare_with_options_and_on_async_functions() -> None:
    @function_tool
    def one(a: int) -> int:
        """One."""
        return a

    @function_tool(name_override="deux", description_override="Deux.")
    def two(a: int) -> int:
        """Two."""
        return a

    @function_tool
    async def three(a: int) -> int:
        """Three."""
        return a

    assert [(t.name, t.description) for t in (one, two, three)] == [
        *(("one", "One."), ("deux", "Deux."), ("three", "Three.")),
    ]
    for tool in (one, two, three):
        assert told(use(tool, {"a": 4}))[0].result == "4"


def test_a_plain_function_in_the_list_of_tools_is_a_tool() -> None:
    def double(a: int) -> int:
        """Double."""
        return 2 * a

    assert told(use(double, {"a": 4}))[0].result == "8"


def test_arguments_are_coerced_to_the_annotated_types_before_the_call() -> None:
    seen: list[Any] = []

    @function_tool
    def move(count: int, to: Address, ratio: float = 1.0, tags: list[str] | None = None) -> str:
        """Move."""
        seen.append((count, to, ratio, tags))
        return "moved"

    use(move, {"count": "7", "to": {"street": "Elm", "number": "3"}, "ratio": 2, "tags": ["a"]})
    assert seen == [(7, Address(street="Elm", number=3), 2.0, ["a"])]
    assert isinstance(seen[0][1], Address)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"count": "many", "to": {"street": "Elm", "number": 3}}, "count"),
        ({"count": 1, "to": {"street": "Elm", "number": "x"}}, "number"),
        ({"count": 1}, "to"),
    ],
)
def test_a_wrong_value_goes_back_to_the_model_as_an_error_that_names_the_field(
    arguments: Any, field: str
) -> None:
    ran: list[int] = []

    @function_tool
    def move(count: int, to: Address) -> str:
        """Move."""
        ran.append(count)
        return "moved"

    result = use(move, arguments)
    [event] = told(result)
    assert event.error
    assert field in event.result
    assert ran == []
    assert result.final_output == "done"


@pytest.mark.parametrize("arguments", ["not json", "[1]", '{"a": 1, "a": 2}', '{"a": NaN}'])
def test_arguments_that_are_no_object_never_reach_the_tool(arguments: str) -> None:
    ran: list[int] = []

    @function_tool
    def one(a: int) -> str:
        """One."""
        ran.append(a)
        return "ran"

    with FakeServer([calls(("one", arguments)), says("done")]) as server:
        made = Agentor("A", base_url=server.base_url, api_key="test", tools=[one])
        [event] = told(made.run("go"))
    assert event.error
    assert ran == []


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_nothing_is_an_empty_object_for_a_tool_without_parameters(arguments: Any) -> None:
    @function_tool
    def now() -> str:
        """Now."""
        return "noon"

    asked = ModelResponse(tool_calls=[ToolCall("c1", "now", arguments)])
    model = ScriptedModel([asked, says("done")])
    assert told(Agentor("A", model=model, tools=[now]).run("go"))[0].result == "noon"


def test_the_context_is_given_and_not_in_the_schema(store: Any) -> None:
    seen: list[RunContext] = []

    @function_tool
    def who(ctx: RunContext, greeting: str) -> str:
        """Who."""
        seen.append(ctx)
        return greeting

    assert list(who.to_openai()["function"]["parameters"]["properties"]) == ["greeting"]
    deps = object()
    result = use(who, {"greeting": "a"}, {"greeting": "b"}, store=store, context=deps)
    asked = [call.call_id for call in result.tool_calls]
    assert all(ctx.context is deps for ctx in seen)
    assert {ctx.run_id for ctx in seen} == {result.run_id}
    assert sorted(str(ctx.call_id) for ctx in seen) == sorted(map(str, asked))
    assert len({ctx.idempotency_key for ctx in seen}) == 2


def test_a_run_without_a_store_has_no_run_id_in_its_context() -> None:
    """`run_id` is what could be resumed: None where nothing can."""
    seen: list[RunContext] = []

    @function_tool
    def who(ctx: RunContext) -> str:
        """Who."""
        seen.append(ctx)
        return ""

    use(who, {})
    assert seen[0].run_id is None


def _var_positional(*args: int) -> str:
    """Bad."""
    return ""


def _positional_only(a: int, /) -> str:
    """Bad."""
    return ""


def _unresolved(a: NoSuchType) -> str:  # type: ignore[name-defined] # noqa: F821
    """Bad."""
    return ""


@pytest.mark.parametrize(
    ("bad", "parameter"),
    [(_var_positional, "args"), (_positional_only, "a"), (_unresolved, "NoSuchType")],
)
def test_a_bad_tool_is_refused_when_it_is_declared_naming_function_and_parameter(
    bad: Callable[..., Any], parameter: str
) -> None:
    with pytest.raises(ConfigError, match=bad.__name__) as caught:
        function_tool(bad)
    assert parameter in str(caught.value)


def test_two_tools_of_one_name_are_refused() -> None:
    def one() -> str:
        """One."""
        return ""

    with pytest.raises(ConfigError, match="one"):
        Agentor("A", model=ScriptedModel([]), tools=[one, function_tool(one)])


def test_sync_tools_run_in_threads_with_the_callers_context_and_do_not_block_the_loop() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    entered, release = threading.Event(), threading.Event()
    seen: list[Any] = []

    @function_tool
    def block() -> str:
        """Block."""
        seen.append((user.get(), threading.current_thread() is threading.main_thread()))
        entered.set()
        assert release.wait(20)
        return "ok"

    async def main() -> str:
        user.set("ada")
        model = ScriptedModel([calls(("block", {})), says("done")])
        run = asyncio.create_task(Agentor("A", model=model, tools=[block]).arun("go"))
        await asyncio.to_thread(entered.wait)  # the loop turns although the tool does not return
        release.set()
        return str(await run)

    assert asyncio.run(main()) == "done"
    assert seen == [("ada", False)]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_calls_of_one_batch_run_side_by_side_and_are_told_in_the_order_asked(kind: str) -> None:
    barrier = threading.Barrier(3)
    meeting: list[int] = []
    all_there = asyncio.Event()

    @function_tool(name_override="meet")
    def meet_in_threads(number: int) -> str:
        """Meet."""
        barrier.wait(20)
        return str(number)

    @function_tool(name_override="meet")
    async def meet_on_the_loop(number: int) -> str:
        """Meet."""
        meeting.append(number)
        if len(meeting) == 3:
            all_there.set()
        await all_there.wait()
        return str(number)

    tool = meet_in_threads if kind == "sync" else meet_on_the_loop
    result = use(tool, {"number": 1}, {"number": 2}, {"number": 3})
    order = [m["content"] for m in result.messages if m["role"] == "tool"]
    assert order == ["1", "2", "3"]


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("x")]
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_whatever_a_tool_raises_is_a_failure_of_the_tool(error: BaseException, kind: str) -> None:
    @function_tool(name_override="fail")
    def fail() -> str:
        """Fail."""
        raise error

    @function_tool(name_override="fail")
    async def fail_async() -> str:
        """Fail."""
        raise error

    result = use(fail if kind == "sync" else fail_async, {})
    [event] = told(result)
    assert type(error).__name__ in event.error
    assert result.final_output == "done"


def test_every_field_of_a_tool_goes_over_the_wire() -> None:
    @function_tool
    def find(city: str) -> str:
        """Find.

        Args:
            city: The city.
        """
        return city

    with FakeServer([says("x")]) as server:
        Agentor("A", base_url=server.base_url, api_key="k", tools=[find]).run("hi")
        assert server.requests[0].tools == [find.to_openai()]


def test_a_decorated_function_can_still_be_called() -> None:
    @function_tool
    def double(a: int) -> int:
        """Double."""
        return 2 * a

    assert double(4) == 8
