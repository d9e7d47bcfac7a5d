"""What may be a tool, what it is called, and how one that cannot work is refused when it is declared."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import sys
import textwrap
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel

from agentor.engine.tools import (
    InvalidArgumentsError,
    RunContext,
    Tool,
    as_tool,
    check_tools,
    function_tool,
)
from agentor.errors import ConfigError

if TYPE_CHECKING:
    from collections import OrderedDict


def call(tool: Tool, context: Any = None, /, **args: Any) -> str:
    return asyncio.run(tool.call(args, context))


def shown(tool: Tool) -> list[str]:
    return list(tool.parameters["properties"])


# Kinds of callables ------------------------------------------------------------------------------------------------


def lookup(city: str, days: int = 1, key: str = "") -> str:
    """Look the weather up.

    Args:
        city: The city.
        days: How many.
    """
    return f"{city} {days} {key}"


class Service:
    """A service of the weather."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, city: str) -> str:
        """Find it."""
        return f"{self.name} {city}"

    @function_tool
    def decorated(self, city: str, ctx: RunContext) -> str:
        """Find it, decorated."""
        return f"{self.name} {city} {ctx.context}"

    @function_tool
    async def later(self, city: str) -> str:
        return f"{self.name} later {city}"

    @staticmethod
    def fixed(city: str) -> str:
        return city

    @classmethod
    def made(cls, city: str) -> str:
        return f"{cls.__name__} {city}"

    def __call__(self, city: str) -> str:
        return f"called {self.name} {city}"


class AsyncService:
    async def __call__(self, city: str) -> str:
        """Ask later."""
        return f"later {city}"


def test_a_sync_function_is_a_tool() -> None:
    tool = function_tool(lookup)
    assert (tool.name, tool.description) == ("lookup", "Look the weather up.")
    assert tool.parameters["properties"]["city"]["description"] == "The city."
    assert call(tool, city="Oslo", days="2") == "Oslo 2 "


def test_an_async_function_is_a_tool() -> None:
    @function_tool
    async def find(city: str) -> str:
        await asyncio.sleep(0)
        return city

    assert call(find, city="Oslo") == "Oslo"


def test_a_sync_function_that_returns_an_awaitable_is_awaited() -> None:
    async def inner(city: str) -> str:
        return f"inner {city}"

    assert (
        call(function_tool(lambda city: inner(city), name_override="f"), city="Oslo")
        == "inner Oslo"
    )


def test_bound_methods_are_tools_without_their_self() -> None:
    for method, told in [
        (Service("s").find, "s Oslo"),
        (Service.made, "Service Oslo"),
        (Service.fixed, "Oslo"),
    ]:
        tool = as_tool(method)
        assert shown(tool) == ["city"]
        assert call(tool, city="Oslo") == told


def test_a_decorated_method_is_a_tool_of_each_object() -> None:
    one, two = Service("one"), Service("two")
    assert [tool.name for tool in (one.decorated, two.later)] == ["decorated", "later"]
    assert shown(one.decorated) == ["city"]
    assert call(one.decorated, "x", city="Oslo") == "one Oslo x"
    assert call(two.decorated, "x", city="Oslo") == "two Oslo x"
    assert call(two.later, city="Oslo") == "two later Oslo"


def test_a_decorated_method_without_an_object_is_refused_where_it_is_used() -> None:
    with pytest.raises(ConfigError, match=r"'decorated' is a method .*obj\.decorated"):
        check_tools([Service.decorated])


def test_callable_objects_are_tools_named_after_their_class() -> None:
    tool = function_tool(Service("s"))
    assert (tool.name, tool.description) == ("Service", "A service of the weather.")
    assert call(tool, city="Oslo") == "called s Oslo"
    later = function_tool(AsyncService(), name_override="ask")
    assert (later.name, later.description) == ("ask", "Ask later.")
    assert call(later, city="Oslo") == "later Oslo"


def test_what_a_partial_has_bound_is_not_the_models_to_choose() -> None:
    tool = function_tool(functools.partial(lookup, key="secret"))
    assert (tool.name, tool.description) == ("lookup", "Look the weather up.")
    assert shown(tool) == ["city", "days"]
    assert call(tool, city="Oslo", key="mine") == "Oslo 1 secret"
    assert call(function_tool(functools.partial(lookup, "Rome")), days=3) == "Rome 3 "


