"""What a tool does is noted, however it comes to its end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentor import RunContext, function_tool
from agentor.crashtest.journal import Journal, read_journal
from agentor.crashtest.watching import Watch, watch_tools
from agentor.engine.tool_perform import perform

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
