"""What every verb has in common: its options, and how it ends.

Exit codes: 0 all is well; 1 what was asked for failed, or damage was found; 2 wrong usage.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from agentor.cli.plain import one_line
from agentor.cli.wording import in_words
from agentor.errors import AgentorError, ConfigError

_DEBUG = "agentor.debug"
_APP = "APP names your agent: app.py:agent is `agent` in app.py, package.module:agent is that of a module."
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Failure(click.ClickException):
    """An error as one line on standard error, whatever text it quotes."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(one_line(in_words(error), 2000))


class WrongUsage(Failure):
    exit_code = 2


class Interrupted(Failure):
    exit_code = 130  # what shells say of a program that Ctrl-C ended


class Verb(click.Command):
    """A command whose expected failures are told without a traceback; `--debug` shows it."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AgentorError as error:
            if ctx.meta.get(_DEBUG):
                raise
            raise (WrongUsage if isinstance(error, ConfigError) else Failure)(error) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not any(isinstance(param, click.Argument) for param in self.params):
                raise
            told = f"{error.format_message()} What begins with - and is no option comes last, after --."
            raise click.UsageError(told, error.ctx) from error

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if any(parameter.name == "target" for parameter in self.params):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(_APP)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, line by line as they were written."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.strip().splitlines():
                    formatter.write(f"  {line.strip()}\n")


class WholeNumber(click.IntRange):
    """A number of things, or of one of them."""

    name = "whole number"  # as it is called in errors


class Seconds(click.FloatRange):
    """A time, 0 or more; NaN is none."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


class Place(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer clicks only
    """A path, which is not empty: else the current directory, or what is there by default, would be meant by mistake."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("an empty text is no path; is a variable unset?", param, ctx)
        return str(value)


def told(
    error: BaseException, failure: Callable[[BaseException], Failure] = Failure
) -> BaseException:
    """What to raise for an error that is not ours: one line, or the error itself if tracebacks were asked for."""
    debug = click.get_current_context().meta.get(_DEBUG)
    return error if debug else failure(error)


def store_option(help: str = "") -> Callable[[_Function], _Function]:
    return click.option(
        "--store",
        "store_path",
        type=Place(),
        metavar="PATH",
        envvar="AGENTOR_STORE",
        show_envvar=True,
        help=help
        or "Where the runs are: a SQLite file, or a directory of JSONL files.  [default: runs.db]",
    )


def json_option(function: _Function) -> _Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(
        function
    )


def full_option(function: _Function) -> _Function:
    return click.option("--full", is_flag=True, help="Do not shorten long texts.")(function)


def debug_option(function: _Function) -> _Function:
    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[_DEBUG] = value

    return click.option(
        "--debug",
        is_flag=True,
        envvar="AGENTOR_DEBUG",
        expose_value=False,
        is_eager=True,
        callback=remember,
        help="Show the traceback of an error.",
    )(function)


def forgive_the_terminal() -> None:
    """Let a terminal or pipe that cannot show a character show "?" instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
