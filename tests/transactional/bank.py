"""A bank in the file of its agents' runs: money is only ever moved, and every move has one recorded call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from agentor import Agentor, RunContext, SQLiteStore, function_tool
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.testing import ScriptedModel, calls, says

ACCOUNTS, EACH = 4, 100
Transfer = tuple[int, int, int]  # from, to, amount
Plan = Sequence[Sequence[Transfer]]  # turns of transfers asked for together


@function_tool(effect="transactional")
def transfer(ctx: RunContext, source: int, target: int, amount: int) -> str:
    """Move money."""
    ctx.db.execute("UPDATE account SET amount = amount + ? WHERE number = ?", (amount, target))
    ctx.db.execute("UPDATE account SET amount = amount - ? WHERE number = ?", (amount, source))
    entry = (ctx.idempotency_key, ctx.run_id, source, target, amount)
    ctx.db.execute("INSERT INTO moved VALUES (?, ?, ?, ?, ?)", entry)
    ctx.outbox.put("receipt", {"amount": amount})
    [(left,)] = ctx.db.execute("SELECT amount FROM account WHERE number = ?", (source,))
    if left < 0:
        raise ValueError("there is not enough on the account")
    return f"{left} left"


def teller(messages: list[dict[str, Any]]) -> Any:
    """Asks for the transfers of its plan, which is what the user said; keeps no place."""
    plan = json.loads(next(m["content"] for m in messages if m["role"] == "user"))
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == len(plan):
        return says("done")
    names = ("source", "target", "amount")
    return calls(*(("transfer", dict(zip(names, each, strict=True))) for each in plan[turn]))


def clerk(store: Any, **settings: Any) -> Agentor:
    settings = {"tools": [transfer], "max_tool_failures": 1000, **settings}
    return Agentor("Clerk", model=ScriptedModel(teller), store=store, **settings)


def order(plan: Plan) -> str:
    return json.dumps(plan)


def opened(path: Path, synchronous: str = "FULL") -> SQLiteStore:
    """The store, with an open bank in its file."""
    store = SQLiteStore(path, synchronous=synchronous)
    look(
        path,
        "CREATE TABLE account (number INTEGER PRIMARY KEY, amount INTEGER NOT NULL);"
        "CREATE TABLE moved (key TEXT PRIMARY KEY, run_id TEXT, source, target, amount)",
    )
    rows = ", ".join(f"({number}, {EACH})" for number in range(ACCOUNTS))
    look(path, f"INSERT INTO account VALUES {rows}")
    return store


def look(path: Path, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """What the file says, whoever else has it open."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    try:
        rows: list[Any] = connection.execute(sql, values).fetchall()
        return rows
    finally:
        connection.close()


def audit(store: SQLiteStore) -> int:
    """Check that the books and the logs tell one story; how many transfers there were."""
    path = Path(store.path)
    assert look(path, "SELECT sum(amount) FROM account") == [(ACCOUNTS * EACH,)]
    balance = Counter(dict.fromkeys(range(ACCOUNTS), EACH))
    moved = look(path, "SELECT key, source, target, amount FROM moved")
    for _, source, target, amount in moved:
        balance[source] -= amount
        balance[target] += amount
    assert look(path, "SELECT number, amount FROM account ORDER BY 1") == sorted(balance.items())
    recorded = [key for run_id in store.list_runs() for key in done(run_id, store.load(run_id))]
    assert sorted(recorded) == sorted(key for key, *_ in moved)
    assert len(set(recorded)) == len(recorded)
    assert store.integrity_check() == []
    return len(moved)


def done(run_id: str, log: list[Event]) -> list[str]:
    """The keys of the transfers that a log says were made."""
    assert verify(log) == []
    born = f"{run_id}.{log[0].nonce}"
    asked = {
        event.call_id: f"{born}:{generation.seq}:{position}"
        for generation in log
        if generation.type == "generation"
        for position, event in enumerate(e for e in log if _follows(e, generation, log))
    }
    results = [event for event in log if event.type == "tool_result"]
    assert len({event.call_id for event in results}) == len(results)
    return [asked[event.call_id] for event in results if event.error is None]


def _follows(event: Event, generation: Event, log: list[Event]) -> bool:
    """Whether a tool_call belongs to this generation."""
    if event.type != "tool_call" or event.seq < generation.seq:
        return False
    between = [e for e in log if generation.seq < e.seq < event.seq and e.type == "generation"]
    return not between
