"""The verbs that go on with a run: `resume` and `fork`. They need the agent, so they load the user's own file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import click
from rich.console import Console

from agentor import blocking
from agentor.agent import Agentor
from agentor.cli import console
from agentor.cli.apart import output_of_ours
from agentor.cli.holding import holder_of, plan_as_dict, running_now
from agentor.cli.loading import agent_argument, agent_store_option, agent_with_store
from agentor.cli.options import (
    Interrupted,
    Seconds,
    Verb,
    WholeNumber,
    debug_option,
    json_option,
    told,
)
from agentor.cli.outcome import left_behind, tell, tell_where_it_branched, told_if_it_fails
from agentor.cli.plain import one_line, plain
from agentor.cli.signals import told_at_sigterm
from agentor.cli.wording import advised
from agentor.engine.batch import DECLARED, stricter
from agentor.engine.events import TOOL_CALL, RunResult
from agentor.engine.store.copying import unfinished_copy
from agentor.engine.store.protocol import Holder, Store, check_run_id, new_run_id
from agentor.errors import AgentorError, ConfigError, ModelError, RunExistsError
from agentor.plan import Plan
from agentor.recorded import recorded, stored

_max_turns_option = click.option(
    "--max-turns",
    type=WholeNumber(min=1),
    metavar="N",
    help="How many model calls it may take to answer.",
)


@click.command(
    cls=Verb,
    short_help="Go on with a run from what was saved.",
    epilog="agentor resume app.py:agent RUN\nagentor resume app.py:agent RUN --plan\nagentor resume shop.agents:support RUN --store runs/",
)
@agent_argument
@click.argument("run_id", metavar="RUN")
@click.option(
    "--plan", "only_plan", is_flag=True, help="Only say what it would do, and what has changed."
)
@click.option(
    "--wait",
    "wait_s",
    type=Seconds(),
    metavar="SECONDS",
    default=0.0,
    help="How long to wait for a worker that has the run.  [default: not at all]",
)
@_max_turns_option
@agent_store_option
@json_option
@debug_option
def resume(
    target: str,
    run_id: str,
    only_plan: bool,
    wait_s: float,
    max_turns: int | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Go on with a run from what was saved, and print its answer.

    A finished run is printed again: no model is called, no tool runs.
    With --plan nothing is called and nothing is written; exit code 1 if the resume would be refused, also because a
    worker has the run now.
    """
    check_run_id(run_id)
    with (
        told_if_it_fails(as_json) as failed,
        output_of_ours(as_json),
        agent_with_store(target, store_path) as agent,
    ):
        if only_plan:
            plan, holder = agent.plan(run_id), holder_of(agent.store, run_id)
        else:
            result = _watched(
                f"resuming {run_id}",
                lambda: agent.resume(run_id, max_turns=max_turns, wait=wait_s),
                _kept_if_it_fails(agent, run_id, failed),
                f"Run {run_id} is saved up to here; resume({run_id!r}) goes on with it.",
            )
    if only_plan:
        _tell_plan(plan, holder, as_json)
        return
    tell(result, as_json, target)


