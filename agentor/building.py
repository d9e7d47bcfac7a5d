"""What every run of an agent is given, put together from the arguments of `Agentor` and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from agentor import inputs
from agentor.definition import describe
from agentor.engine import strict_json
from agentor.engine.asking import name_of
from agentor.engine.budget import Budget
from agentor.engine.models import ModelSettings
from agentor.engine.recorder import Durability
from agentor.engine.responses import Model
from agentor.engine.runner import AgentSpec, HalfFinished
from agentor.engine.store.protocol import Store
from agentor.engine.tools import Tool
from agentor.engine.transact import check_transactional
from agentor.errors import ConfigError
from agentor.output import OutputType


def build_spec(
    name: str,
    instructions: str | None,
    model: Model,
    settings: ModelSettings | None,
    tools: Mapping[str, Tool],
    output: OutputType | None,
    store: Store | None,
    *,
    max_turns: int,
    max_tool_failures: int,
    context: Any,
    durability: Durability,
    tool_timeout_s: float | None,
    half_finished: HalfFinished | None,
    budget: int | Budget | None,
    deadline_s: float | None,
    transaction_limit_s: float | None,
    atomic_batches: bool,
) -> AgentSpec:
    """`ConfigError` names an argument that cannot be, or two that do not go together."""
    _check_together(tools, store, durability, transaction_limit_s, atomic_batches)
    defining = _defining(settings)
    shape = output.schema if output else None
    defined = describe(instructions, name_of(model), tools, shape, defining)
    return AgentSpec(
        agent=name,
        models=[model],
        tools=tools,
        output=output,
        max_turns=inputs.read_count("max_turns", max_turns),
        max_tool_failures=inputs.read_count("max_tool_failures", max_tool_failures),
        context=context,
        durability=inputs.read_choice("durability", durability, get_args(Durability)),
        tool_timeout_s=inputs.read_seconds("tool_timeout_s", tool_timeout_s),
        half_finished=inputs.read_choice(
            "half_finished", half_finished, (None, *get_args(HalfFinished))
        ),
        budget=inputs.checked_budget(budget, [name_of(model)]),
        deadline_s=inputs.read_seconds("deadline_s", deadline_s),
        transaction_limit_s=check_transactional(
            tools, store, inputs.read_seconds("transaction_limit_s", transaction_limit_s)
        ),
        atomic_batches=atomic_batches,
        definition=strict_json.digest(defined),
        defined=defined,
    )


def _check_together(
    tools: Mapping[str, Tool],
    store: Store | None,
    durability: Durability,
    transaction_limit_s: float | None,
    atomic_batches: bool,
) -> None:
    """Options that promise something which the rest of the agent cannot give are refused."""
    if durability == "strict" and store is None:
        raise ConfigError(
            "durability='strict' ends a run that cannot be saved, and this agent has no store to save it in: give it one, "
            "Agentor(store='runs.db')"
        )
    if not isinstance(atomic_batches, bool):
        raise ConfigError(f"atomic_batches is True or False, not {atomic_batches!r}")
    if any(tool.effect == "transactional" for tool in tools.values()):
        return
    for name, is_given in (
        ("atomic_batches", atomic_batches),
        ("transaction_limit_s", transaction_limit_s is not None),
    ):
        if is_given:
            raise ConfigError(
                f"{name} is for transactional tools, and this agent has none: declare "
                "@function_tool(effect='transactional'), or leave it out"
            )


def _defining(settings: ModelSettings | None) -> dict[str, Any]:
    """The settings that make the agent what it is, but for those left as they are by default. Headers and extra bodies
    may hold secrets."""
    usual = vars(ModelSettings())
    return {
        name: value
        for name, value in vars(settings or ModelSettings()).items()
        if value != usual[name] and name != "unknown" and not name.startswith("extra_")
    }
