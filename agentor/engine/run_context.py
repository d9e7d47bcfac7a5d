"""What a tool may know of the run that calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from agentor.engine.db import NO_DB, NO_OUTBOX, Db, ToolOutbox

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)  # so that a bare `RunContext` is complete for a type checker
else:
    from typing import TypeVar

    T = TypeVar("T")


@dataclass(frozen=True)
class RunContext(Generic[T]):
    """Given to a tool that has a parameter annotated `RunContext` (or `RunContext[Deps]`, `RunContext | None`).

    The model neither sees nor fills that parameter. A field is None where there is nothing to say: a run
    without a store has no `run_id`, a tool called by hand no `call_id`. `db` and `outbox` are for transactional tools;
    elsewhere their use is a `ConfigError`.
    """

    context: T | Any = (
        None  # whatever the program passed along: a database, a user, a settings object
    )
    run_id: str | None = None
    call_id: str | None = None
    idempotency_key: str | None = None  # the same each time one call is tried again
    args: dict[str, Any] | None = None  # of the call, as written or changed
    db: Db = NO_DB  # of a transactional tool: its own tables in the store's file
    outbox: ToolOutbox = (
        NO_OUTBOX  # of a transactional tool: what is to be delivered once it is committed
    )
