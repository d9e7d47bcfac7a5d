"""What people do to runs: `pending`, `approve`, `reject`, `settle` and `cancel`. A store is all they need, not the agent."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import click
from rich.text import Text

from agentor import blocking, inputs
from agentor.amended import check_by_log
from agentor.cli import console
from agentor.cli.choosing import runs_of
from agentor.cli.options import (
    Failure,
    Verb,
    WholeNumber,
    debug_option,
    json_option,
    store_option,
    told,
)
from agentor.cli.overview import DAMAGED, Overview
from agentor.cli.plain import exact, one_line
from agentor.cli.stores import existing_store
from agentor.cli.timeline import between, call_text
from agentor.cli.wording import advised, typed
from agentor.consent import decide_call, only_question, pending_call, pending_of, settle_call
from agentor.engine import clock, strict_json
from agentor.engine.events import APPROVAL, Event, PendingCall
from agentor.engine.replay import replay
from agentor.engine.store.protocol import Store, check_run_id
from agentor.errors import AgentorError, LeaseHeldError, LogCorruptError, NotWaitingError
from agentor.recorded import recorded
from agentor.stopping import cancel_run

_by_option = click.option(
    "--by", metavar="NAME", help="Who decides, for the log.  [default: your login name]"
)
_question_option = click.option(
    "--question",
    type=WholeNumber(min=1),
    metavar="N",
    help="The question you have seen, as `agentor pending` numbers it: no other is answered.",
)


class _Arguments(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer clicks only
    """A JSON object."""

    name = "json"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        try:
            args = strict_json.loads(value)
        except ValueError as error:
            self.fail(f"it is no JSON: {error}", param, ctx)
        if not isinstance(args, dict):
            self.fail('arguments are a JSON object, such as {"amount": 40}', param, ctx)
        return inputs.read_arguments(args)


@click.command(
    cls=Verb,
    short_help="List the calls that wait for a person.",
    epilog="agentor pending\nagentor pending --store runs.db --json",
)
@store_option()
@json_option
@debug_option
def pending(store_path: str | None, as_json: bool) -> None:
    """List the calls of paused runs that wait for a person to decide, with all of their arguments."""
    damaged: list[str] = []
    with existing_store(store_path) as store:
        waiting = list(_waiting(store, damaged))
    if as_json:
        console.print_json([_as_dict(row, call, since) for row, call, since in waiting])
    else:
        _print_waiting(waiting)
    for problem in damaged:
        click.echo(one_line(advised(problem), 500), err=True)
    if damaged:
        click.get_current_context().exit(1)


_Waiting = tuple[Overview, PendingCall, float | None]


def _waiting(store: Store, damaged: list[str]) -> Iterator[_Waiting]:
    for row in runs_of(store, ["paused"]):
        if row.status == DAMAGED:
            damaged.append(row.error or row.run_id)
            continue
        try:
            log = store.load(row.run_id)
            # Without events it was deleted meanwhile.
            calls = pending_of(replay(log, row.run_id), row.run_id) if log else []
        except LogCorruptError as error:
            damaged.append(str(error))
            continue
        asked = {event.call_id: event.started_at for event in log if event.type == APPROVAL}
        yield from ((row, call, asked.get(call.call_id)) for call in calls)


def _as_dict(row: Overview, call: PendingCall, since: float | None) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "call_id": call.call_id,
        "name": call.name,
        "args": call.args,
        "reason": call.reason,
        "in_doubt": call.in_doubt,
        "question": call.question,
        "idempotency_key": call.idempotency_key,
        "since": since,
    }


def _print_waiting(waiting: list[_Waiting]) -> None:
    """Nothing is cut and nothing is hidden: somebody is going to consent to what stands here."""
    if not waiting:
        click.echo("No call waits for a decision.")
        return
    out, run_id = console.console(), None
    for row, call, since in waiting:
        if row.run_id != run_id:
            run_id = row.run_id
            head = Text(f"run {run_id}", style="bold")
            head.append(f"  {one_line(row.agent or '', 80)}", style="not bold")
            out.print(head, soft_wrap=True)
        line = Text(f"  {exact(call.call_id)}  ").append(_written(call), style="yellow")
        asked = f"  {_since(since)}  question {call.question}"
        out.print(line.append(asked, style="dim"), soft_wrap=True)
        if call.reason:
            out.print(Text(f"    {exact(call.reason)}", style="dim"), soft_wrap=True)
        if call.in_doubt:
            out.print(
                Text(f"    key {exact(call.idempotency_key or '')}", style="dim"), soft_wrap=True
            )
    which, seen = ("RUN", "CALL"), ("--question", "N")
    approve = typed("approve", *which, options=seen)
    reject = typed("reject", *which, options=[*seen, "--reason", "TEXT"])
    click.echo(f"Decide: {approve}, or {reject}", err=True)
    if any(call.in_doubt for _, call, _ in waiting):
        settle = typed("settle", *which, options=[*seen, "--result", "TEXT"])
        click.echo(
            "Of one that may have taken effect, find out first: its key is what its tool gives as ctx.idempotency_key. "
            f"If it did: {settle}",
            err=True,
        )


def _written(call: PendingCall) -> str:
    return exact(call_text(call.name, call.args))


def _since(since: float | None) -> str:
    if since is None:
        return ""
    return f"since {console.moment(since)} ({between(since, clock.now())})"


@click.command(
    cls=Verb,
    short_help="Consent to a call that waits.",
    epilog="agentor approve RUN CALL --question 3\n"
    'agentor approve RUN CALL --args \'{"order": "A-17", "amount": 20}\' --by ada@example.com',
)
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL")
@click.option(
    "--args",
    "args",
    type=_Arguments(),
    metavar="JSON",
    help="Consent with these arguments instead of all that the model gave.",
)
@_question_option
@_by_option
@store_option()
@json_option
@debug_option
def approve(
    run_id: str,
    call_id: str,
    args: dict[str, Any] | None,
    question: int | None,
    by: str | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Consent to a call that waits, as it is or with other arguments. A resume, or a worker, then starts it.

    RUN, CALL and N are those that `agentor pending` shows. A call that was decided upon before, and whose process died after
    its start, is asked about again: then N must say which question you have seen. --args names all arguments, also those that stay as they are; the
    schema in the run's log says whether they fit. Exit code 1 if it is not the one that waits, or if the call does not wait
    or was decided already.
    """
    decision = Event(APPROVAL, status="approved", by=_name(by), args=args)

    async def decide(store: Store) -> PendingCall:
        known = await recorded(store, run_id)
        if args is not None:
            waiting = await pending_call(store, run_id, call_id, known)
            check_by_log(known[1], waiting.name, args)
        seen = question or await only_question(store, run_id, call_id)
        return await decide_call(store, run_id, call_id, decision, question=seen, known=known)

    call = _recorded(store_path, run_id, decide)
    if args is not None:
        call = dataclasses.replace(call, args=args)
    _print_decided(run_id, call, "approved", _name(by), as_json)