def test_a_partial_of_an_async_function_is_a_tool() -> None:
    async def find(city: str, days: int) -> str:
        return f"{city} {days}"

    assert call(function_tool(functools.partial(find, days=2)), city="Oslo") == "Oslo 2"


def test_decorators_that_wrap_keep_the_signature() -> None:
    def doubled(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> str:
            return function(*args, **kwargs) * 2

        return inner

    tool = function_tool(doubled(lookup))
    assert shown(tool) == ["city", "days", "key"]
    assert call(tool, city="a", days=1) == "a 1 a 1 "


def test_a_tool_can_still_be_called_as_the_function_it_was() -> None:
    assert function_tool(lookup)("Oslo", days=3) == "Oslo 3 "


def test_a_tool_made_by_hand_needs_a_schema_and_a_callable() -> None:
    def invoke(**args: Any) -> Any:
        return args

    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    tool = Tool("search", "Search it.", schema, invoke, "ctx")
    assert tool.to_openai() == {
        "type": "function",
        "function": {"name": "search", "description": "Search it.", "parameters": schema},
    }
    assert json.loads(call(tool, {"db": 1}, q="x"))["ctx"]["context"] == {"db": 1}
    with pytest.raises(InvalidArgumentsError, match="q: Field required"):
        call(tool)


# Names, texts, options ---------------------------------------------------------------------------------------------


def test_options_replace_what_the_function_says() -> None:
    @function_tool(
        name_override="weather-2",
        description_override="Other text.",
        timeout_s=2,
        max_result_chars=3,
    )
    def find(city: str) -> str:
        """Text."""
        return city

    assert (find.name, find.description, find.timeout_s) == ("weather-2", "Other text.", 2)
    assert call(find, city="abcdef").startswith("abc\n[cut here: 3 more characters]")


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no option 'nmae'; it has name_override"):
        function_tool(nmae="x")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "naïve", "a.b", "a\n", "<lambda>", 3])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="bad tool name"):
        function_tool(lookup, name_override=name)
    with pytest.raises(ConfigError, match="bad tool name"):
        Tool(name, "", {"type": "object"}, lookup)


@pytest.mark.parametrize("name", ["a", "1st", "x" * 64, "A_b-c"])
def test_a_good_name_is_kept(name: str) -> None:
    assert function_tool(lookup, name_override=name).name == name


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigError, match=r"'<lambda>'.*name_override"):
        function_tool(lambda: 1)


@pytest.mark.parametrize("timeout_s", [0, -1, True, "5", float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s must be a positive number"):
        function_tool(lookup, timeout_s=timeout_s)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools are called 'lookup'"):
        check_tools([lookup, function_tool(lookup)])
    assert list(check_tools([lookup, function_tool(lookup, name_override="other")])) == [
        "lookup",
        "other",
    ]


@pytest.mark.parametrize("thing", [None, "lookup", 3, [lookup], types.SimpleNamespace()])
def test_what_cannot_be_called_is_no_tool(thing: Any) -> None:
    with pytest.raises(ConfigError, match="can be called"):
        as_tool(thing)


def test_a_class_is_no_tool() -> None:
    with pytest.raises(ConfigError, match="Service is a class"):
        as_tool(Service)


def test_a_tool_is_not_made_a_tool_twice() -> None:
    tool = function_tool(lookup)
    assert as_tool(tool) is tool
    with pytest.raises(ConfigError, match="a tool already"):
        function_tool(tool)


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, None, "object"])
def test_a_hand_made_schema_must_be_an_object(schema: Any) -> None:
    with pytest.raises(ConfigError, match="type 'object' at its root"):
        Tool("f", "", schema, lookup)
    with pytest.raises(ConfigError, match="invoke must be callable"):
        Tool("f", "", {"type": "object"}, None)  # type: ignore[arg-type]


# Parameters that cannot be -------------------------------------------------------------------------------------------


def positional(city: str, /) -> str:
    return city


def many(*cities: str) -> str:
    return ""


def named(**cities: str) -> str:
    return ""


def dangling(city: OrderedDict[str, str]) -> str:
    return ""


def misspelt(city: Strnig) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def not_json(thing: Callable[[int], int]) -> str:
    return ""


def foreign(thing: Service) -> str:
    return ""


def no_type(thing: 5) -> str:  # type: ignore[valid-type]
    return ""


