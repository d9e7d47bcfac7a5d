"""Transactional calls: what their tools write and their results are one commit.

The tool runs while a transaction of the store is open, and writes through it. If it returns, the result joins the
transaction and all of it is committed; if it raises or takes too long, the transaction is rolled back first and only the
failure is recorded. So a transactional call without a result did not happen.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from agentor.engine import clock
from agentor.engine.batch import UNDONE, Batch
from agentor.engine.calling import Calling
from agentor.engine.recorder import Recorder, uninterrupted
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.result_text import error_text
from agentor.engine.staged import Staged
from agentor.engine.store.transacting import Transaction, Transacts
from agentor.engine.tools import Tool, ToolOutcome
from agentor.errors import ConfigError, StatementError

LIMIT_S: Final = 5.0
BACKSTOP_S: Final = 1.0  # after the tool's own limit the store gives up by itself

Outcomes = list[tuple[Call, ToolOutcome]]


async def transact(
    calling: Calling,
    recorder: Recorder,
    state: RunState,
    batch: Batch,
    calls: Sequence[Call],
    commit: Callable[[Transaction, Staged], Awaitable[None]],
    record: Callable[[Staged], Awaitable[None]],
) -> None:
    """Run the calls one after another in one transaction, and have what came of them written: by `commit` with what
    they wrote, or by `record` if that was rolled back.

    `StoreError`: it could not be begun, or its commit failed; then the log says whether all of it happened or nothing.
    `LeaseError`.
    """
    transaction = await recorder.begin(max(map(calling.limit_s, calls)) + BACKSTOP_S)
    try:
        outcomes = await _perform(calling, transaction, batch, calls)
        if all(outcome.error is None for _, outcome in outcomes):
            await uninterrupted(commit(transaction, _staged(calling, state, outcomes)))
            return
    except (
        StatementError
    ) as error:  # it is over: by time, by its own doing, or it cannot be committed
        now = clock.now()
        told = error_text(error)
        outcomes = _all_failed(calls, calls[-1], ToolOutcome(f"Error: {told}", told, now, now))
    finally:
        transaction.abort()
    await record(_staged(calling, state, outcomes))


async def _perform(
    calling: Calling, transaction: Transaction, batch: Batch, calls: Sequence[Call]
) -> Outcomes:
    outcomes: Outcomes = []
    for call in calls:
        outcome = await calling.perform_in(transaction, batch, call)
        if outcome.error is not None:
            return _all_failed(calls, call, outcome)
        outcomes.append((call, outcome))
    return outcomes


def _all_failed(calls: Sequence[Call], failed: Call, outcome: ToolOutcome) -> Outcomes:
    """One call failed, and with it the others of its transaction, which is not their tools' failure."""
    told = f"Error: this was not done: it was one transaction with a call of {failed.name!r} that failed"
    undone = ToolOutcome(told, UNDONE, outcome.started_at, outcome.ended_at)
    return [(call, outcome if call is failed else undone) for call in calls]


def _staged(calling: Calling, state: RunState, outcomes: Outcomes) -> Staged:
    staged = Staged(state)
    for call, outcome in outcomes:
        calling.add_outcome(staged, call, outcome)
    return staged


def check_transactional(tools: Mapping[str, Tool], store: object, limit_s: float | None) -> float:
    """Seconds that a transaction may take; `ConfigError` if the tools and the store do not go together."""
    longest_s = getattr(store, "lease_ttl_s", math.inf) / 2  # renewals of leases wait for it too
    transactional = [tool for tool in tools.values() if tool.effect == "transactional"]
    if transactional and not isinstance(store, Transacts):
        has = "no store" if store is None else f"a {type(store).__name__}"
        raise ConfigError(
            f"tool {transactional[0].name!r} is transactional, and this agent has {has}: its writes and its result "
            "can be one commit only in a store that has transactions, such as SQLiteStore"
        )
    limits = {f"timeout_s of tool {t.name!r}": t.timeout_s for t in transactional}
    for name, seconds in {"transaction_limit_s": limit_s, **limits}.items():
        if seconds is not None and seconds > longest_s:
            raise ConfigError(
                f"{name} is {seconds:g} s, and everything that writes waits for a transaction: "
                f"it must be at most half of the store's lease_ttl_s, {longest_s:g} s"
            )
    return min(LIMIT_S, longest_s) if limit_s is None else limit_s
