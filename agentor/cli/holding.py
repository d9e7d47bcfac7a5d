"""Who works on a run now, for the verbs that tell what could be done with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agentor.cli import console
from agentor.cli.plain import one_line
from agentor.cli.wording import advised
from agentor.engine.store.protocol import Holder, NamesHolder
from agentor.engine.store.summary import UNFINISHED
from agentor.plan import Plan


def holder_of(store: object, run_id: str) -> Holder | None:
    """None: nobody, or the store cannot tell."""
    return store.holder(run_id) if isinstance(store, NamesHolder) else None


def who(holder: Holder) -> str:
    """Which process it is, and until when it need not say so again; without an end, until it lets go or dies."""
    name = one_line(holder.owner.split("/")[0], 80)
    if holder.expires_at is None:
        return name
    return f"{name} until {console.time_of_day(holder.expires_at)}"


def running_now(run_id: str, holder: Holder) -> str:
    """One line that says why a resume would be refused at this moment, whatever the plan is."""
    return (
        f"run {run_id} is running now, by {who(holder)}: a resume is refused until that has ended"
    )


def plan_as_dict(plan: Plan, holder: Holder | None) -> dict[str, Any]:
    """As JSON, in the words that the other verbs have for the status and for what to do, and with who works on the run."""
    worker = None if holder is None else asdict(holder)
    told = {"status": plan.status or UNFINISHED, "worker": worker}
    return {**plan.to_dict(), **told, "problems": [advised(problem) for problem in plan.problems]}