def misfit(days: int = "many") -> str:  # type: ignore[assignment]
    return ""


def two_contexts(a: RunContext, b: RunContext | None) -> str:
    return ""


def mixed_context(a: RunContext | str) -> str:
    return ""


def listed_context(a: list[RunContext]) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "parameter", "reason"),
    [
        (positional, "city", "positional-only"),
        (many, "cities", "list type"),
        (named, "cities", "dict type"),
        (dangling, "city", "does not resolve"),
        (misspelt, "city", "does not resolve"),
        (not_json, "thing", "cannot be told in JSON"),
        (foreign, "thing", "cannot be told in JSON"),
        (no_type, "thing", "cannot be told in JSON"),
        (misfit, "days", "does not fit its type"),
        (two_contexts, "a", "only one parameter"),
        (mixed_context, "a", "mixes RunContext"),
        (listed_context, "a", "mixes RunContext"),
    ],
)
def test_a_bad_parameter_is_refused_by_function_and_name(
    function: Any, parameter: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        function_tool(function)
    assert repr(function.__name__) in str(caught.value)
    assert parameter in str(caught.value)
    assert "http" not in str(caught.value)


def test_two_parameters_of_one_name_in_json_are_refused() -> None:
    from pydantic import Field

    def f(a: Annotated[int, Field(alias="b")], b: int) -> str:
        return ""

    f.__annotations__ = {"a": Annotated[int, Field(alias="b")], "b": int}
    with pytest.raises(ConfigError, match="two parameters share the name 'b'"):
        function_tool(f)


def test_a_callable_without_a_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"positional-only|no readable signature"):
        function_tool(math.hypot)


def test_a_return_hint_that_does_not_resolve_does_no_harm() -> None:
    def f(city: str) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        return city

    assert call(function_tool(f), city="Oslo") == "Oslo"


def test_hints_may_name_classes_of_the_function_they_are_written_in() -> None:
    class Query(BaseModel):
        text: str

    @function_tool
    def search(query: Query) -> str:
        return query.text

    assert call(search, query={"text": "x"}) == "x"


def test_hints_are_looked_up_in_the_functions_own_module_first() -> None:
    module = types.ModuleType("elsewhere")
    code = """
        from __future__ import annotations
        class Query:
            @classmethod
            def __get_pydantic_core_schema__(cls, source, handler):
                return handler(int)
        def double(query: Query): return query * 2
    """
    exec(textwrap.dedent(code), module.__dict__)

    class Query(BaseModel):
        text: str

    assert call(function_tool(module.double), query="4") == "8"


# The run's context ---------------------------------------------------------------------------------------------------


def plain_context(city: str, ctx: RunContext) -> Any:
    return ctx


def optional_context(city: str, ctx: RunContext | None = None) -> Any:
    return ctx


def typed_context(city: str, ctx: RunContext[dict[str, int]]) -> Any:
    return ctx


def annotated_context(ctx: Annotated[RunContext, "the run"], city: str) -> Any:
    return ctx


class MyContext(RunContext[Any]):
    pass


def subclass_context(city: str, *, ctx: MyContext) -> Any:
    return ctx


@pytest.mark.parametrize(
    "function",
    [plain_context, optional_context, typed_context, annotated_context, subclass_context],
)
def test_the_context_is_given_and_not_shown(function: Any) -> None:
    seen: list[Any] = []
    context = MyContext({"a": 1}, run_id="r", call_id="c", idempotency_key="k")

    @functools.wraps(function)
    def spy(**kwargs: Any) -> str:
        seen.append(function(**kwargs))
        return "done"

    tool = function_tool(spy)
    assert shown(tool) == ["city"]
    assert call(tool, context, city="Oslo", ctx="forged") == "done"
    assert seen == [context]
    assert seen[0] is context


def test_any_other_object_is_wrapped_in_a_context() -> None:
    tool = function_tool(lambda ctx: 1, name_override="f")
    assert shown(tool) == ["ctx"], "without the annotation it is a parameter like others"
    spy = Tool("f", "", {"type": "object"}, lambda ctx: [ctx.context, ctx.run_id], "ctx")
    assert call(spy, {"db": 1}) == '[{"db": 1}, null]'
    assert call(spy) == "[null, null]"


def test_importing_tools_brings_no_provider_and_no_database() -> None:
    import subprocess

    code = "import sys, agentor.engine.tools; print({'openai', 'apsw'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