@click.command(
    cls=Verb,
    short_help="Branch a new run off an old one.",
    epilog='agentor fork app.py:agent RUN "Make it shorter"\nagentor fork app.py:agent RUN --at 5 --id second-try',
)
@agent_argument
@click.argument("run_id", metavar="RUN")
@click.argument("text", metavar="[INPUT]", required=False)
@click.option("--at", type=WholeNumber(min=1), metavar="SEQ", help="Branch off after this seq.")
@click.option("--id", "fork_id", metavar="ID", help="The new run's id, instead of a made one.")
@_max_turns_option
@agent_store_option
@json_option
@debug_option
def fork(
    target: str,
    run_id: str,
    text: str | None,
    at: int | None,
    fork_id: str | None,
    max_turns: int | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Branch a new run off an old one, which stays as it is, and print the new run's answer.

    With INPUT the new run goes on with it. Without, an unfinished run is finished on the fork, and a finished one is copied.

    A fork is no rehearsal: what its model asks for is started, also what the old run has done already, so one payment
    may become two. Which of the agent's tools have declared effects is told before. For a harmless what-if let APP name an agent
    with other tools, called otherwise, so that no worker takes its runs.
    """
    check_run_id(run_id)
    chosen = new_run_id() if fork_id is None else check_run_id(fork_id)
    with (
        told_if_it_fails(as_json) as failed,
        output_of_ours(as_json),
        agent_with_store(target, store_path) as agent,
    ):
        _tell_what_acts(agent, run_id, fork_id, at, copies=text is None and at is None)
        result = _watched(
            f"forking {run_id}",
            lambda: agent.fork(run_id, text, fork_id=chosen, at=at, max_turns=max_turns),
            _kept_if_it_fails(agent, chosen, failed),
            f"If the fork has begun, it is run {chosen!r}: resume({chosen!r}) goes on with it.",
            names_itself=True,
        )
    tell_where_it_branched(result, at)
    tell(result, as_json, target)


@contextlib.contextmanager
def _kept_if_it_fails(agent: Agentor, run_id: str, failed: list[RunResult]) -> Iterator[None]:
    """Add the run to those that failed, if it was gone on with and raised: not if that was refused, or the store failed."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ModelError) or not isinstance(error, AgentorError):
            with contextlib.suppress(Exception):  # the error is what is to be told
                failed.append(left_behind(stored(agent.store), run_id, error))
        raise


def _tell_what_acts(
    agent: Agentor, run_id: str, fork_id: str | None, at: int | None, copies: bool
) -> None:
    """The tools that the fork may start without asking anybody, as they declare themselves or as the log has them.

    Nothing of a fork that will be refused. `RunExistsError` before anything is told, if its id is taken.
    """
    store = stored(agent.store)
    state, events = blocking.wait_for(lambda: recorded(store, run_id))
    if (copies and state.is_complete) or (at or 0) > len(events):
        return
    if fork_id is not None and _is_taken(store, fork_id):
        raise RunExistsError(fork_id)
    declared = {tool.name: tool.effect for tool in agent.tools.values()}
    before = {event.name: event.effect for event in events if event.type == TOOL_CALL}
    acting = [
        f"{name} ({stricter(declared[name], before.get(name))})"
        for name, tool in agent.tools.items()
        if tool.needs_approval is not True and DECLARED & {declared[name], before.get(name)}
    ]
    if acting:
        told = f"The fork starts tools for real, also for what its parent has done already: {', '.join(acting)}."
        click.echo(one_line(told, 500), err=True)


def _is_taken(store: Store, fork_id: str) -> bool:
    """Whether there is such a run already: not one whose making was broken off, since that is finished."""
    events = store.load(fork_id)
    return bool(events) and unfinished_copy(fork_id, events) is None


def _watched(
    what: str,
    work: Callable[[], RunResult],
    kept: AbstractContextManager[None],
    left: str,
    names_itself: bool = False,
) -> RunResult:
    """Do the work within `kept`, with a sign of life on a terminal. An error that is not ours ends it as one line, too.
    `left`: what a signal leaves; of Ctrl-C a fork says so itself, if there is one.

    What is wrong with the words of the command has been found before, so a `ConfigError` is a refusal: of this run, or of
    this seq.
    """
    err = Console(stderr=True, markup=False)
    spinner = err.status(one_line(what, 60)) if sys.stderr.isatty() else contextlib.nullcontext()
    try:
        with spinner, kept, told_at_sigterm(f"Ended by SIGTERM. {advised(left)}"):
            return work()
    except ConfigError as error:
        raise told(error) from error
    except AgentorError:
        raise
    except KeyboardInterrupt as interrupt:
        if not names_itself:
            interrupt.add_note(left)
        raise told(interrupt, Interrupted) from interrupt
    except Exception as error:
        raise told(error) from error


def _tell_plan(plan: Plan, holder: Holder | None, as_json: bool) -> None:
    if as_json:
        console.print_json(plan_as_dict(plan, holder))
    else:
        click.echo(plain(advised(str(plan))))
        if holder is not None:
            click.echo(running_now(plan.run_id, holder))
    if plan.problems or holder is not None:
        click.get_current_context().exit(1)
