"""The verbs for workers and deploys: `enqueue`, `worker` and `rehearse`. They load the user's own agent."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import click
from rich.text import Text

from agentor.agent import Agentor
from agentor.cli import console
from agentor.cli.apart import output_of_ours
from agentor.cli.choosing import runs_of
from agentor.cli.holding import holder_of, plan_as_dict, running_now
from agentor.cli.loading import agent_argument, agent_store_option, agent_with_store
from agentor.cli.options import Seconds, Verb, WholeNumber, debug_option, json_option
from agentor.cli.overview import DAMAGED
from agentor.cli.plain import one_line, plain
from agentor.cli.signals import Stops
from agentor.cli.wording import advised, counted, noted
from agentor.engine import clock
from agentor.errors import LogCorruptError, RunNotFoundError
from agentor.plan import Plan
from agentor.worker import Step, WorkReport

_MAKE_STORE = "With --make-store the worker makes it, as `agentor enqueue` does"
_INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended


@click.command(
    cls=Verb,
    short_help="Write a run into the store for a worker.",
    epilog='agentor enqueue app.py:agent "How is the weather in London?"\nagentor enqueue app.py:agent "And in Paris?" --id paris',
)
@agent_argument
@click.argument("text", metavar="INPUT")
@click.option("--id", "run_id", metavar="ID", help="The run's id, instead of a made one.")
@agent_store_option
@json_option
@debug_option
def enqueue(
    target: str, text: str, run_id: str | None, store_path: str | None, as_json: bool
) -> None:
    """Write a run into the store for a worker to take, and print its id. No model is called.

    A store that is not there is made.
    """
    with (
        output_of_ours(as_json),
        agent_with_store(target, store_path, make_store=True) as agent,
    ):
        chosen = agent.enqueue(text, run_id)
    if as_json:
        console.print_json({"run_id": chosen, "agent": agent.name})
    else:
        click.echo(chosen)


@click.command(
    cls=Verb,
    short_help="Work off the unfinished runs of a store.",
    epilog="agentor worker app.py:agent\nagentor worker app.py:agent --store runs.db --concurrency 8\n"
    "agentor worker app.py:agent --until-idle --json",
)
@agent_argument
@click.option(
    "--concurrency",
    type=WholeNumber(min=1),
    metavar="N",
    default=4,
    show_default=True,
    help="Runs at the same time.",
)
@click.option("--newest-first", is_flag=True, help="Take the newest runs first, not the oldest.")
@click.option(
    "--max-attempts",
    type=WholeNumber(min=1),
    metavar="N",
    default=5,
    show_default=True,
    help="Attempts at one run, by all workers, before it is parked.",
)
@click.option(
    "--backoff",
    "backoff_s",
    type=Seconds(),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Pause before the second attempt; doubled each time, up to 5 minutes.",
)
@click.option(
    "--grace",
    "grace_s",
    type=Seconds(),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="After SIGTERM or Ctrl-C, what runs may go on for so long.",
)
@click.option("--until-idle", is_flag=True, help="End when nothing is left to do.")
@click.option("--make-store", is_flag=True, help="Make the store if it is not there.")
@agent_store_option
@json_option
@debug_option
def worker(
    target: str,
    store_path: str | None,
    as_json: bool,
    until_idle: bool,
    make_store: bool,
    **how: Any,
) -> None:
    """Take the unfinished runs of this agent whose worker has died, and those that were enqueued, and finish them.

    Any number of workers may share a store. Prints a line for each attempt (with --json, a JSON object). SIGTERM and
    Ctrl-C stop it: it takes nothing more, breaks off what still runs after --grace, and leaves that for others.
    Exit codes: 0 stopped by SIGTERM, or idle; 1 idle, and a run was parked or refused; 130 stopped by Ctrl-C.
    """
    stops = Stops(how["grace_s"])
    with (
        output_of_ours(as_json) as out,
        noted("^there is no store at", _MAKE_STORE),
        agent_with_store(target, store_path, make_store=make_store) as agent,
    ):
        work = agent.worker(until_idle=until_idle, **how)
        watch = functools.partial(_print_step_as_json, out) if as_json else _print_step
        work.watch = _of_this_command(watch)
        if not as_json:
            click.echo(f"Working for {one_line(agent.name, 80)!r}. Ctrl-C stops.", err=True)
        report = stops.run(work)
    if not as_json:
        click.echo(_summary(report), err=True)
    if stops.interrupted:
        click.get_current_context().exit(_INTERRUPTED)
    if until_idle and not stops.asked and (report.parked or report.failed):
        click.get_current_context().exit(1)


def _of_this_command(watch: Callable[[Step], None]) -> Callable[[Step], None]:
    """So that steps are told in the words of this command, in whatever thread the worker tells them."""
    verb = click.get_current_context()

    def told(step: Step) -> None:
        with verb.scope(cleanup=False):
            watch(step)

    return told


def _print_step(step: Step) -> None:
    line = Text(f"{console.moment(clock.now())}  ", style="dim")
    line.append(f"{one_line(step.run_id, 128)}  attempt {step.attempt}  ", style="not dim")
    line.append_text(console.status_text(step.outcome))
    if step.error:
        line.append(f"  {one_line(advised(step.error), 500)}", style="not dim")
    out = console.console()
    out.print(line, soft_wrap=True)
    out.file.flush()


def _print_step_as_json(out: TextIO, step: Step) -> None:
    error = None if step.error is None else advised(step.error)
    told = {**dataclasses.asdict(step), "error": error, "at": clock.now()}
    click.echo(json.dumps(told), file=out)


def _summary(report: WorkReport) -> str:
    unnamed = Counter(report.unnamed)
    failed = len(report.failed) + unnamed.pop("failed", 0)
    counts = Counter(report.finished.values()) + unnamed
    counts += Counter({"parked": len(report.parked), "failed or refused": failed})
    return ", ".join(f"{count} {what}" for what, count in counts.items()) or "Nothing was finished."


@click.command(
    cls=Verb,
    short_help="Check unfinished runs against today's code.",
    epilog="agentor rehearse app.py:agent\nagentor rehearse app.py:agent --store runs.db --json",
)
@agent_argument
@agent_store_option
@json_option
@debug_option
def rehearse(target: str, store_path: str | None, as_json: bool) -> None:
    """Tell of each unfinished, failed or paused run of this agent what a resume with today's code would do.

    Nothing is called and nothing is written. Exit code 1 if the resume of any run would be refused, since a tool that
    it needs is gone, the agent is built with on_change="refuse" and has changed, or its budget meets a model without a
    price; or if workers would leave any alone, since this agent lacks tools that it had: a gate before a deploy.
    """
    with output_of_ours(as_json), agent_with_store(target, store_path) as agent:
        plans = list(_plans(agent))
        held = {plan.run_id: holder_of(agent.store, plan.run_id) for plan in plans}
    refused = [plan for plan in plans if plan.problems]
    left_alone = [plan for plan in plans if plan.left_alone and not plan.problems]
    if as_json:
        runs = [
            {**plan_as_dict(plan, held[plan.run_id]), "refused": bool(plan.problems)}
            for plan in plans
        ]
        console.print_json({"ok": not (refused or left_alone), "agent": agent.name, "runs": runs})
    else:
        _print_plans(plans, refused, left_alone)
        for run_id, holder in held.items():
            if holder is not None:
                click.echo(running_now(run_id, holder), err=True)
    if refused or left_alone:
        click.get_current_context().exit(1)


def _plans(agent: Agentor) -> Iterator[Plan]:
    assert agent.store is not None
    for row in runs_of(agent.store, ["unfinished", "failed", "paused"], agent.name):
        if row.status == DAMAGED:
            told = f"{row.error or row.run_id} Whose run it is cannot be told, so it is left out."
            click.echo(one_line(advised(told), 500), err=True)
            continue
        try:
            yield agent.plan(row.run_id)
        except RunNotFoundError:  # deleted since it was listed
            continue
        except LogCorruptError as error:
            yield Plan(row.run_id, row.status, problems=(error.damage,))


def _print_plans(plans: list[Plan], refused: list[Plan], left_alone: list[Plan]) -> None:
    if plans:
        rows: list[list[str | Text]] = [
            [one_line(p.run_id, 128), console.status_text(p.status or "unfinished"), in_short(p)]
            for p in plans
        ]
        console.print_table(("run", "status", "a resume would"), rows)
    for plan in refused:
        for problem in plan.problems:
            click.echo(one_line(f"run {plan.run_id}: {advised(problem)}", 1000))
    for plan in left_alone:
        click.echo(one_line(f"run {plan.run_id}: workers leave it alone: {plan.left_alone}", 1000))
    for changes, count in Counter(plan.changes for plan in plans if plan.changes).items():
        click.echo(f"\nThe agent has changed since {counted(count, 'run')} began:")
        click.echo(plain(textwrap.indent("\n".join(map(str, changes)), "  ")))
    verdict = f"{len(refused)} would be refused" if refused else "none would be refused"
    verdict += f", {len(left_alone)} left alone by workers" if left_alone else ""
    click.echo(f"{counted(len(plans), 'run')} rehearsed: {verdict}.")


def in_short(plan: Plan) -> str:
    """What a resume would do, for a line of a table."""
    if plan.problems:
        return "be refused"
    counts = (
        (plan.rewound, "give up", "call"),
        (plan.settled, "keep", "result"),
        (plan.reconciled, "ask the tool about", "call"),
        (
            _only(plan.in_doubt, plan.reconciled, plan.parked),
            "tell the model that nobody knows of",
            "call",
        ),
        (_only(plan.parked, plan.reconciled), "pause for", "decision"),
        (plan.to_run, "run", "call"),
        (plan.waiting, "wait for", "decision"),
    )
    parts = [f"{verb} {counted(len(calls), noun)}" for calls, verb, noun in counts if calls]
    parts += ["add what the fork was asked"] * plan.asked
    parts += ["ask the model"] * plan.ask_model + ["write the end"] * plan.writes_end
    parts += ["end, out of budget or time"] * (plan.ends is not None)
    return ", ".join(parts) or "do nothing"


def _only(calls: Sequence[str], *others: Sequence[str]) -> list[str]:
    return [call for call in calls if not any(call in other for other in others)]
