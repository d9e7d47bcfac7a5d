"""What tools do in a simulation: answer, fail and hang, by seed. In a calm world nothing fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from agentor import DidNotHappen, Happened, Unknown, function_tool
from agentor.engine.batch import DECLARED
from agentor.engine.run_context import RunContext
from fuzz.bank import transfer

if TYPE_CHECKING:
    from fuzz.worker import Worker

HANG_S: Final = 40.0  # longer than a lease
TOOL_TIMEOUT_S: Final = 45.0


@function_tool
async def look(ctx: RunContext, number: int) -> str:
    """Answers soon."""
    await _work(ctx, "look", number, mean_s=0.5)
    return _said(ctx, f"seen {number}")


@function_tool
async def wander(ctx: RunContext, number: int) -> str:
    """Takes its time, sometimes more than a lease, sometimes for ever."""
    await _work(ctx, "wander", number, mean_s=8.0, hangs=0.05)
    return _said(ctx, f"walked {number}")


@function_tool
async def stumble(ctx: RunContext, number: int) -> str:
    """Fails every other time."""
    await _work(ctx, "stumble", number, mean_s=0.2, fails=0.5)
    return _said(ctx, f"got {number}")


@function_tool(effect="idempotent")
async def save(ctx: RunContext, number: int) -> str:
    """May be started again with the same key."""
    await _work(ctx, "save", number, mean_s=3.0)
    return _said(ctx, f"saved {number}")


@function_tool(effect="once")
async def send(ctx: RunContext, number: int) -> str:
    """Must not be started twice for one call; what is in doubt stays in doubt."""
    await _work(ctx, "send", number, mean_s=5.0)
    return _said(ctx, f"sent {number}")


async def _was_wired(ctx: RunContext) -> Happened | DidNotHappen | Unknown:
    """The other side often knows."""
    worker: Worker = ctx.context
    if not worker.world.calm and worker.rng.random() < 0.6:
        return Unknown()
    if not worker.world.evidence.has_started(ctx):
        return DidNotHappen()
    worker.world.evidence.words += 1
    return Happened(_said(ctx, f"wired, says the bank ({worker.world.evidence.words})"))


@function_tool(effect="once", reconcile=_was_wired, on_doubt="park")
async def wire(ctx: RunContext, number: int) -> str:
    """Must not be started twice for one call; the other side can be asked, and at last a person."""
    await _work(ctx, "wire", number, mean_s=5.0)
    return _said(ctx, f"wired {number}")


@function_tool(effect="once", on_doubt="park")
async def remit(ctx: RunContext, number: int) -> str:
    """Must not be started twice for one call; only a person can find out."""
    await _work(ctx, "remit", number, mean_s=5.0)
    return _said(ctx, f"remitted {number}")


@function_tool(needs_approval=True)
async def pay(ctx: RunContext, number: int) -> str:
    """Waits for a person's consent."""
    await _work(ctx, "pay", number, mean_s=1.0)
    return _said(ctx, f"paid {number}")


PLAIN_TOOLS: Final = (look, wander, stumble, save, send, wire, remit, pay)
TOOLS: Final = (*PLAIN_TOOLS, transfer)
ONCE: Final = frozenset({"send", "wire", "remit"})
EFFECTS: Final = {tool.name: tool.effect for tool in TOOLS}
CAREFUL: Final = frozenset(t.name for t in TOOLS if t.effect in DECLARED or t.needs_approval)
PAYMENTS: Final = ONCE | {"pay"}  # what moves money outside: as it begins, whatever comes of it


async def _work(
    ctx: RunContext, name: str, number: int, mean_s: float, hangs: float = 0.0, fails: float = 0.0
) -> None:
    """Tell the world, then take the time it takes. `hangs` and `fails` are probabilities."""
    worker: Worker = ctx.context
    with worker.using(ctx, name, number):
        rng = worker.rng
        if worker.world.calm:
            return
        if rng.random() < hangs:
            await asyncio.sleep(2 * HANG_S)
        await asyncio.sleep(rng.expovariate(1 / mean_s))
        if rng.random() < fails:
            raise RuntimeError("database unavailable")


def _said(ctx: RunContext, text: str) -> str:
    """What becomes of a call in a tool's own words, noted before anybody records it."""
    worker: Worker = ctx.context
    return worker.world.evidence.said_of(str(ctx.idempotency_key), text)
