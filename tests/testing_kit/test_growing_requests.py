"""A request that extends the last one is checked and copied for what is new, and judged as if it were checked whole."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls, checker, growing
from agentor.testing.checker import check_messages
from agentor.testing.growing import Growing


def asks(*ids: str) -> dict[str, Any]:
    made = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for each in ids
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def answers(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


MESSAGES = st.sampled_from(
    [
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "Hi"},
        *(asks("a"), asks("b"), asks("a", "b")),
        *(answers("a"), answers("b"), answers("a", "\ud800"), answers("", None)),
        *("no message", {"role": "nobody"}, {"role": "user", "content": float("nan")}),
    ]
)
TURNS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(MESSAGES, max_size=3)), min_size=1, max_size=6
)
LEGAL = [
    {"role": "user", "content": "Hello"},
    *(asks("a"), answers("a"), asks("b", "c"), answers("b"), answers("c")),
]


@given(st.integers(0, len(LEGAL)), TURNS)
def test_however_requests_follow_each_other_the_verdict_is_that_of_a_whole_check(
    start: int, turns: list[tuple[int, list[Any]]]
) -> None:
    kept, messages = Growing(), copy.deepcopy(LEGAL[:start])
    for taken_away, added in [(0, []), *turns]:
        messages = messages[: len(messages) - taken_away] + copy.deepcopy(added)
        asked = kept.copied(messages)
        assert repr(asked) == repr(messages)
        assert kept.check(asked) == check_messages(messages)


def test_a_request_that_changes_what_was_said_before_is_checked_whole() -> None:
    kept, messages = Growing(), copy.deepcopy(LEGAL)
    assert kept.check(kept.copied(messages)) == []
    messages[0]["content"] = None
    messages.append({"role": "user", "content": "More"})
    assert kept.check(kept.copied(messages)) == check_messages(messages) != []


@pytest.mark.parametrize("by_turn", [False, True])
def test_the_work_of_a_script_grows_with_the_run_and_not_with_its_square(
    by_turn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        inner = getattr(module, name)

        def counting(*given: Any) -> Any:
            work[name] += 1
            return inner(*given)

        monkeypatch.setattr(module, name, counting)

    counted(checker, "_check_message")
    counted(growing, "copied")

    @function_tool
    def look(n: int) -> str:
        """Look."""
        return str(n)

    def worked(turns: int) -> Counter[str]:
        work.clear()
        script = [*(calls(("look", {"n": n})) for n in range(turns)), "done"]
        model = ScriptedModel.by_turn(script) if by_turn else ScriptedModel(script)
        Agentor("growing", model=model, tools=[look], max_turns=turns + 1).run("Go", tracing=False)
        assert len(model.requests[-1].messages) == 2 * turns + 1
        return Counter(work)

    short, long = worked(20), worked(40)
    for name in ("_check_message", "copied"):
        assert 0 < long[name] <= 2.2 * short[name], name


def test_a_function_that_changes_what_it_is_given_changes_no_request() -> None:
    def spoiling(messages: list[dict[str, Any]]) -> Any:
        messages[-1]["content"] = "spoiled"
        messages.append({"role": "nobody"})
        return calls(("look", {})) if len(messages) < 6 else "done"

    @function_tool
    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(spoiling)
    Agentor("spoiled", model=model, tools=[look]).run("Go", tracing=False)
    assert "spoiled" not in repr([each.messages for each in model.requests])
    assert "nobody" not in repr([each.messages for each in model.requests])
