"""What can be imported, what it costs, and what it drags along."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import agentor
from agentor import AgentorError, RunContext, function_tool
from agentor.engine.store import Store
from tests.engine.agents import ThreeMethods

NAMES = {
    "agentor": "Agentor function_tool RunResult ModelSettings SQLiteStore FileStore MemoryStore "
    "AgentorError StoreError SequenceConflictError LogCorruptError RunNotFoundError RunExistsError "
    "LeaseError LeaseHeldError LeaseLostError ModelError OutputMismatchError ConfigError",
    "agentor.engine.store": "Store SQLiteStore FileStore MemoryStore fork_run new_run_id "
    "replay_messages is_complete final_event total_usage",
    "agentor.engine.events": "Event Usage RunResult",
    "agentor.engine.models": "Model ModelResponse ToolCall StreamChunk ChatCompletionsModel",
    "agentor.engine.tools": "Tool RunContext function_tool",
}
HEAVY = ("openai", "sqlite_utils", "fastapi", "starlette", "uvicorn", "opentelemetry", "apsw")


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in NAMES for name in NAMES[module].split()]
)
def test_every_promised_name_can_be_imported(module: str, name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {module} import {name}", namespace)
    assert namespace[name] is not None


def test_the_same_class_comes_from_every_place_that_exports_it() -> None:
    from agentor.engine import events, store, tools

    assert agentor.RunResult is events.RunResult
    assert agentor.SQLiteStore is store.SQLiteStore
    assert agentor.FileStore is store.FileStore
    assert agentor.MemoryStore is store.MemoryStore
    assert agentor.function_tool is tools.function_tool


def test_all_names_of_the_package_are_there_and_nothing_else_is_exported() -> None:
    names = python("from agentor import *; print(sorted(n for n in dir() if n[0] != '_'))")
    assert names == str(sorted(agentor.__all__))


def family(error: type[AgentorError]) -> set[type[AgentorError]]:
    return {error}.union(*map(family, error.__subclasses__()))


def test_every_public_error_can_be_imported_from_the_top_and_descends_from_one_root() -> None:
    """Those that only the command line raises are told there, and nobody can catch them."""
    from agentor import errors

    public = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert public == {name for name in agentor.__all__ if name.endswith("Error")}
    assert public == {e.__name__ for e in family(AgentorError) if e.__module__ == errors.__name__}


def test_the_tree_that_is_drawn_of_the_errors_is_the_one_there_is() -> None:
    from agentor import errors

    drawn: list[tuple[int, str]] = [
        (len(match["branch"]) // 3, match["name"])
        for match in re.finditer(
            r"^    (?P<branch>[│├└─ ]*)(?P<name>\w+Error)\b", errors.__doc__ or "", re.M
        )
    ]
    above: list[str] = []
    for depth, name in drawn:
        above[depth:] = [name]
        if depth:
            assert getattr(errors, above[depth - 1]) in getattr(errors, name).__bases__
    assert {name for _, name in drawn} == {
        e.__name__ for e in family(AgentorError) if e.__module__ == errors.__name__
    }


@pytest.mark.parametrize(
    ("error", "base"),
    [
        ("RunNotFoundError", KeyError),
        ("RunExistsError", ValueError),
        ("ConfigError", ValueError),
        ("OutputMismatchError", ValueError),
    ],
)
def test_errors_are_also_what_a_python_programmer_would_catch(error: str, base: type) -> None:
    assert issubclass(getattr(agentor, error), base)


def test_naming_the_agent_and_the_tools_stays_cheap_too() -> None:
    loaded = python(
        "import sys; from agentor import Agentor, function_tool, RunResult, ModelSettings, FileStore;"
        "Agentor('a', model='m', api_key='k');"
        f"print([m for m in sys.modules if m.split('.')[0] in {HEAVY}])"
    )
    assert loaded == "[]"


def test_importing_agentor_loads_nothing_heavy() -> None:
    loaded = python(
        f"import sys, agentor; print([m for m in sys.modules if m.split('.')[0] in {HEAVY}])"
    )
    assert loaded == "[]"


def test_importing_agentor_starts_no_thread() -> None:
    assert python("import threading, agentor; print(threading.active_count())") == "1"


def test_a_store_is_recognised_by_its_three_methods() -> None:
    assert isinstance(ThreeMethods(), Store)
    assert not isinstance(object(), Store)


def test_a_model_is_recognised_by_its_complete() -> None:
    from agentor.engine.models import Model
    from agentor.testing import ScriptedModel

    assert isinstance(ScriptedModel([]), Model)
    assert not isinstance(object(), Model)


def test_the_parts_of_a_model_reply_have_the_promised_fields_in_order() -> None:
    from agentor.engine.models import ModelResponse, StreamChunk, ToolCall

    assert list(inspect.signature(ModelResponse).parameters)[:5] == [
        *("content", "tool_calls", "usage", "raw", "reasoning")
    ]
    assert list(inspect.signature(ToolCall).parameters)[:3] == ["id", "name", "arguments"]
    assert list(inspect.signature(StreamChunk).parameters)[:2] == ["delta", "final"]


def test_a_model_reply_without_anything_is_empty_and_shares_nothing() -> None:
    from agentor.engine.events import Usage
    from agentor.engine.models import ModelResponse, StreamChunk, ToolCall

    one, other = ModelResponse(), ModelResponse()
    assert (one.content, one.tool_calls, one.usage, one.raw, one.reasoning) == (
        *(None, [], Usage(), None, None),
    )
    assert one.tool_calls is not other.tool_calls
    assert (StreamChunk().delta, StreamChunk().final) == (None, None)
    assert ToolCall("c", "f").arguments == ""


def test_agentor_takes_the_promised_arguments_in_the_promised_order() -> None:
    parameters = inspect.signature(agentor.Agentor).parameters
    assert [(p.name, p.default) for p in list(parameters.values())[:13]] == [
        ("name", inspect.Parameter.empty),
        ("instructions", None),
        ("model", "gpt-5-nano"),
        ("tools", None),
        ("output_type", None),
        ("api_key", None),
        ("model_settings", None),
        ("enable_tracing", False),
        ("max_turns", 20),
        ("max_tool_failures", 2),
        ("store", None),
        ("base_url", None),
        ("tracer", None),
    ]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("arun", "input max_turns fallback_models tracing run_id limit_concurrency"),
        ("aresume", "run_id max_turns tracing"),
        ("resume", "run_id max_turns tracing"),
        ("afork", "run_id input fork_id at max_turns tracing"),
        ("fork", "run_id input fork_id at max_turns tracing"),
        ("stream_chat", "input serialize"),
        ("astream", "input max_turns"),
    ],
)
def test_every_call_takes_the_promised_arguments(call: str, names: str) -> None:
    parameters = list(inspect.signature(getattr(agentor.Agentor, call)).parameters)
    wanted = names.split()
    assert parameters[1 : 1 + len(wanted)] == wanted


def test_public_callables_have_docstrings() -> None:
    for name in agentor.__all__:
        assert inspect.getdoc(getattr(agentor, name)), name
    for name, member in inspect.getmembers(agentor.Agentor, inspect.isroutine):
        assert name.startswith("_") or inspect.getdoc(member), name


def test_a_tool_and_its_context_can_be_imported_from_the_top() -> None:
    assert callable(function_tool)
    assert RunContext().context is None
