"""What a tool says of its effect on the world, and what is known of a call that may have happened.

A call that was started and has no result is *in doubt*: the work was broken off somewhere between the two. Only the tool can
know what a second start would do, so it says so when it is declared:

    not given, "read"   harmless to ask again       a half-finished batch is rewound
    "idempotent"        safe to start again with the same ctx.idempotency_key
    "transactional"     writes only through ctx.db, in the store's file: effect and result are one commit
    "once"              must not be started twice for one call: reconcile(ctx) may find out what happened
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from agentor.engine.batch import Batch, stricter
from agentor.engine.request import Call
from agentor.engine.run_context import RunContext
from agentor.errors import ConfigError

Effect: TypeAlias = Literal["read", "idempotent", "transactional", "once"]
OnDoubt: TypeAlias = Literal["tell", "park"]

EFFECTS: Final = ("read", "idempotent", "transactional", "once")


def may_not_repeat(before: str | None, today: str | None) -> bool:
    """Whether a call without a result must not simply be started again, by what the log and today's code say of it.

    One that was started as transactional did not happen. One that was started otherwise may have, although its tool
    is transactional by now.
    """
    if before == "transactional":
        return False
    return today == "transactional" or stricter(before, today) == "once"


def must_not_start(batch: Batch, call: Call, today: str | None) -> bool:
    """Whether a call that may have happened must not simply be started. `today`: what its tool declares now.

    One that a fork has inherited unclaimed, or claimed by a tool that was transactional then, may be started by the run it was
    forked from at any moment. What goes for it is today's declaration alone; a transactional one is each branch's own.
    """
    if batch.origin is not None and today == "once":
        return True
    return call.position in batch.started and may_not_repeat(
        batch.effects.get(call.position), today
    )


@dataclass(frozen=True, slots=True)
class Happened:
    """The call took effect, and this is its result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The call took no effect: it may be started."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say whether the call took effect."""


Verdict: TypeAlias = Happened | DidNotHappen | Unknown


def check_effect(
    name: str, effect: Any, reconcile: Any, on_doubt: Any, needs_approval: Any
) -> None:
    """`ConfigError` if a tool's declarations cannot be meant."""
    if effect is not None and effect not in EFFECTS:
        raise ConfigError(f"tool {name!r}: effect is one of {', '.join(EFFECTS)}, not {effect!r}")
    if reconcile is not None and (
        effect != "once" or not _takes(reconcile, 1) or _yields(reconcile)
    ):
        raise ConfigError(
            f"tool {name!r}: reconcile is a function of the RunContext, for a tool with effect='once'"
        )
    if on_doubt not in ("tell", "park"):
        raise ConfigError(f"tool {name!r}: on_doubt is 'tell' or 'park', not {on_doubt!r}")
    if on_doubt == "park" and effect not in _DOUBTFUL:
        raise ConfigError(
            f"tool {name!r}: on_doubt='park' is for a tool that must not be started twice for one call, and with "
            f"effect={effect!r} one in doubt is simply asked for or started again: declare effect='once'"
        )
    if not isinstance(needs_approval, bool) and not _decides_at_once(needs_approval):
        raise ConfigError(
            f"tool {name!r}: needs_approval is True, False or a function of (ctx, args) that is not async, "
            f"not {needs_approval!r}"
        )


# A transactional call is in doubt where its tool was no transactional one yet when it was started.
_DOUBTFUL: Final = ("once", "transactional")


def _takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many positional arguments, as far as it tells."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # written in C, and says nothing
        return True
    return True


def _decides_at_once(predicate: Any) -> bool:
    return (
        _takes(predicate, 2)
        and not _yields(predicate)
        and not _is(inspect.iscoroutinefunction, predicate)
    )


def _yields(function: Any) -> bool:
    return _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function)


def _is(check: Callable[[Any], bool], function: Any) -> bool:
    """Of a function, or of an object that can be called."""
    return check(function) or check(getattr(type(function), "__call__", None))  # noqa: B004


def check_transactional(name: str, invoke: Any, context_param: str | None) -> None:
    """`ConfigError` if a function cannot work inside a transaction."""
    if _is(inspect.iscoroutinefunction, invoke) or _is(inspect.isasyncgenfunction, invoke):
        raise ConfigError(
            f"tool {name!r}: a transactional tool is a plain function, not async: while it runs everything else that "
            "writes waits, so it must not wait for anything but its own statements"
        )
    if context_param is None:
        raise ConfigError(
            f"tool {name!r}: a transactional tool writes through ctx.db, so it needs a parameter `ctx: RunContext`"
        )


NO_VERDICT: Final = "reconcile answers Happened(result), DidNotHappen() or Unknown(), not "


async def find_out(reconcile: Callable[[RunContext], Any] | None, context: RunContext) -> Verdict:
    """What `reconcile` says of a call in doubt. Its exceptions come through; no answer of ours is `Unknown`."""
    if reconcile is None:
        return Unknown()
    verdict = reconcile(context)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    if isinstance(verdict, Happened | DidNotHappen | Unknown):
        return verdict
    raise TypeError(f"{NO_VERDICT}{verdict!r}")