@click.command(
    cls=Verb,
    short_help="Refuse a call that waits.",
    epilog='agentor reject RUN CALL --reason "The customer has withdrawn"\n'
    'agentor reject RUN CALL --reason "There is no such tool any more" --give-up',
)
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL")
@click.option("--reason", metavar="TEXT", required=True, help="What the model is told.")
@click.option(
    "--give-up",
    is_flag=True,
    help="Also a call that does not wait: approved and not started since, or its tool is gone.",
)
@_question_option
@_by_option
@store_option()
@json_option
@debug_option
def reject(
    run_id: str,
    call_id: str,
    reason: str,
    give_up: bool,
    question: int | None,
    by: str | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Refuse a call that waits. When the run goes on, the model is told who refused, and why.

    RUN, CALL and N are those that `agentor pending` shows. Exit code 1 if the call does not wait or was decided already,
    or if another question than N waits. With --give-up any call of the run will do that has no answer yet and that
    nobody is at work on.
    """
    decision = Event(
        APPROVAL, status="rejected", by=_name(by), reason=strict_json.clean_text(reason)
    )
    call = _recorded(
        *(store_path, run_id),
        lambda s: decide_call(*(s, run_id, call_id, decision), question=question, give_up=give_up),
    )
    _print_decided(run_id, call, "rejected", _name(by), as_json)


@click.command(
    cls=Verb,
    short_help="Say that a call in doubt did happen, and its result.",
    epilog='agentor settle RUN CALL --result "paid, receipt 4711" --by ada@example.com',
)
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL")
@click.option("--result", metavar="TEXT", required=True, help="What the call would have given.")
@_question_option
@_by_option
@store_option()
@json_option
@debug_option
def settle(
    run_id: str,
    call_id: str,
    result: str,
    question: int | None,
    by: str | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Say of a call that waits because nobody knew what became of it: it did happen, and this is its result.

    It is recorded as the call's own result, and the call is never started again. RUN, CALL and N are those that
    `agentor pending` shows. Exit code 1 if the call does not wait, was decided already, or was never started, or if another
    question than N waits.
    """
    call = _recorded(
        *(store_path, run_id),
        lambda s: settle_call(s, run_id, call_id, result, _name(by), question=question),
    )
    _print_decided(run_id, call, "settled", _name(by), as_json)


def _recorded(
    store_path: str | None, run_id: str, decide: Callable[[Store], Coroutine[Any, Any, PendingCall]]
) -> PendingCall:
    check_run_id(run_id)
    with existing_store(store_path) as store, _refusals(run_id):
        return blocking.wait_for(lambda: decide(store))


def _print_decided(run_id: str, call: PendingCall, status: str, by: str, as_json: bool) -> None:
    if as_json:
        shown = {"run_id": run_id, "call_id": call.call_id, "name": call.name, "args": call.args}
        console.print_json({**shown, "status": status, "by": by})
        return
    click.echo(f"{status} by {one_line(by, 80)}: {exact(call_text(call.name, call.args))}")
    if call.in_doubt and status == "approved":
        click.echo("It may have taken effect before, and is started once more.", err=True)
    click.echo(f"A worker goes on with it, or: {typed('resume', 'APP', run_id)}", err=True)


@click.command(
    cls=Verb,
    short_help="End a run, wherever it is worked on.",
    epilog="agentor cancel RUN\nagentor cancel RUN --by ada@example.com",
)
@click.argument("run_id", metavar="RUN")
@_by_option
@store_option()
@json_option
@debug_option
def cancel(run_id: str, by: str | None, store_path: str | None, as_json: bool) -> None:
    """End a run, wherever it is worked on. What is recorded stays, and `agentor resume` can go on with it.

    A run that a worker has is ended by that worker, within a second. Exit code 1 if the run had ended already.
    """
    check_run_id(run_id)
    with existing_store(store_path) as store, _refusals(run_id):
        outcome = blocking.wait_for(lambda: cancel_run(store, run_id, _name(by)))
    if as_json:
        console.print_json({"run_id": run_id, "outcome": outcome})
    else:
        click.echo(_OUTCOMES[outcome].format(run_id), err=outcome == "over")
    if outcome == "over":
        click.get_current_context().exit(1)


_OUTCOMES = {
    "cancelled": "Run {} is cancelled.",
    "asked": "Run {} is being worked on; its worker was asked to end it.",
    "over": "Run {} had ended already.",
}


@contextlib.contextmanager
def _refusals(run_id: str) -> Iterator[None]:
    """What the store says no to is no wrong usage: somebody was quicker, or is busy."""
    try:
        yield
    except NotWaitingError as error:
        raise told(error) from error
    except LeaseHeldError as error:
        busy = AgentorError(f"a worker is busy with run {run_id!r}: try again when it pauses")
        raise told(error, lambda _: Failure(busy)) from error


def _name(by: str | None) -> str:
    if by:
        return strict_json.clean_text(by)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"uid {os.getuid()}"
