"""What a transactional tool is given: `ctx.db` for its own tables, `ctx.outbox` for what is to follow from its call.

Both write into one transaction of the store's file, which is committed together with the call's result, or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from agentor.engine import strict_json
from agentor.errors import ConfigError, StatementError

if TYPE_CHECKING:
    from agentor.engine.store.transacting import Params, Row, Transaction

KIND_CHARS_MAX: Final = 100


class Db:
    """The program's own tables in the store's file, for as long as one call of a transactional tool runs.

    Begin, commit and rollback are not the tool's: if it returns, everything is committed with its result; if it
    raises, nothing is. The engine's tables (`agentor_*`) can be neither read nor written; reading them can be allowed
    (`SQLiteStore(tools_read_runs=True)`).
    """

    def __init__(self, transaction: Transaction | None = None) -> None:
        self._transaction = transaction

    def execute(self, sql: str, params: Params = ()) -> list[Row]:
        """Run SQL with bound values (`?` and a sequence, `:name` and a mapping); all rows, as tuples.

        `StatementError` says why a statement was refused; its own changes are undone, those before it stay.
        """
        return self._open().execute(_text(sql), _bound(params))

    def executemany(self, sql: str, params: Iterable[Params]) -> None:
        """Run SQL once for each set of values."""
        self._open().execute_many(_text(sql), [_bound(each) for each in params])

    def _open(self) -> Transaction:
        return _usable(self._transaction, "db")


class ToolOutbox:
    """What is to be delivered because of a call: at least once, if the call's result was committed, else never."""

    def __init__(self, transaction: Transaction | None = None, key: str = "") -> None:
        self._transaction = transaction
        self._key = key
        self._count = 0

    def put(self, kind: str, payload: Any) -> str:
        """Add a letter, and return the key that it will be delivered with.

        `kind` is a word of yours, `payload` what strict JSON can say. The first letter of a call has the call's
        idempotency key, the next ones that and "#2", "#3" ...: the same at each attempt at the call.
        """
        transaction = _usable(self._transaction, "outbox")
        if not isinstance(kind, str) or not 0 < len(kind) <= KIND_CHARS_MAX:
            raise ConfigError(f"a letter's kind is a word of yours, not {kind!r}")
        try:
            body = strict_json.dumps(strict_json.clean(payload))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the payload of a {kind!r} letter is no JSON: {error}") from error
        self._count += 1
        key = self._key if self._count == 1 else f"{self._key}#{self._count}"
        transaction.put(strict_json.clean_text(kind), body, key)
        return key


def _usable(transaction: Transaction | None, what: str) -> Transaction:
    if transaction is None:
        raise ConfigError(
            f"ctx.{what} is for a tool declared with effect='transactional', called by a run"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return transaction
    # Waiting for the disk here would stop everybody.
    raise StatementError(f"ctx.{what} cannot be used on an event loop", "forbidden")


def _text(sql: str) -> str:
    if isinstance(sql, str):
        return sql
    raise StatementError(f"SQL is text, not {type(sql).__name__}", "invalid")


def _bound(params: Params) -> Params:
    """The values, taken on the tool's own thread: whatever yields them must not run on the writer's."""
    if isinstance(params, Mapping):
        return dict(params)
    if isinstance(params, Iterable) and not isinstance(params, str | bytes):
        return tuple(params)
    raise StatementError(
        f"bound values are a sequence or a mapping, not {type(params).__name__}: write (value,)",
        "invalid",
    )


NO_DB: Final = Db()
NO_OUTBOX: Final = ToolOutbox()
