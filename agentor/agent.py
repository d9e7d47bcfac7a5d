"""Agentor: instructions, a model, tools and a store, and the calls that start, resume, fork and watch runs.

Everything is written once, as coroutines; the synchronous calls wait for them on the process's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, get_args

from agentor import inputs
from agentor.beginning import note_begun
from agentor.blocking import twin
from agentor.building import build_spec
from agentor.decisions import Decisions
from agentor.delivery import Handler, deliver
from agentor.engine.asking import name_of
from agentor.engine.budget import Budget
from agentor.engine.daemon_thread import in_thread
from agentor.engine.events import Event, RunResult
from agentor.engine.models import ModelSettings, as_model
from agentor.engine.outbox import Audience, Nobody
from agentor.engine.recorder import Durability
from agentor.engine.responses import Model
from agentor.engine.runner import AgentSpec, HalfFinished
from agentor.engine.store.protocol import Closes, Store, new_run_id
from agentor.engine.tools import check_tools
from agentor.engine.transact import check_transactional
from agentor.errors import ConfigError
from agentor.fallbacks import Fallbacks
from agentor.launch import Launch, OnChange, with_turns
from agentor.output import OutputType
from agentor.plan import Plan
from agentor.streaming import StreamItem, items, live
from agentor.tracing import Tracer, choose_tracer, traced
from agentor.worker import Worker, WorkPlan, WorkReport


class Agentor(Decisions):
    """An agent whose runs survive the process.

    Args:
        name: The agent's name, as it stands in the log.
        instructions: The system message of its runs.
        model: A model's name at an OpenAI-compatible endpoint, or any object with `complete`.
        tools: Functions, or what `function_tool` made of them.
        output_type: The type of the final answer: a pydantic model, a dataclass or a TypedDict.
        api_key: For a model given by name; default: the environment's OPENAI_API_KEY.
        model_settings: Temperature, timeouts and so on, for a model given by name.
        enable_tracing: Send every run to `tracer`.
        max_turns: Model calls before a run ends with status "max_turns".
        max_tool_failures: Failing calls before a tool is withdrawn.
        store: Where runs are recorded: a store, or a path ("runs.db" is SQLite, "runs/" one file per run).
        base_url: Endpoint of a model given by name; default: the environment's OPENAI_BASE_URL, else OpenAI.
        tracer: Where traces go; see `agentor.tracing.Tracer`.
        trace_group_id: Handed to the tracer.
        trace_metadata: Handed to the tracer.
        context: Handed to tools as `ctx.context`.
        durability: "best_effort": a run goes on when its events cannot be saved and says how many
            (`result.unsaved`), but starts no tool with a declared effect, or that needs approval: then it ends with a
            `StoreError`; "strict": it ends with a `StoreError` in any case.
        tool_timeout_s: Seconds after which a tool's call has failed, for tools without a timeout of their own.
        half_finished: What a resume does with a half-finished batch of tools, whatever they declare: "rewind" gives it
            up and asks the model again, "settle" goes on with it. Default: settle if a started call's tool declares an
            effect, else rewind.
        on_change: What a resume does when the agent is not the one the run began with: "warn" says so in the log of the
            program, "refuse" raises `ConfigError` with what has changed, "adopt" goes on.
        budget: Tokens, or a `Budget` of tokens and money, that a run may spend over all its segments; then it ends with
            status "budget".
        deadline_s: Seconds from a run's first start after which it ends with status "deadline", wherever it is.
        transaction_limit_s: Seconds that a transactional tool without a timeout of its own may take; default 5.
        atomic_batches: Transactional calls that the model asks for together are one commit: all of them, or none.

    Raises `ConfigError`, a ValueError, when the parts cannot work together.
    """

    def __init__(
        self,
        name: str,
        instructions: str | None = None,
        model: str | Model = "gpt-5-nano",
        tools: Iterable[Any] | None = None,
        output_type: Any = None,
        api_key: str | None = None,
        model_settings: ModelSettings | None = None,
        enable_tracing: bool = False,
        max_turns: int = 20,
        max_tool_failures: int = 2,
        store: Store | str | os.PathLike[str] | None = None,
        base_url: str | None = None,
        tracer: Tracer | None = None,
        trace_group_id: str | None = None,
        trace_metadata: dict[str, Any] | None = None,
        *,
        context: Any = None,
        durability: Durability = "best_effort",
        tool_timeout_s: float | None = None,
        half_finished: HalfFinished | None = None,
        on_change: OnChange = "warn",
        budget: int | Budget | None = None,
        deadline_s: float | None = None,
        transaction_limit_s: float | None = None,
        atomic_batches: bool = False,
    ) -> None:
        self.name = inputs.read_name(name)
        self.instructions = inputs.read_optional_text("instructions", instructions)
        self.tools = check_tools(tools or [])
        self.store = inputs.open_store(store)
        self._own_store: object = None if self.store is store else self.store
        self.context = context
        self._on_change: OnChange = inputs.read_choice("on_change", on_change, get_args(OnChange))
        endpoint = {"api_key": api_key, "base_url": base_url, "settings": model_settings}
        self.model = as_model(model, **endpoint)  # type: ignore[arg-type]
        self._given_model = model
        self._fallbacks = Fallbacks(endpoint)
        self._output = OutputType(output_type) if output_type not in (None, str) else None
        self._tracer = tracer
        self._traces = bool(enable_tracing and choose_tracer(True, tracer, enabled=True))
        self._trace_labels = (trace_group_id, trace_metadata)
        self._spec = build_spec(
            self.name,
            self.instructions,
            self.model,
            model_settings,
            self.tools,
            self._output,
            self.store,
            max_turns=max_turns,
            max_tool_failures=max_tool_failures,
            context=context,
            durability=durability,
            tool_timeout_s=tool_timeout_s,
            half_finished=half_finished,
            budget=budget,
            deadline_s=deadline_s,
            transaction_limit_s=transaction_limit_s,
            atomic_batches=atomic_batches,
        )

    # Runs ---------------------------------------------------------------------------------------------------------

    async def arun(
        self,
        input: Any,
        max_turns: int | None = None,
        fallback_models: Sequence[str | Model] | None = None,
        tracing: Any = None,
        run_id: str | None = None,
        *,
        limit_concurrency: int = 10,
    ) -> Any:
        """Run to the end of the segment.

        Args:
            input: What the user says, or a list of chat messages (`result.messages` plus a new one goes on with a
                conversation), or a list of strings: as many runs, side by side.
            max_turns: The turn budget of this run.
            fallback_models: Models that carry on with the same run when the one before is rate-limited or down.
            tracing: None as configured, False or True, or a tracer for this run only.
            run_id: The id to record it under; `RunExistsError` if it is taken.
            limit_concurrency: Of a list of strings, how many run at the same time.

        Returns:
            A `RunResult`; for a list of strings a list of results or exceptions, in order.

        Raises the model's own exception, after recording that the run failed; its notes name the run.
        """
        if inputs.is_batch(input):
            if run_id is not None:
                raise ConfigError("a list of inputs is several runs: run_id can name only one")
            return await self._batch(input, limit_concurrency, max_turns, fallback_models, tracing)
        messages = inputs.read_input(input)
        launch = self._launch(max_turns, fallback_models, tracing)
        note_begun(self.name)
        return await launch.run(messages, run_id)

    run = twin(arun)

    async def aresume(
        self,
        run_id: str,
        max_turns: int | None = None,
        tracing: Any = None,
        *,
        wait: bool | float = False,
    ) -> RunResult:
        """Go on with a run from the last thing that was saved, knowing only its id.

        A finished run is returned as it is: no model call, no tool. A half-finished batch of tools is rewound (the
        model decides again) or, if a tool of it declares an effect or needs consent, settled.

        Args:
            run_id: The run.
            max_turns: The turn budget of the new segment.
            tracing: As for `arun`.
            wait: What to do while another worker has the run: False raises `LeaseHeldError`, True waits until it is
                finished or free, a number waits that many seconds at most.

        Raises `RunNotFoundError` (a KeyError) if there is no such run, `ConfigError` (a ValueError) without a store.
        """
        wait_s = inputs.read_wait(wait)
        return await self._launch(max_turns, tracing=tracing).resume(run_id, wait_s)

    resume = twin(aresume)

    async def afork(
        self,
        run_id: str,
        input: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        fork_id: str | None = None,
        at: int | None = None,
        max_turns: int | None = None,
        tracing: Any = None,
    ) -> RunResult:
        """Branch a run into a new one. The parent is not touched, whatever state it is in.

        Args:
            run_id: The parent.
            input: What to go on with, written in the same commit as the fork. Without it an unfinished parent is
                finished on the fork and a finished one is copied without a model call.
            fork_id: The new run's id; `RunExistsError` (a ValueError) if it is taken, and nothing is copied.
            at: The last seq of the parent that the fork has, moved back to where no tool batch is half-finished. The
                `fork` event in `result.events` says where that is (`forked_at`).
            max_turns: The turn budget of the fork's continuation.
            tracing: As for `arun`.
        """
        messages = [] if input is None else inputs.read_input(input)
        note_begun(self.name)
        return await self._launch(max_turns, tracing=tracing).fork(run_id, messages, fork_id, at)

    fork = twin(afork)

    async def aresult(self, run_id: str) -> RunResult:
        """A run as its log has it, whatever state it is in, without going on with it. Writes nothing; a run without an
        end has the status "unfinished"."""
        return await self._launch(tracing=False).read(run_id)

    result = twin(aresult)

    async def aplan(self, run_id: str) -> Plan:
        """What `resume` would do now: calls to run, calls in doubt, whether the model is asked and paid again, and what
        has changed in the agent since. Writes nothing."""
        return await self._launch(tracing=False).plan(run_id)

    plan = twin(aplan)

    # Workers ------------------------------------------------------------------------------------------------------

    async def aenqueue(
        self, input: str | Sequence[Mapping[str, Any]], run_id: str | None = None
    ) -> str:
        """Write a run into the store for a worker to take; its id. Asks no model."""
        messages = inputs.read_input(input)
        note_begun(self.name)
        return await self._launch(tracing=False).enqueue(messages, run_id)

    enqueue = twin(aenqueue)

    def worker(self, **how: Any) -> Worker:
        """A worker for this agent's unfinished runs: `await worker.work()`, and `worker.stop()` from its loop.

        Keyword arguments are those of `agentor.worker.WorkPlan`: concurrency, newest_first, max_attempts, backoff_s,
        poll_s, until_idle, grace_s. Set `worker.watch` to be told how each attempt ends.
        """
        if self.store is None:
            raise ConfigError("a worker needs a store: Agentor(store='runs.db')")
        launch = dataclasses.replace(self._launch(), by_worker=True)
        return Worker(self.store, self.name, WorkPlan(**how), launch.take, launch.park)

    async def awork(self, /, **how: Any) -> WorkReport:
        """Work off the unfinished runs of the store until cancelled, or until idle if so asked. See `worker`."""
        return await self.worker(**how).work()

    work = twin(awork)

    async def adeliver(
        self, handler: Handler, *, until_idle: bool = True, claim_s: float = 60.0
    ) -> int:
        """Deliver what transactional tools have put into the store's outbox; how many letters that were.

        Every letter is delivered at least once, roughly in the order of the commits. Any number of processes may do
        this on one store.

        Args:
            handler: A function of (kind, payload, key), sync or async. When it returns, the letter is forgotten; when it
                raises, the letter is tried again later, after 1, 2, 4 ... 300 seconds. `key` is the same each time.
            until_idle: Return when no letter is due, although some may wait for another try; else go on until cancelled.
            claim_s: Seconds after which a letter whose deliverer has said nothing is delivered by another.

        Raises `ConfigError` if the store keeps no letters.
        """
        return await deliver(self.store, handler, until_idle, claim_s)

    deliver = twin(adeliver)

    # Streams ------------------------------------------------------------------------------------------------------

    async def astream(
        self,
        input: str | Sequence[Mapping[str, Any]],
        max_turns: int | None = None,
        fallback_models: Sequence[str | Model] | None = None,
        tracing: Any = None,
        run_id: str | None = None,
    ) -> AsyncGenerator[Event]:
        """The events of a new run as they are recorded, and `text_delta` events as the answer arrives.

        Whoever stops reading stops the run, which stays as far as it is recorded and can be resumed.
        """
        messages = inputs.read_input(input)

        def run(audience: Audience) -> Coroutine[Any, Any, RunResult]:
            launch = self._launch(max_turns, fallback_models, tracing, audience)
            note_begun(self.name)
            return launch.run(messages, run_id)

        async with contextlib.aclosing(live(run)) as events:
            async for event in events:
                yield event

    async def stream_chat(
        self,
        input: str | Sequence[Mapping[str, Any]],
        serialize: bool = True,
        max_turns: int | None = None,
        fallback_models: Sequence[str | Model] | None = None,
        tracing: Any = None,
        run_id: str | None = None,
    ) -> AsyncGenerator[str | StreamItem]:
        """A new run as items to show: text as it arrives, tool calls and outputs, the answer.

        `serialize=False` gives `StreamItem`s, `True` the same as JSON text.
        """
        if run_id is None and self.store is not None:
            run_id = new_run_id()
        stream = self.astream(input, max_turns, fallback_models, tracing, run_id)
        async with contextlib.aclosing(items(stream, run_id)) as shown:
            async for item in shown:
                yield item.to_json() if serialize else item

    # Closing ------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close what this agent has opened: the connections of models given by name, and a store given by its path.

        A store or a model object that you made may serve others too: it stays open, and yours to close. `with` and
        `async with` close the agent at their end. Closing twice is fine; what runs meanwhile is not waited for.
        """
        own = [] if self.model is self._given_model else [self.model]
        for model in [*own, *self._fallbacks.by_name.values()]:
            if (close := getattr(model, "aclose", None)) is not None:
                await close()
        if isinstance(self._own_store, Closes):
            await in_thread(self._own_store.close, "store")

    close = twin(aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Agentor({self.name!r}, tools={list(self.tools)})"

    # Inside -------------------------------------------------------------------------------------------------------

    def _launch(
        self,
        max_turns: int | None = None,
        fallback_models: Sequence[str | Model] | None = None,
        tracing: Any = None,
        audience: Audience | None = None,
    ) -> Launch:
        tracer = choose_tracer(tracing, self._tracer, self._traces)
        spec = with_turns(self._spec, max_turns)
        models = [self.model, *self._fallbacks.of(fallback_models or ())]
        inputs.checked_budget(spec.budget, map(name_of, models))
        check_transactional(spec.tools, self.store, None)  # it may have another one by now
        return Launch(
            spec=AgentSpec(**{**spec.__dict__, "models": models}),
            store=self.store,
            instructions=self.instructions,
            output=self._output,
            audience=traced(audience or Nobody(), tracer, self.name, *self._trace_labels),
            on_change=self._on_change,
        )

    async def _batch(
        self,
        texts: Sequence[str],
        limit: int,
        max_turns: int | None,
        fallback_models: Sequence[str | Model] | None,
        tracing: Any,
    ) -> list[RunResult | BaseException]:
        room = asyncio.Semaphore(inputs.read_count("limit_concurrency", limit))

        async def one(text: str) -> RunResult:
            async with room:
                result: RunResult = await self.arun(text, max_turns, fallback_models, tracing)
                return result

        return await asyncio.gather(*map(one, texts), return_exceptions=True)
