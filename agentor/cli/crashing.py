"""The verb `crashtest`: does the user's own agent survive a crash at any moment?"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from agentor.cli import console
from agentor.cli.junit_file import make_way, written
from agentor.cli.loading import agent_argument
from agentor.cli.options import Failure, Interrupted, Verb, WholeNumber, debug_option, json_option
from agentor.cli.plain import one_line, plain
from agentor.commands import command
from agentor.crashtest.crashing import TIMEOUT_S_MAX
from agentor.crashtest.crashing import crashtest as run_crashtest
from agentor.crashtest.junit import error_to_junit, to_junit
from agentor.crashtest.orders import STORE
from agentor.crashtest.processes import JOBS_MAX
from agentor.crashtest.report import Case, Report, ToolReport
from agentor.errors import AgentorError, ConfigError

_STYLES = {
    "safe": "green",
    "in doubt": "yellow",
    "unsafe": "red",
    "failed": "yellow",
    "not called": "dim",
}
_MOST_ROWS = 60  # beyond which the safe cases are not worth a line each


@click.command(
    cls=Verb,
    short_help="Kill your agent at every commit and see what breaks.",
    epilog='agentor crashtest app.py:agent --input "Pay Ada 5 euros"\n'
    'agentor crashtest app.py:agent --input "Pay Ada" --kills 2 --junit crashes.xml',
)
@agent_argument
@click.option("--input", "text", metavar="TEXT", required=True, help="What the user says.")
@click.option(
    "--kills",
    type=WholeNumber(1, 2),
    metavar="N",
    default=1,
    show_default=True,
    help="2 kills the resuming process, too, at each of its commits.",
)
@click.option(
    "--live", is_flag=True, help="Ask the agent's own model in every run, not in the first only."
)
@click.option("--approve", is_flag=True, help="Consent to every call that waits for a person.")
@click.option(
    "--at", metavar="POINT", help='Kill only here, as a report names it: "before commit 3".'
)
@click.option(
    "--setup",
    metavar="FUNCTION",
    help="Call module.py:function(store, scratch) before each run, to make tables and files.",
)
@click.option(
    "--check",
    metavar="FUNCTION",
    help="Call module.py:function(store, scratch) after each run, and compare what it returns.",
)
@click.option(
    "--jobs",
    type=WholeNumber(1, JOBS_MAX),
    metavar="N",
    help="Runs at the same time.  [default: CPUs]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, TIMEOUT_S_MAX, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long one process may take.",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Leave what each run wrote in this new or empty directory.",
)
@click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write JUnit XML.",
)
@json_option
@debug_option
def crashtest(
    target: str,
    text: str,
    kills: int,
    live: bool,
    approve: bool,
    at: str | None,
    setup: str | None,
    check: str | None,
    jobs: int | None,
    timeout_s: float,
    keep: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Run an agent, kill it (SIGKILL) before and after every commit, resume each run from another process, and compare.

    The tools really run, many times: use services that are there for testing. The model is asked in the first run only.
    Exit codes: 0 safe, also if calls of a "once" tool are in doubt and said to be; 1 not safe: the last line on standard
    output says of how many crashes, and the lines before it why; 1, and one line on standard error instead: there is nothing to
    compare, for the agent cannot be loaded, fails or takes too long without any crash; 2 wrong usage; 130, 143, 129 broken off by
    Ctrl-C, SIGTERM, SIGHUP.
    """
    make_way(junit)
    came: list[int] = []
    try:
        with _stopped_by_signals(came), _progress() as progress:
            report = run_crashtest(
                target,
                text,
                kills=kills,
                live=live,
                approve=approve,
                at=at,
                setup=setup,
                check=check,
                jobs=jobs,
                timeout_s=timeout_s,
                keep=keep,
                progress=progress,
            )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("Broken off; no process of it is left.")
        raise _broken_off(came, interrupt) from interrupt
    except AgentorError as error:
        raise _untestable(target, error, junit, as_json) from error
    unwritten = written(junit, to_junit(report))
    if as_json:
        console.print_json(report.to_dict())
    else:
        _print(report, keep)
    if unwritten is not None:
        raise unwritten
    if not report.safe:
        click.get_current_context().exit(1)


