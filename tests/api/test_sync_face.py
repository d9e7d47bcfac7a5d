"""The sync calls work anywhere, and end in an orderly way."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, FileStore, MemoryStore, ModelError, function_tool
from agentor.testing import FakeServer, Gate, ScriptedModel, calls, faults, says
from tests.api.conftest import Program

Start = Callable[..., Program]


def echo() -> ScriptedModel:
    return ScriptedModel(lambda messages: says(f"You said: {messages[-1]['content']}"))


def loop_threads() -> int:
    return sum(thread.name.startswith("agentor-loop") for thread in threading.enumerate())


def within(seconds: float, work: Callable[[], Any]) -> BaseException | Any:
    """What `work` gives or raises; fails the test instead of hanging it."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"it still runs after {seconds} s"
    return outcome[0]


def test_many_sync_calls_one_after_the_other_share_one_loop_thread() -> None:
    with FakeServer(lambda request: says("Hello.")) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test")
        assert [agent.run("hi").final_output for _ in range(12)] == ["Hello."] * 12
        agent.close()
    assert loop_threads() == 1


def test_sync_calls_work_inside_a_running_event_loop() -> None:
    with FakeServer(lambda request: says("Hello.")) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test", store=MemoryStore())

        async def notebook_cell() -> list[str]:
            first = agent.run("one")
            second = agent.run("two")
            assert agent.resume(first.run_id).final_output == "Hello."
            return [first.final_output, second.final_output]

        for _ in range(2):
            assert asyncio.run(notebook_cell()) == ["Hello.", "Hello."]
        agent.close()


def test_one_agent_serves_sync_and_async_callers_in_turn_over_http() -> None:
    with FakeServer(lambda request: says("Hello.")) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test")

        async def one() -> str:
            result = await agent.arun("hi")
            await agent.aclose()
            return str(result)

        answers = []
        for _ in range(3):
            answers += [str(agent.run("hi")), asyncio.run(one())]
        agent.close()
    assert answers == ["Hello."] * 6


