"""The verb `crashtest`: does the user's own agent survive a crash at any moment?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from agentor.cli import console
from agentor.cli.loading import agent_argument
from agentor.cli.options import Interrupted, Verb, debug_option, json_option, told
from agentor.cli.plain import one_line, plain
from agentor.crashtest.crashing import crashtest as run_crashtest
from agentor.crashtest.junit import to_junit
from agentor.crashtest.report import Case, Report, ToolReport
from agentor.errors import ConfigError

_STYLES = {"safe": "green", "in doubt": "yellow", "unsafe": "red", "not called": "dim"}
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
    type=click.IntRange(1, 2),
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
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at the same time.  [default: CPUs]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
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
    jobs: int | None,
    timeout_s: float,
    keep: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Run an agent, kill it (SIGKILL) before and after every commit, resume each run from another process, and compare.

    The tools really run, many times: use services that are there for testing. The model is asked in the first run only.
    Exit codes: 0 safe, also if calls of a "once" tool are in doubt and said to be; 1 a tool would silently run twice,
    or status, answer, usage or conversation are not those of the uninterrupted run; 2 wrong usage.
    """
    _check_writable(junit)
    try:
        with _progress() as progress:
            report = run_crashtest(
                target,
                text,
                kills=kills,
                live=live,
                approve=approve,
                at=at,
                jobs=jobs,
                timeout_s=timeout_s,
                keep=keep,
                progress=progress,
            )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("Broken off; no process of it is left.")
        raise told(interrupt, Interrupted) from interrupt
    if junit is not None:
        junit.write_text(to_junit(report), "utf-8")
    if as_json:
        console.print_json(report.to_dict())
    else:
        _print(report, keep)
    if not report.safe:
        click.get_current_context().exit(1)


def _check_writable(junit: Path | None) -> None:
    """Before the work, not after it."""
    if junit is not None and not junit.resolve().parent.is_dir():
        raise ConfigError(f"--junit {str(junit)!r}: there is no such directory")


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
            ("tool", "effect", "calls", "starts", "verdict"),
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


def _print_cases(cases: Sequence[Case]) -> None:
    shown = [case for case in cases if len(cases) <= _MOST_ROWS or case.verdict != "safe"]
    headings = ("killed", "a resume", "again", "verdict")
    console.print_table(headings, [_case_row(case) for case in shown])
    if left := len(cases) - len(shown):
        click.echo(f"{left} more are safe; --json has them.")


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