def _untestable(
    target: str, error: AgentorError, junit: Path | None, as_json: bool
) -> AgentorError:
    """What to raise when the files and the output say that there is no report, and why."""
    told = str(error)
    unwritten = written(junit, error_to_junit(target, told))
    if as_json and not isinstance(error, ConfigError):  # of wrong usage no verb says more
        console.print_json({"safe": None, "target": target, "error": told})
    return unwritten or error


class _Terminated(Failure):
    exit_code = 143  # as that of Interrupted: what shells say of a program that SIGTERM ended


class _HungUp(Failure):
    exit_code = 129  # SIGHUP, which not every system has


def _broken_off(came: Sequence[int], interrupt: BaseException) -> Failure:
    for number in came:
        return (_Terminated if number == signal.SIGTERM else _HungUp)(interrupt)
    return Interrupted(interrupt)


@contextlib.contextmanager
def _stopped_by_signals(came: list[int]) -> Iterator[None]:
    """SIGTERM and SIGHUP end it in good order, as Ctrl-C does; the first that comes is added to `came`."""
    numbers = _endings() if threading.current_thread() is threading.main_thread() else []

    def stop(number: int, _: object) -> None:
        for each in numbers:  # what follows is short, and must come to its end
            signal.signal(each, signal.SIG_IGN)
        came.append(number)
        raise KeyboardInterrupt

    try:
        for number in numbers:
            signal.signal(number, stop)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _endings() -> list[signal.Signals]:
    """The signals that would end us at once. One that somebody has us ignore (nohup) does not."""
    named = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")]
    return [number for number in named if signal.getsignal(number) == signal.SIG_DFL]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, if somebody is looking."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = TextColumn("killing and resuming"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: Report, keep: Path | None) -> None:
    out = console.console()
    _print_cases(report.cases)
    if report.tools:
        click.echo()
        console.print_table(
            ("tool", "effect", "calls", "most starts", "starting it again"),
            [_tool_row(tool) for tool in report.tools],
        )
    click.echo()
    for finding in report.findings():
        out.print(Text(f"- {plain(finding)}", style="red"), soft_wrap=True)
    for remark in report.remarks():
        click.echo(plain(remark))
    click.echo(plain(report.summary()))
    if not report.safe and keep is None:
        click.echo("--keep DIR leaves the store, the journal and the output of each run.", err=True)
    elif keep is not None:
        _print_where_to_look(report, keep)


def _print_where_to_look(report: Report, keep: Path) -> None:
    """At the worst of what is kept: the command that shows it, on standard error."""
    worst = sorted(
        (case for case in report.cases if case.verdict != "safe" and case.status != "no run"),
        key=lambda case: case.verdict != "unsafe",
    )
    for case in worst[:1]:
        store = str(keep / case.directory / STORE)
        show = command("show", case.run_id, options=["--store", store])
        click.echo(f"Killed {case.points}: {show}", err=True)


def _print_cases(cases: Sequence[Case]) -> None:
    shown = [case for case in cases if len(cases) <= _MOST_ROWS or case.verdict != "safe"]
    headings = ("killed", "a resume", "again", "verdict")
    console.print_table(headings, [_case_row(case) for case in shown])
    if left := len(cases) - len(shown):
        click.echo(f"{left} {'more ' if shown else ''}are safe; --json has them.")


def _case_row(case: Case) -> list[str | Text]:
    resumed = "had nothing saved" if case.status == "no run" else case.status
    cost = f", {case.paid_again:,} tokens again" if case.paid_again else ""
    again = ", ".join(dict.fromkeys(one_line(each.tool, 64) for each in case.again))
    return [Text(one_line(case.name, 500)), f"{resumed}{cost}", again, _verdict(case.verdict)]


def _tool_row(tool: ToolReport) -> list[str | Text]:
    effect = tool.effect or "not declared"
    return [tool.name, effect, str(tool.calls), str(tool.starts_most), _verdict(tool.verdict)]


def _verdict(verdict: str) -> Text:
    return Text(verdict, style=_STYLES[verdict])
