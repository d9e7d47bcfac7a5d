"""Logs that Agentor 0.1 wrote load, resume and fork as they are.

They are written by hand here: no seq, the whole conversation in every generation, keys in any order, a resume as a
further run_start with the whole list.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, FileStore, LogCorruptError, function_tool
from agentor.engine.events import Usage
from agentor.engine.replay import verify
from agentor.engine.store import is_complete, replay_messages, total_usage
from agentor.testing import FakeServer, ScriptedModel, calls, says
from tests.engine.agents import Tools

OPENING = [{"role": "system", "content": "sys"}, {"role": "user", "content": "hello"}]
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"London"}'}},
    {"id": "c2", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 1}'}},
]  # fmt: skip
GROUP = [
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c2", "content": "Error: RuntimeError: no"},
]
USED = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
LOG: list[dict[str, Any]] = [
    {"type": "run_start", "agent": "Weather Agent", "model": "gpt-4o-mini", "messages": OPENING},
    {"type": "generation", "turn": 1, "usage": USED, "messages": OPENING, "calls": CALLS,
     "model": "gpt-4o-mini"},
    {"type": "tool_call", "name": "get_weather", "call_id": "c1", "args": {"city": "London"}, "turn": 1},
    {"type": "tool_call", "name": "pay", "call_id": "c2", "args": {"amount": 1}, "turn": 1},
    {"type": "tool_result", "name": "get_weather", "call_id": "c1", "result": "sunny", "turn": 1},
    {"type": "tool_result", "name": "pay", "call_id": "c2", "result": "Error: RuntimeError: no",
     "error": "RuntimeError: no", "turn": 1},
    {"type": "generation", "turn": 2, "usage": USED, "messages": OPENING + GROUP, "text": "done"},
    {"type": "message", "text": "done", "turn": 2},
    {"type": "run_end", "status": "completed", "text": "done",
     "usage": {"input_tokens": 6, "output_tokens": 8, "total_tokens": 14}},
]  # fmt: skip
RESUMED = [  # the process died with one result out of two; the old engine asked again
    *LOG[:5],
    {"type": "run_start", "agent": "Weather Agent", "model": "gpt-4o-mini", "messages": OPENING},
    *LOG[1:],
]
FORMS = {
    "as they come": lambda body: json.dumps(body),
    "compact": lambda body: json.dumps(body, separators=(",", ":")),
    "keys sorted": lambda body: json.dumps(body, sort_keys=True),
    "keys shuffled": lambda body: json.dumps(_shuffled(body)),
    "nulls told": lambda body: json.dumps({"error": None, "reasoning": None, **body}),
    "unicode escaped": lambda body: json.dumps(body, ensure_ascii=True),
}


def _shuffled(body: dict[str, Any]) -> dict[str, Any]:
    keys = list(body)
    random.Random(7).shuffle(keys)
    return {key: body[key] for key in keys}


def write(directory: Path, bodies: list[dict[str, Any]], form: str = "as they come") -> FileStore:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [FORMS[form](body) for body in bodies]
    (directory / "old.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return FileStore(directory)


def model() -> ScriptedModel:
    script = [
        calls(("get_weather", {"city": "London"}, "c1"), ("pay", {"amount": 1}, "c2")),
        says("done"),
    ]
    return ScriptedModel.by_turn(script)


def agent(store: Any, asked: ScriptedModel, tools: Tools | None = None) -> Agentor:
    functions = (tools or Tools()).functions()
    return Agentor("Weather Agent", "new", model=asked, tools=functions, store=store)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bodies", [LOG, RESUMED], ids=["plain", "resumed"])
def test_an_old_log_loads_whole_and_is_a_complete_run(
    tmp_path: Path, form: str, bodies: list[dict[str, Any]]
) -> None:
    events = write(tmp_path, bodies, form).load("old")
    assert [event.type for event in events] == [body["type"] for body in bodies]
    assert is_complete(events)
    assert verify(events) == []
    assert replay_messages(events)[:2] == OPENING
    assert [m["role"] for m in replay_messages(events)] == [
        *("system", "user", "assistant", "tool", "tool", "assistant")
    ]
    generations = sum(body["type"] == "generation" for body in bodies)
    assert total_usage(events) == sum([Usage(3, 4, 7)] * generations, Usage())


def test_an_old_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    store = write(tmp_path, LOG)
    before = (tmp_path / "old.jsonl").read_bytes()
    result = agent(store, ScriptedModel([])).resume("old")
    assert (result.final_output, result.status) == ("done", "completed")
    assert result.usage == Usage(6, 8, 14)
    assert [(call.name, call.args) for call in result.tool_calls] == [
        *(("get_weather", {"city": "London"}), ("pay", {"amount": 1})),
    ]
    assert (tmp_path / "old.jsonl").read_bytes() == before


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("length", range(1, len(LOG) + 1))
def test_an_old_run_is_resumed_from_wherever_it_ended(
    tmp_path: Path, length: int, torn: bool
) -> None:
    store = write(tmp_path, LOG[:length])
    before = (tmp_path / "old.jsonl").read_bytes()
    if torn:
        with (tmp_path / "old.jsonl").open("a") as file:
            file.write('{"type": "tool_res')
    tools, asked = Tools(), model()
    result = agent(store, asked, tools).resume("old")
    assert (result.final_output, result.status) == ("done", "completed")
    if length >= 6:
        assert not tools.ran
    if length >= 7:
        assert asked.requests == []
    assert (tmp_path / "old.jsonl").read_bytes().startswith(before)
    again = FileStore(tmp_path).load("old")
    assert is_complete(again)
    assert verify(again) == []
    assert again[:length] == FileStore(tmp_path).load("old")[:length]
    assert replay_messages(again) == result.messages


@pytest.mark.parametrize("length", range(1, len(RESUMED) + 1))
def test_an_old_run_that_was_resumed_before_is_resumed_again(tmp_path: Path, length: int) -> None:
    store = write(tmp_path, RESUMED[:length])
    result = agent(store, model()).resume("old")
    assert (result.final_output, result.status) == ("done", "completed")


@pytest.mark.parametrize("with_input", [False, True])
@pytest.mark.parametrize("length", range(1, len(LOG) + 1))
def test_an_old_run_is_forked_and_left_as_it_is(
    tmp_path: Path, length: int, with_input: bool
) -> None:
    store = write(tmp_path, LOG[:length])
    before = (tmp_path / "old.jsonl").read_bytes()
    asked = ScriptedModel(lambda messages: says("more")) if with_input else model()
    child = agent(store, asked).fork("old", "go on" if with_input else None, fork_id="child")
    assert child.final_output == ("more" if with_input else "done")
    assert child.messages[0]["content"] == "sys"
    assert (tmp_path / "old.jsonl").read_bytes() == before
    log = store.load("child")
    assert verify(log) == []
    assert [event.forked_from for event in log if event.type == "fork"] == ["old"]


@pytest.mark.parametrize("at", range(1, len(LOG) + 1))
def test_an_old_run_is_branched_at_any_of_its_events(tmp_path: Path, at: int) -> None:
    store = write(tmp_path, LOG)
    child = agent(store, ScriptedModel(lambda messages: says("more"))).fork("old", "go on", at=at)
    assert child.final_output == "more"


def test_failures_in_an_old_log_count(tmp_path: Path) -> None:
    store = write(tmp_path, LOG[:6])
    asked = ScriptedModel([calls(("pay", {"amount": 2})), says("no")])
    tools = Tools()
    agent(store, asked, tools).resume("old")
    assert tools.ran == {"pay 2": 1}
    assert [tool["function"]["name"] for tool in asked.requests[1].tools or []] == ["get_weather"]


def test_what_an_old_log_leads_to_is_legal_for_a_strict_server(tmp_path: Path) -> None:
    for length in range(1, 7):
        store = write(tmp_path / str(length), LOG[:length])
        replies = [
            calls(("get_weather", {"city": "London"}), ("pay", {"amount": 1})),
            says("done"),
        ]
        with FakeServer.by_turn(replies) as server:
            made = Agentor(
                "A", "new", tools=Tools().functions(), store=store, base_url=server.base_url,
                api_key="test",
            )  # fmt: skip
            assert made.resume("old").final_output == "done"


def test_an_old_log_with_a_torn_line_in_the_middle_is_read_around_it(tmp_path: Path) -> None:
    """Agentor 0.1 itself appended after a torn line."""
    lines = [json.dumps(body) for body in RESUMED]
    lines.insert(5, '{"type": "tool_res')
    (tmp_path / "old.jsonl").write_text("\n".join(lines) + "\n")
    events = FileStore(tmp_path).load("old")
    assert [event.type for event in events] == [body["type"] for body in RESUMED]


def test_a_log_of_ours_with_a_torn_line_in_the_middle_is_refused_and_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    agent(store, model()).run("hello", run_id="r")
    path = tmp_path / "r.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:20], *lines[4:]]) + "\n")
    with pytest.raises(LogCorruptError, match="'r'") as caught:
        agent(FileStore(tmp_path), ScriptedModel([])).resume("r")
    assert caught.value.seq == 4


@pytest.mark.parametrize("received", [("c", "c"), ("", ""), ("", "call_2_0")])
@pytest.mark.parametrize("order", [("pay", "look"), ("look", "pay")])
@pytest.mark.parametrize("known", ["pay", "look"])
def test_a_recorded_result_is_told_as_that_of_its_own_call_whatever_ids_the_model_gave(
    tmp_path: Path, received: tuple[str, str], order: tuple[str, str], known: str
) -> None:
    ran: list[str] = []

    @function_tool(effect="read")
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    @function_tool(effect="once")
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    ids = dict(zip(order, received, strict=True))
    raw = [
        {"id": ids[n], "type": "function", "function": {"name": n, "arguments": "{}"}}
        for n in order
    ]
    begun = [{"type": "tool_call", "name": n, "call_id": ids[n], "args": {}} for n in order]
    ended = {"type": "tool_result", "name": known, "call_id": ids[known], "result": f"told {known}"}
    store = write(tmp_path, [LOG[0], {**LOG[1], "calls": raw}, *begun, ended])
    asked = ScriptedModel([says("done")])
    Agentor("Weather Agent", model=asked, tools=[look, pay], store=store).resume("old")
    *_, first, second = asked.requests[0].messages
    told = dict(zip(order, (first["content"], second["content"]), strict=True))
    assert told[known] == f"told {known}"
    if known == "pay":
        assert (told["look"], ran) == ("seen", ["look"])
    else:
        assert ("is not known" in told["pay"], ran) == (True, [])
