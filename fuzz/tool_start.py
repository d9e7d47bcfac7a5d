"""A tool begins: what it was given, compared with what the file says at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentor.engine.run_context import RunContext
from fuzz.evidence import ToolStart
from fuzz.ledger import Log
from fuzz.tools import CAREFUL, ONCE

if TYPE_CHECKING:
    from fuzz.worker import Worker


def tool_start(worker: Worker, ctx: RunContext, name: str, given: dict[str, Any]) -> ToolStart:
    """`given`: the arguments as the tool's function has them."""
    assert ctx.run_id is not None
    assert ctx.call_id is not None
    worker.world.ledger.refresh()
    log = worker.world.ledger.logs.get(ctx.run_id) or Log()
    seq, position = batch_seq(ctx), int(str(ctx.idempotency_key).rsplit(":", 1)[1])
    batch = log.batch(seq)
    return ToolStart(
        worker=worker.name,
        run_id=ctx.run_id,
        call_id=ctx.call_id,
        name=name,
        key=str(ctx.idempotency_key),
        is_once=name in ONCE,
        is_careful=name in CAREFUL,
        claimed=batch is not None and position in batch.started,
        rejected=log.was_rejected(seq, ctx.call_id),
        args=given if given == ctx.args else {"given": given, "told": ctx.args},
        recorded_args=log.recorded_args(seq, ctx.call_id),
        consented_args=log.consented_args(seq, ctx.call_id),
        asked_by=log.bodies[seq - 1] if batch is not None else None,
        position=position,
        answered=log.has_result(seq, ctx.call_id),
        consents=log.consents(seq, ctx.call_id),
        unsaved=ctx.run_id in worker.unsaved,
        just_woken=worker.has_just_woken,
    )


def batch_seq(ctx: RunContext) -> int:
    """The seq of the generation that asked for the call."""
    return int(str(ctx.idempotency_key).rsplit(":", 2)[1])
