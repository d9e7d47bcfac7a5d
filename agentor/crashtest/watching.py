"""In the child: the store and the tools tell a watch what they do, and the watch kills the process at its point."""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agentor.crashtest.journal import Journal, Kind
from agentor.crashtest.points import Point
from agentor.crashtest.recorded import Asked
from agentor.engine.events import Event
from agentor.engine.run_context import RunContext
from agentor.engine.store.protocol import Lease
from agentor.engine.store.sqlite import SQLiteStore
from agentor.engine.store.sqlite_transact import SQLiteTransaction
from agentor.engine.tools import InvalidArgumentsError, Tool


class Watch:
    """Counts what the process does, writes it into the journal, and dies where it is told to."""

    def __init__(self, journal: Journal, dies_at: Point | None = None) -> None:
        self._journal = journal
        self._dies_at = dies_at
        self._counts: Counter[Kind] = Counter()
        self._lock = threading.Lock()  # tools run in threads

    def commits(self, events: Sequence[Event]) -> Callable[[Future[None]], None]:
        """Note that the events are about to be committed; what to call when that is done."""
        text = what_is_in(events)
        number = self._note("commit", text=text)
        self._die_at(Point("before commit", number), text)

        def committed(outcome: Future[None]) -> None:
            if not outcome.cancelled() and outcome.exception() is None:
                self._journal.write("committed", number, text=text)
                self._die_at(Point("after commit", number), text)

        return committed

    def started(self, call: Call) -> None:
        """One call is one start, whatever of it tells so first."""
        with self._lock:
            is_first, call.has_started = not call.has_started, True
        if is_first:
            self._note("start", **call.facts)

    def returned(self, call: Call, failed: bool) -> None:
        number = self._note("return", failed=failed, **call.facts)
        self._die_at(Point("after return", number), call.facts["tool"])

    def _note(self, kind: Kind, **facts: Any) -> int:
        with self._lock:
            self._counts[kind] += 1
            number = self._counts[kind]
            self._journal.write(kind, number, **facts)
        return number

    def _die_at(self, point: Point, text: str) -> None:
        if point == self._dies_at:
            self._journal.write("killed", point.number, text=f"{point} ({text})")
            os.kill(os.getpid(), signal.SIGKILL)


def what_is_in(events: Sequence[Event]) -> str:
    """The events of a commit in few words: "generation, tool_call search + pay"."""
    named = [
        (kind, " + ".join(event.name for event in group if event.name))
        for kind, group in itertools.groupby(events, lambda event: event.type)
    ]
    return ", ".join(f"{kind} {names}".rstrip() for kind, names in named)


class WatchedStore(SQLiteStore):
    """Tells a watch of each commit that appends events. Leases and questions are commits too, but no boundary: what
    follows from them is appended."""

    def __init__(self, path: str, watch: Watch, **settings: Any) -> None:
        super().__init__(path, **settings)
        self._deaths = watch

    def submit(
        self, run_id: str, events: Sequence[Event], lease: Lease | None = None
    ) -> Future[None]:
        committed = self._deaths.commits(events)
        future = super().submit(run_id, events, lease)
        future.add_done_callback(committed)
        return future

    def transact(
        self, run_id: str, lease: Lease | None = None, limit_s: float = 5.0
    ) -> SQLiteTransaction:
        transaction = super().transact(run_id, lease, limit_s)
        commit, watch = transaction.commit, self._deaths

        def watched(events: Sequence[Event]) -> Future[None]:
            committed = watch.commits(events)
            future = commit(events)
            future.add_done_callback(committed)
            return future

        transaction.commit = watched  # type: ignore[method-assign]
        return transaction


@dataclass(slots=True)
class Call:
    """One call of a tool, under way. `facts` say which, in each of its marks: they are taken before the tool has hold of
    the context, and may make something else of it."""

    facts: dict[str, Any]
    has_started: bool = False

    @classmethod
    def of(cls, tool: str, context: Any) -> Call:
        context = context if isinstance(context, RunContext) else RunContext()
        _, args = Asked.of(tool, context.args)
        key = context.idempotency_key
        return cls({"tool": tool, "call_id": context.call_id, "key": key, "args": args})


_CALL: ContextVar[Call | None] = ContextVar("agentor_crashtest_call", default=None)


def watch_tools(tools: Mapping[str, Tool], watch: Watch) -> None:
    """Have each tool tell when its work begins and when its result is there, or its failure.

    It begins where `invoke` is entered, so that a call whose arguments do not fit is none; of a tool with a `call` of its
    own already there, since what that does before it comes to `invoke`, and whether it does, nobody knows.
    """
    for tool in tools.values():
        changes = {
            "call": _watched_call(tool, watch),
            "invoke": _watched_invoke(tool.invoke, watch),
        }
        for (
            name,
            function,
        ) in changes.items():  # frozen, and the agent's parts hold this very object
            object.__setattr__(tool, name, function)


def _watched_call(tool: Tool, watch: Watch) -> Callable[..., Any]:
    perform = tool.call
    works_itself = type(tool).call is not Tool.call or "call" in vars(tool)

    async def call(args: Any, context: Any = None) -> str:
        current = Call.of(tool.name, context)
        token = _CALL.set(current)
        failed, fitted = True, True
        try:
            if works_itself:
                watch.started(current)
            text = await perform(args, context)
            failed = False
        except InvalidArgumentsError:
            fitted = False
            raise
        finally:
            _CALL.reset(token)
            if fitted:  # at the latest: its `invoke` may be another one by now
                watch.started(current)
            if current.has_started:
                watch.returned(current, failed)
        return text

    return call


def _watched_invoke(invoke: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def enter() -> None:
        if (call := _CALL.get()) is not None:  # else the program calls its own function
            watch.started(call)

    async def invoke_async(*args: Any, **keywords: Any) -> Any:
        enter()
        return await invoke(*args, **keywords)

    def invoke_sync(*args: Any, **keywords: Any) -> Any:
        enter()
        return invoke(*args, **keywords)

    called = getattr(type(invoke), "__call__", None)  # noqa: B004  # of an object that can be called
    is_async = inspect.iscoroutinefunction(invoke) or inspect.iscoroutinefunction(called)
    return invoke_async if is_async else invoke_sync