def test_sync_calls_work_from_many_threads_at_once(store: Any) -> None:
    agent = Agentor("A", model=echo(), store=store)
    answers: dict[int, str] = {}

    def work(number: int) -> None:
        answers[number] = str(agent.run(f"number {number}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: f"You said: number {n}" for n in range(16)}
    assert len(store.list_runs()) == 16


@pytest.mark.parametrize("outer", ["sync", "async"])
@pytest.mark.parametrize("tool_kind", ["sync", "async"])
def test_a_tool_may_run_an_agent_with_the_sync_call(outer: str, tool_kind: str) -> None:
    inner = Agentor("Inner", model=echo(), store=MemoryStore())

    def ask_sync(question: str) -> str:
        """Ask."""
        return str(inner.run(question))

    async def ask_async(question: str) -> str:
        """Ask."""
        return str(inner.run(question))

    tool = function_tool(name_override="ask")(ask_sync if tool_kind == "sync" else ask_async)
    model = ScriptedModel([calls(("ask", {"question": "deep"})), says("done")])
    agent = Agentor("Outer", model=model, tools=[tool], store=MemoryStore())
    work = (lambda: agent.run("go")) if outer == "sync" else lambda: asyncio.run(agent.arun("go"))
    result = within(20, work)
    [told] = [event.result for event in result.events if event.type == "tool_result"]
    assert told == "You said: deep"


def test_sync_calls_nested_in_async_tools_leave_no_thread_behind() -> None:
    inner = Agentor("Inner", model=echo())

    @function_tool
    async def ask(question: str) -> str:
        """Ask."""
        return str(inner.run(question))

    def once() -> None:
        script = [calls(("ask", {"question": "deep"})), says("done")]
        Agentor("Outer", model=ScriptedModel(script), tools=[ask]).run("go")

    once()
    before = loop_threads()
    for _ in range(10):
        once()
    assert loop_threads() <= max(before, 2)


def test_a_sync_tool_nested_three_deep_does_not_deadlock() -> None:
    agent = Agentor("Leaf", model=echo())
    for level in range(3):

        def ask(question: str, below: Agentor = agent) -> str:
            """Ask."""
            return str(below.run(question))

        def tool(question: str, run: Callable[[str], str] = ask) -> str:
            """Ask."""
            return run(question)

        ask_below = function_tool(name_override="ask")(_one_argument(ask))
        model = ScriptedModel(
            [calls(("ask", {"question": f"level {level}"})), lambda m: says(m[-1]["content"])]
        )
        agent = Agentor(f"Level {level}", model=model, tools=[ask_below])
    assert str(within(20, lambda: agent.run("go"))) == "You said: level 0"


def _one_argument(ask: Callable[..., str]) -> Callable[[str], str]:
    def one(question: str) -> str:
        """Ask."""
        return ask(question)

    return one


ASYNC_CALLS = [
    n for n, _ in inspect.getmembers(Agentor, inspect.iscoroutinefunction) if n[0] == "a"
]


@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_every_async_call_has_a_synchronous_form_with_the_same_arguments_and_its_documentation(
    name: str,
) -> None:
    made, twin = getattr(Agentor, name), getattr(Agentor, name[1:])
    assert not inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(made)
    home = made.__qualname__.removesuffix(f".{name}")
    assert (twin.__name__, twin.__qualname__) == (name[1:], f"{home}.{name[1:]}")
    assert (inspect.getdoc(twin) or "").endswith(inspect.getdoc(made) or "?")


def test_a_sync_call_of_a_subclass_is_its_own_async_call() -> None:
    class Polite(Agentor):
        async def arun(self, input: Any, *args: Any, **kwargs: Any) -> Any:
            return await super().arun(f"Please: {input}", *args, **kwargs)

    assert Polite("Echo", model=echo()).run("hello").final_output == "You said: Please: hello"


def test_a_sync_call_with_a_wrong_keyword_is_a_type_error_and_does_not_hang() -> None:
    agent = Agentor("A", model=echo())
    error = within(10, lambda: agent.run("hi", max_turn=3))
    assert isinstance(error, TypeError)
    assert "max_turn" in str(error)


def test_a_sync_call_names_the_method_that_was_called() -> None:
    agent = Agentor("Agent", model=echo(), store=MemoryStore())
    for call in (lambda: agent.reject("r", "call_1"), lambda: agent.resume()):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"\.re(ject|sume)\(\) missing 1 required"):
            call()


def test_a_sync_call_without_input_is_a_type_error() -> None:
    error = within(10, lambda: Agentor("A", model=echo()).run())  # type: ignore[call-arg]
    assert isinstance(error, TypeError)


def test_the_models_exception_reaches_the_sync_caller_with_its_own_type_and_traceback() -> None:
    class Broken(Exception):
        pass

    with pytest.raises(Broken, match="down") as caught:
        Agentor("A", model=ScriptedModel([Broken("down")])).run("hi")
    names = [entry.name for entry in caught.traceback]
    assert "_answer" in names  # where the model raised it


def test_tools_and_models_see_the_context_variables_of_the_sync_caller() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    seen: list[str] = []

    @function_tool
    def who() -> str:
        """Say who asks."""
        seen.append(user.get())
        return user.get()

    @function_tool
    async def who_async() -> str:
        """Say who asks."""
        seen.append(user.get())
        return user.get()

    def reply(messages: list[dict[str, Any]]) -> Any:
        seen.append(user.get())
        return calls(("who", {}), ("who_async", {})) if len(messages) == 1 else says("done")

    agent = Agentor("A", model=ScriptedModel(reply), tools=[who, who_async])
    for name in ("ada", "bob"):
        token = user.set(name)
        agent.run("hi")
        user.reset(token)
    assert seen == ["ada"] * 4 + ["bob"] * 4


def test_a_sync_call_in_a_plain_script_prints_and_ends(start: Start) -> None:
    with FakeServer(lambda request: says("Hello.")) as server:
        program = start(
            "from agentor import Agentor\n"
            "agent = Agentor('A', store='runs.db')\n"
            "for _ in range(3):\n"
            "    print(agent.run('hi').final_output)\n",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="test",
        )
        assert program.ends() == (0, "Hello.\n" * 3, "")


def test_sync_calls_work_in_a_child_after_os_fork(start: Start) -> None:
    with FakeServer(lambda request: says("Hello.")) as server:
        program = start(
            "import os, warnings\n"
            "warnings.simplefilter('ignore', DeprecationWarning)  # of os.fork with threads\n"
            "from agentor import Agentor\n"
            "agent = Agentor('A', store='runs/')\n"
            "print(agent.run('hi').final_output)\n"
            "pid = os.fork()\n"
            "print(agent.run('hi').final_output)\n"
            "if pid:\n"
            "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="test",
        )
        code, out, err = program.ends()
    assert (code, sorted(out.split()), err) == (0, ["0", "Hello.", "Hello.", "Hello."], "")


# Ctrl-C ---------------------------------------------------------------------------------------------------------------

AGENT = """
import asyncio, threading
from agentor import Agentor, FileStore, SQLiteStore, function_tool

@function_tool
def wait_in_a_thread() -> str:
    '''Wait.'''
    print('waiting', flush=True)
    threading.Event().wait()

@function_tool
async def wait_on_the_loop() -> str:
    '''Wait.'''
    print('waiting', flush=True)
    await asyncio.Event().wait()

agent = Agentor('A', tools=[wait_in_a_thread, wait_on_the_loop], store={store!r})
"""
WAYS = {
    "sync": "agent.run('hi', run_id='r')\n",
    "async": "asyncio.run(agent.arun('hi', run_id='r'))\n",
    "stream": """
async def read():
    async for event in agent.astream('hi', run_id='r'):
        pass
asyncio.run(read())
""",
}
PROMPT_S = 10.0  # on a busy machine; what hangs would hang for good


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", ["runs/", "runs.db"])
def test_ctrl_c_during_a_model_call_ends_the_program_and_leaves_the_run_resumable(
    start: Start, tmp_path: Path, way: str, path: str
) -> None:
    gate = Gate()
    with FakeServer([faults.held(says("late"), gate), says("Hello.")], strict=False) as server:
        program = start(
            AGENT.format(store=path) + WAYS[way],
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="test",
        )
        gate.wait_until_reached()
        program.interrupt()
        began = time.monotonic()
        code, _, err = program.ends()
        assert time.monotonic() - began < PROMPT_S
        assert code in (-2, 130, 1)
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert "never retrieved" not in err
        server.wait_for(lambda server: server.requests[0].disconnected)
        with_store = Agentor(
            "A", base_url=server.base_url, api_key="test", store=str(tmp_path / path) + "/" * (path[-1] == "/")
        )  # fmt: skip
        assert with_store.resume("r").final_output == "Hello."
        with_store.close()


@pytest.mark.parametrize("tool", ["wait_in_a_thread", "wait_on_the_loop"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", ["runs/", "runs.db"])
def test_ctrl_c_during_a_tool_ends_the_program_and_leaves_the_run_resumable(
    start: Start, tmp_path: Path, tool: str, way: str, path: str
) -> None:
    with FakeServer([calls((tool, {})), says("Hello.")]) as server:
        program = start(
            AGENT.format(store=path) + WAYS[way],
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="test",
        )
        assert program.line() == "waiting"
        program.interrupt()
        began = time.monotonic()
        code, _, err = program.ends()
        assert time.monotonic() - began < PROMPT_S
        assert code in (-2, 130, 1)
        assert err.rstrip().endswith("KeyboardInterrupt")
        store = str(tmp_path / path) + "/" * (path[-1] == "/")
        agent = Agentor("A", base_url=server.base_url, api_key="test", store=store)
        result = agent.resume("r")
        agent.close()
    assert (result.final_output, result.status) == ("Hello.", "completed")


def test_after_ctrl_c_the_same_program_can_go_on_with_the_run(start: Start) -> None:
    gate = Gate()
    with FakeServer([faults.held(says("late"), gate), says("Hello.")], strict=False) as server:
        program = start(
            AGENT.format(store="runs.db") + "try:\n    agent.run('hi', run_id='r')\n"
            "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
            "print(agent.resume('r').final_output)\n",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="test",
        )
        gate.wait_until_reached()
        program.interrupt()
        assert program.ends() == (0, "interrupted\nHello.\n", "")


def test_a_sync_tool_that_hangs_does_not_keep_the_program_from_ending(start: Start) -> None:
    script = (
        "import threading\n"
        "from agentor import Agentor, function_tool\n"
        "from agentor.testing import ScriptedModel, calls, says\n"
        "@function_tool(timeout_s=0.05)\n"
        "def hang() -> str:\n"
        "    '''Hang.'''\n"
        "    threading.Event().wait()\n"
        "agent = Agentor('A', tools=[hang], model=ScriptedModel([calls(('hang', {})), says('Gave up.')]))\n"
        "print(agent.run('hi').final_output)\n"
    )
    program = start(script)
    try:
        assert program.ends(within_s=20) == (0, "Gave up.\n", "")
    except subprocess.TimeoutExpired:
        pytest.fail("the program does not end")


def test_an_exit_in_the_middle_of_runs_on_other_threads_is_an_exit(start: Start) -> None:
    gate = Gate()
    with FakeServer([faults.held(says("late"), gate)], strict=False) as server:
        program = start(
            "import threading\n"
            "from agentor import Agentor\n"
            "agent = Agentor('A', store='runs.db')\n"
            "threading.Thread(target=lambda: agent.run('hi', run_id='r'), daemon=True).start()\n"
            "input()\n",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="test",
        )
        gate.wait_until_reached()
        assert program.process.stdin is not None
        program.process.stdin.write("\n")
        program.process.stdin.flush()
        code, _, err = program.ends(within_s=20)
    assert (code, err) == (0, "")


def test_a_reply_that_cannot_be_used_is_told_in_the_sync_callers_own_thread(
    tmp_path: Path,
) -> None:
    agent = Agentor("A", model=ScriptedModel([says("I was cu", finish_reason="length")]))
    agent.store = FileStore(tmp_path)
    with pytest.raises(ModelError, match="I was cu"):
        agent.run("hi")


@pytest.mark.parametrize("way_out", ["SystemExit(3)", "KeyboardInterrupt()"])
@pytest.mark.parametrize("where", ["model", "tracer", "store"])
def test_nothing_that_a_run_calls_can_stop_the_loop_that_later_sync_calls_need(
    start: Start, way_out: str, where: str
) -> None:
    """In a process of its own, since a stopped loop would hang every sync call after it."""
    program = start(f"""
import faulthandler
faulthandler.dump_traceback_later(15, exit=True)
from agentor import Agentor, MemoryStore
from agentor.testing import ScriptedModel, says

def leave(*args, **kwargs):
    raise {way_out}

class Tracer:
    def collector(self, *args, **kwargs):
        return self
    def handle(self, event):
        pass
    export = leave

class Store(MemoryStore):
    append = append_many = leave

def echo():
    return ScriptedModel(lambda messages: says(messages[-1]["content"]))

try:
    Agentor(
        "A",
        model=ScriptedModel([{way_out}]) if {where!r} == "model" else echo(),
        store=Store() if {where!r} == "store" else None,
    ).run("hi", tracing=Tracer() if {where!r} == "tracer" else None)
except BaseException as error:
    print(type(error).__name__)
print(Agentor("A", model=echo()).run("still here").final_output)
""")
    code, out, _ = program.ends(within_s=30)
    assert (code, out.splitlines()[-1:]) == (0, ["still here"])
