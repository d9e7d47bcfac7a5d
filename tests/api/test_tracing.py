"""Tracing: off unless asked for, told everything when it is, and never able to break a run."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from agentor import Agentor, ConfigError
from agentor.testing import ScriptedModel, says
from tests.engine.agents import ANSWER, agent, types


class Collected:
    def __init__(self, name: str, group_id: str | None, metadata: Any) -> None:
        self.name, self.group_id, self.metadata = name, group_id, metadata
        self.events: list[Any] = []

    def handle(self, event: Any) -> None:
        self.events.append(event)


class Tracer:
    def __init__(self) -> None:
        self.made: list[Collected] = []
        self.exported: list[Collected] = []
        self.threads: list[str] = []

    def collector(
        self, workflow_name: str, group_id: str | None = None, metadata: Any = None
    ) -> Collected:
        self.made.append(Collected(workflow_name, group_id, metadata))
        return self.made[-1]

    def export(self, collector: Collected) -> None:
        self.threads.append(threading.current_thread().name)
        self.exported.append(collector)


def test_tracing_is_off_unless_it_is_asked_for() -> None:
    tracer = Tracer()
    agent(tracer=tracer).run("hi")
    agent(tracer=tracer, enable_tracing=False).run("hi", tracing=False)
    assert tracer.made == []


def test_an_agent_with_tracing_enabled_exports_each_run_once_with_all_its_events(
    store: Any,
) -> None:
    tracer = Tracer()
    result = agent(store, tracer=tracer, enable_tracing=True).run("hi")
    [collected] = tracer.exported
    assert collected.name == "Weather Agent"
    assert collected.events == result.events


def test_group_and_metadata_reach_the_tracer() -> None:
    tracer = Tracer()
    agent(tracer=tracer, enable_tracing=True, trace_group_id="g", trace_metadata={"team": "a"}).run(
        "hi"
    )
    assert (tracer.made[0].group_id, tracer.made[0].metadata) == ("g", {"team": "a"})


def test_enabling_tracing_without_a_tracer_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="tracer"):
        Agentor("A", model=ScriptedModel([]), enable_tracing=True)


@pytest.mark.parametrize("call", ["run", "resume", "fork"])
def test_tracing_one_call_without_a_tracer_is_a_value_error_before_anything_happens(
    store: Any, call: str
) -> None:
    made = agent(store)
    made.run("hi", run_id="r")
    before = store.list_runs()
    given = "hi" if call == "run" else "r"
    with pytest.raises(ConfigError, match="tracer"):
        getattr(made, call)(given, tracing=True)
    assert store.list_runs() == before


@pytest.mark.parametrize("bad", ["yes", 1, object()])
def test_what_is_no_tracer_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="tracing"):
        agent().run("hi", tracing=bad)


def test_false_keeps_one_run_from_leaving(store: Any) -> None:
    tracer = Tracer()
    made = agent(store, tracer=tracer, enable_tracing=True)
    first = made.run("hi", tracing=False)
    made.fork(str(first.run_id), tracing=False)
    made.resume(str(first.run_id), tracing=False)
    assert tracer.made == []


def test_true_traces_one_run_with_the_agents_tracer() -> None:
    tracer = Tracer()
    made = agent(tracer=tracer)
    made.run("hi", tracing=True)
    made.run("hi")
    assert len(tracer.exported) == 1


def test_a_tracer_for_one_run_takes_the_place_of_the_agents() -> None:
    own, other = Tracer(), Tracer()
    made = agent(tracer=own, enable_tracing=True)
    made.run("hi", tracing=other)
    assert (len(own.made), len(other.exported)) == (0, 1)
    agent().run("hi", tracing=other)
    assert len(other.exported) == 2


def test_each_run_of_a_batch_is_traced_by_itself() -> None:
    tracer = Tracer()
    made = Agentor("A", model=ScriptedModel(lambda m: says(m[-1]["content"])), tracer=tracer)
    made.run(["a", "b", "c"], tracing=True)
    assert sorted(c.events[-1].text for c in tracer.exported) == ["a", "b", "c"]


def test_a_resumed_run_and_a_fork_are_traced(store: Any) -> None:
    tracer = Tracer()
    for event in agent().run("hi").events[:4]:
        store.append("r", event)
    agent(store, tracer=tracer).resume("r", tracing=True)
    agent(store, ScriptedModel([says("x")]), tracer=tracer).fork("r", "more", tracing=True)
    assert [c.events[-1].type for c in tracer.exported] == ["run_end", "run_end"]


def test_a_stream_is_traced_without_its_text_pieces() -> None:
    tracer = Tracer()

    async def main() -> list[Any]:
        return [event async for event in agent().astream("hi", tracing=tracer)]

    events = asyncio.run(main())
    recorded = [event for event in events if event.type != "text_delta"]
    assert tracer.exported[0].events == recorded
    assert len(events) > len(recorded)


def test_a_failed_run_is_exported_too_with_its_end(store: Any) -> None:
    tracer = Tracer()
    with pytest.raises(RuntimeError):
        agent(store, ScriptedModel([RuntimeError("x")])).run("hi", tracing=tracer)
    [collected] = tracer.exported
    assert types(collected.events) == ["run_start", "run_end"]
    assert collected.events[-1].status == "failed"


def test_a_cancelled_run_is_exported_too() -> None:
    tracer = Tracer()

    async def main() -> None:
        stream = agent().astream("hi", tracing=tracer)
        async for event in stream:
            if event.type == "tool_result":
                break
        await stream.aclose()

    asyncio.run(main())
    assert len(tracer.exported) == 1


def test_export_happens_on_a_worker_thread() -> None:
    tracer = Tracer()

    async def main() -> None:
        await agent().arun("hi", tracing=tracer)

    asyncio.run(main())
    assert tracer.threads != [threading.main_thread().name]


class Failing(Tracer):
    def __init__(self, where: str, error: BaseException | None = None) -> None:
        super().__init__()
        self.where = where
        self.error = error or RuntimeError("no trace")

    def collector(self, *args: Any, **kwargs: Any) -> Any:
        if self.where == "collector":
            raise self.error
        made = super().collector(*args, **kwargs)
        if self.where == "handle":
            made.handle = self._fail
        if self.where == "no collector":
            return None
        return made

    def export(self, collector: Any) -> None:
        if self.where == "export":
            raise self.error
        super().export(collector)

    def _fail(self, event: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("where", ["collector", "handle", "export"])
async def test_a_tracer_ends_neither_the_process_nor_a_run_whatever_it_raises(
    where: str, error: BaseException
) -> None:
    beside = asyncio.create_task(agent().arun("hi"))
    result = await agent().arun("hi", tracing=Failing(where, error))
    assert (result.final_output, result.status) == (ANSWER, "completed")
    assert (await beside).final_output == ANSWER


@pytest.mark.parametrize("where", ["collector", "handle", "export", "no collector"])
def test_a_failing_tracer_never_breaks_a_run_and_is_told_in_the_log(
    store: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentor"):
        result = agent(store).run("hi", tracing=Failing(where))
    assert (result.final_output, result.status) == (ANSWER, "completed")
    assert "tracer" in caplog.text


@pytest.mark.parametrize("where", ["collector", "handle", "export", "no collector"])
def test_a_failing_tracer_does_not_hide_the_models_exception(where: str) -> None:
    with pytest.raises(ConnectionError):
        agent(model=ScriptedModel([ConnectionError("x")])).run("hi", tracing=Failing(where))
