"""What a tool does is noted, however it comes to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentor import RunContext, function_tool
from agentor.crashtest.journal import Journal, read_journal
from agentor.crashtest.watching import Watch, watch_tools
from agentor.engine.tool_perform import perform
from agentor.engine.tools import Tool

UNHEARD = threading.Event()


def returns(amount: int) -> str:
    """Return."""
    return "done"


def raises(amount: int) -> str:
    """Raise."""
    raise RuntimeError("no")


def exits(amount: int) -> str:
    """Leave."""
    raise SystemExit(3)


def hangs(amount: int) -> str:
    """Go on in a thread that nobody listens to any more."""
    UNHEARD.wait()
    return "done"


async def hangs_too(amount: int) -> str:
    """Wait for what never comes."""
    await asyncio.Event().wait()
    return "done"


@pytest.mark.parametrize(
    ("function", "failed"),
    [(returns, False), (raises, True), (exits, True), (hangs, True), (hangs_too, True)],
)
async def test_a_tool_that_was_entered_has_an_end_of_whatever_kind(
    function: Any, failed: bool, tmp_path: Path
) -> None:
    UNHEARD.clear()
    tool = function_tool(function, timeout_s=0.05 if "hangs" in function.__name__ else None)
    watch_tools({tool.name: tool}, Watch(Journal(tmp_path / "journal", 1)))
    context = RunContext(None, call_id="c", idempotency_key="r:2:0", args={"amount": 5})
    outcome = await perform(tool, {"amount": 5}, context)
    UNHEARD.set()
    assert (outcome.error is not None) == failed
    start, end = read_journal(tmp_path / "journal")
    assert [(mark.kind, mark.failed) for mark in (start, end)] == [
        ("start", False),
        ("return", failed),
    ]
    assert (start.tool, start.key, start.args) == (tool.name, "r:2:0", '{"amount":5}')


async def test_a_call_whose_arguments_do_not_fit_was_not_begun(tmp_path: Path) -> None:
    tool = function_tool(returns)
    watch_tools({tool.name: tool}, Watch(Journal(tmp_path / "journal", 1)))
    outcome = await perform(tool, {"amount": "many"}, RunContext(None, args={"amount": "many"}))
    assert outcome.error is not None
    assert read_journal(tmp_path / "journal") == []


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "meddle",
    [
        lambda args: args.clear(),
        lambda args: args.update(amount=6, at=1.5),
        lambda args: args["to"].append("Eve"),
        lambda args: args.update(handle=object()),
    ],
)
async def test_all_marks_of_a_call_name_the_same_call_whatever_its_tool_makes_of_its_context(
    meddle: Any, fails: bool, tmp_path: Path
) -> None:
    def meddles(ctx: RunContext, amount: int, to: list[str]) -> str:
        """Make something else of what was given."""
        meddle(ctx.args)
        if fails:
            raise RuntimeError("no")
        return "done"

    tool, args = function_tool(meddles), {"amount": 5, "to": ["Ada"]}
    watch_tools({tool.name: tool}, Watch(Journal(tmp_path / "journal", 1)))
    context = RunContext(None, call_id="c", idempotency_key="r:2:0", args=args)
    outcome = await perform(tool, {"amount": 5, "to": ["Ada"]}, context)
    assert outcome.text == ("Error: RuntimeError: no" if fails else "done")
    start, end = read_journal(tmp_path / "journal")
    assert (start.kind, end.kind, end.failed) == ("start", "return", fails)
    assert start.args == end.args == '{"amount":5,"to":["Ada"]}'
    assert (start.tool, start.call_id, start.key) == (end.tool, end.call_id, end.key)


# Whatever way a tool works -------------------------------------------------------------------------------------------


class WorksInCall(Tool):
    async def call(self, args: Any, context: Any = None) -> str:
        return "done"


class WorksAround(Tool):
    """Before and after its function, and again if that fails."""

    async def call(self, args: Any, context: Any = None) -> str:
        for _ in range(2):
            text = await super().call(args, context)
        return text


class WorksInAPool(Tool):
    """In a thread that knows nothing of the call."""

    async def call(self, args: Any, context: Any = None) -> str:
        with ThreadPoolExecutor(1) as pool:
            return str(await asyncio.wrap_future(pool.submit(self.invoke, **args)))


class ReturnsAnAwaitable(Tool):
    def call(self, args: Any, context: Any = None) -> Any:
        return super().call(args, context)


class Callable_:
    """Return."""

    __name__ = "returns"

    def __call__(self, amount: int) -> str:
        return "done"


class AsyncCallable(Callable_):
    async def __call__(self, amount: int) -> str:  # type: ignore[override]
        return "done"


def plain(function: Any = returns, kind: type[Tool] = Tool, **more: Any) -> Tool:
    made = function_tool(function, **more)
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(made) if f.init}
    return kind(**fields)


def with_a_call_of_its_own() -> Tool:
    async def call(args: Any, context: Any = None) -> str:
        return "done"

    tool = plain()
    object.__setattr__(tool, "call", call)
    return tool


def working_in_a_thread_of_its_own() -> Tool:
    def works(amount: int) -> str:
        """Work."""
        thread = threading.Thread(target=returns, args=(amount,))
        thread.start()
        thread.join()
        return "done"

    return function_tool(works)


WAYS = {
    "in call": lambda: plain(kind=WorksInCall),
    "around": lambda: plain(kind=WorksAround),
    "in a pool": lambda: plain(kind=WorksInAPool),
    "not async": lambda: plain(kind=ReturnsAnAwaitable),
    "call set on the tool": with_a_call_of_its_own,
    "object": lambda: plain(Callable_()),
    "async object": lambda: plain(AsyncCallable()),
    "partial": lambda: plain(partial(returns), name_override="returns"),
    "replaced": lambda: dataclasses.replace(plain(), effect="read"),
    "replaced, in call": lambda: dataclasses.replace(plain(kind=WorksInCall), effect="read"),
    "in a thread": working_in_a_thread_of_its_own,
}


async def marks_of(tool: Tool, path: Path, change: Any = None) -> list[tuple[str, Any, Any]]:
    watch_tools({tool.name: tool}, Watch(Journal(path, 1)))
    if change is not None:
        object.__setattr__(tool, "invoke", change)
    context = RunContext(None, call_id="c", idempotency_key="r:2:0", args={"amount": 5})
    outcome = await perform(tool, {"amount": 5}, context)
    assert outcome.text == "done"
    return [(mark.kind, mark.tool, mark.key) for mark in read_journal(path)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_is_one_start_and_one_end_whatever_way_its_tool_works(
    way: str, tmp_path: Path
) -> None:
    tool = WAYS[way]()
    found = await marks_of(tool, tmp_path / "journal")
    assert found == [("start", tool.name, "r:2:0"), ("return", tool.name, "r:2:0")]


async def test_a_tool_whose_function_was_changed_since_is_seen_at_its_end(tmp_path: Path) -> None:
    found = await marks_of(plain(), tmp_path / "journal", change=lambda amount: "done")
    assert [kind for kind, *_ in found] == ["start", "return"]


async def test_what_a_tool_does_with_another_is_its_own_work(tmp_path: Path) -> None:
    inner = plain()

    def outer(amount: int) -> str:
        """Have it done."""
        return f"{inner(amount)}{inner(amount)}"[:4]

    tools = {"returns": inner, "outer": function_tool(outer)}
    watch_tools(tools, Watch(Journal(tmp_path / "journal", 1)))
    await perform(tools["outer"], {"amount": 5}, RunContext(None, args={"amount": 5}))
    found = [(mark.kind, mark.tool) for mark in read_journal(tmp_path / "journal")]
    assert found == [("start", "outer"), ("return", "outer")]


async def test_a_tool_with_a_call_of_its_own_has_begun_whatever_it_says_of_its_arguments(
    tmp_path: Path,
) -> None:
    tool = plain(kind=WorksAround)
    watch_tools({tool.name: tool}, Watch(Journal(tmp_path / "journal", 1)))
    outcome = await perform(tool, {"amount": "many"}, RunContext(None, args={"amount": "many"}))
    assert outcome.error is not None
    found = [(mark.kind, mark.failed) for mark in read_journal(tmp_path / "journal")]
    assert found == [("start", False), ("return", True)]
