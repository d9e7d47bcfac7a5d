"""What came of going on with a run: the answer on standard output, and how it came about on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
from pydantic_core import to_jsonable_python

from agentor import blocking
from agentor.cli import console
from agentor.cli.plain import exact, one_line, plain
from agentor.cli.timeline import call_text, tokens, where_it_stands
from agentor.cli.wording import counted, in_words, typed
from agentor.consent import pending_of
from agentor.engine import events as ev
from agentor.engine.events import PendingCall, RunResult
from agentor.engine.store.protocol import Store
from agentor.recorded import recorded


def tell(result: RunResult, as_json: bool, target: str) -> None:
    """The outcome, then how it ends: with exit code 1 unless there is an answer."""
    if as_json:
        console.print_json(_as_dict(result))
    else:
        _tell_in_words(result)
        _tell_who_is_waited_for(result, target)
    if result.status != "completed":
        click.get_current_context().exit(1)


@contextlib.contextmanager
def told_if_it_fails(as_json: bool) -> Iterator[list[RunResult]]:
    """A run that somebody puts there is printed as JSON if what is done meanwhile raises: its outcome is one, too."""
    failed: list[RunResult] = []
    try:
        yield failed
    except BaseException:
        for result in failed if as_json else ():
            console.print_json(_as_dict(result))
        raise


def left_behind(store: Store, run_id: str, error: BaseException) -> RunResult:
    """The run as its log has it, when going on with it has raised. `RunNotFoundError`, `LogCorruptError`, `StoreError`."""
    state, events = blocking.wait_for(lambda: recorded(store, run_id))
    return RunResult(
        status=where_it_stands(state),
        run_id=run_id,
        events=events,
        usage=state.usage,
        error=state.error or in_words(error),
        pending=pending_of(state, run_id),
    )


def tell_where_it_branched(result: RunResult, at: int | None) -> None:
    """A fork leaves its parent where no batch of tools is half-finished: perhaps before where it was asked to."""
    fork = ev.last_of(result.events, ev.FORK)
    if at is not None and fork is not None and fork.forked_at != at:
        told = f"Branched off after seq {fork.forked_at}, not {at}: there, a batch of tools is half-finished."
        click.echo(told, err=True)


def _tell_in_words(result: RunResult) -> None:
    if isinstance(result.final_output, str):
        click.echo(plain(result.final_output))
    elif result.final_output is not None:
        console.print_json(to_jsonable_python(result.final_output))
    error = f": {result.error}" if result.error else ""
    cost = " · ".join(filter(None, [result.status, tokens(result.usage)]))
    click.echo(one_line(f"run {result.run_id} {cost}{error}", 500), err=True)
    if result.unsaved:
        click.echo(f"{counted(result.unsaved, 'event')} could not be saved.", err=True)


def _tell_who_is_waited_for(result: RunResult, target: str) -> None:
    """The calls that wait, uncut as in `agentor pending`, each with the commands that decide about it."""
    for call in result.pending:
        doubt = (
            f"  (in doubt: it may have happened; key {call.idempotency_key})"
            if call.in_doubt
            else ""
        )
        written = exact(call_text(call.name, call.args))
        click.echo(f"  waits for a person: {exact(call.call_id)}  {written}{doubt}", err=True)
        _tell_how_to_decide(str(result.run_id), call)
    if result.pending:
        click.echo(f"Go on: {typed('resume', target, str(result.run_id))}", err=True)


def _tell_how_to_decide(run_id: str, call: PendingCall) -> None:
    which = run_id, exact(call.call_id)
    seen = "--question", str(call.question)
    click.echo(f"    Decide: {typed('approve', *which, options=seen)}", err=True)
    reject = typed("reject", *which, options=["--reason", "TEXT", *seen])
    click.echo(f"        or: {reject}", err=True)
    if call.in_doubt:
        settle = typed("settle", *which, options=["--result", "TEXT", *seen])
        click.echo(f"        or: {settle}", err=True)


def _as_dict(result: RunResult) -> dict[str, Any]:
    fork = ev.last_of(result.events, ev.FORK)
    return {
        "run_id": result.run_id,
        "status": result.status,
        "output": to_jsonable_python(result.final_output),
        "error": result.error,
        "usage": result.usage.to_dict(),
        "unsaved": result.unsaved,
        "pending": [_shown(call) for call in result.pending],
        "forked_from": fork.forked_from if fork else None,
        "forked_at": fork.forked_at if fork else None,
    }


def _shown(call: PendingCall) -> dict[str, Any]:
    return {name: value for name, value in asdict(call).items() if name != "run"}
