"""A bank in the runs' own file. What a transfer does and the result of its call are one commit, so that money is never
lost, made, or moved by a call whose result nobody has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import apsw

from agentor import function_tool
from agentor.engine.run_context import RunContext
from fuzz import threads

if TYPE_CHECKING:
    from fuzz.worker import Worker

ACCOUNTS: Final = 3
OPENING: Final = 100  # on each account
TRANSFER: Final = "transfer"
RECEIPT: Final = "receipt"

_FOUNDED: Final = "SELECT 1 FROM sqlite_schema WHERE name = 'bank_transfers'"
_FOUND: Final = """
CREATE TABLE bank_accounts (account INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT;
CREATE TABLE bank_transfers (
    number INTEGER PRIMARY KEY, run_id TEXT, call_key TEXT, source INTEGER, target INTEGER, amount INTEGER) STRICT;
"""
_OPEN: Final = "INSERT INTO bank_accounts VALUES (?, ?)"
_MOVE: Final = "UPDATE bank_accounts SET balance = balance + ? WHERE account = ?"
_NOTE: Final = """
INSERT INTO bank_transfers (run_id, call_key, source, target, amount) VALUES (?, ?, ?, ?, ?)
"""
_BALANCES: Final = "SELECT account, balance FROM bank_accounts"
_TRANSFERS: Final = "SELECT run_id, call_key, source, target, amount FROM bank_transfers"


@function_tool(effect="transactional")
def transfer(ctx: RunContext, number: int) -> str:
    """Moves money, at times slowly, at times in vain."""
    worker: Worker = ctx.context
    db, source, target = ctx.db, number % ACCOUNTS, (number + 1) % ACCOUNTS
    amount = number % 7 + 1
    with worker.using(ctx, TRANSFER, number):
        if not db.execute(_FOUNDED):
            db.execute(_FOUND)
            db.executemany(_OPEN, [(account, OPENING) for account in range(ACCOUNTS)])
        db.execute(_MOVE, (-amount, source))
        _hesitate(worker)
        db.execute(_MOVE, (amount, target))
        db.execute(_NOTE, (ctx.run_id, ctx.idempotency_key, source, target, amount))
        ctx.outbox.put(RECEIPT, {"run": ctx.run_id, "amount": amount})
        _hesitate(worker)
    return worker.world.evidence.said_of(str(ctx.idempotency_key), f"moved {amount}")


def _hesitate(worker: Worker) -> None:
    """Take some time with the transaction open; now and then more than it is given, or fail."""
    if worker.world.calm:
        return
    chance = worker.rng.random()
    if chance < 0.05:
        raise RuntimeError("account frozen")
    threads.sleep(8.0 if chance < 0.08 else worker.rng.expovariate(2.0))


@dataclass(frozen=True, slots=True)
class Books:
    """What the file says of the bank. `transfers` counts them by run and call."""

    balances: dict[int, int] = field(default_factory=dict)
    expected: dict[int, int] = field(default_factory=dict)  # by the transfers noted
    transfers: Counter[tuple[str, str]] = field(default_factory=Counter)


def books(connection: apsw.Connection) -> Books:
    """The books as they stand; empty if no transfer has ever been committed."""
    if connection.execute(_FOUNDED).get is None:
        return Books()
    expected = dict.fromkeys(range(ACCOUNTS), OPENING)
    transfers: Counter[tuple[str, str]] = Counter()
    rows: list[Any] = connection.execute(_TRANSFERS).fetchall()
    for run_id, key, source, target, amount in rows:
        expected[source] -= amount
        expected[target] += amount
        transfers[run_id, key] += 1
    balances: list[Any] = connection.execute(_BALANCES).fetchall()
    return Books(dict(balances), expected, transfers)
