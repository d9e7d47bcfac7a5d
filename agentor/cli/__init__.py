"""The command line: look at runs, check them, go on with them, branch them off."""

from __future__ import annotations

import difflib
import importlib
import keyword
from typing import Any, Final

import click

from agentor import __version__
from agentor.cli.ending import in_good_order
from agentor.cli.options import forgive_the_terminal

# Each verb's module is loaded when it is asked for: listing runs should not pay for what resuming needs.
_VERBS: Final = {
    "demo": "agentor.cli.demo",
    "runs": "agentor.cli.reading",
    "show": "agentor.cli.reading",
    "resume": "agentor.cli.going_on",
    "fork": "agentor.cli.going_on",
    "pending": "agentor.cli.deciding",
    "approve": "agentor.cli.deciding",
    "reject": "agentor.cli.deciding",
    "settle": "agentor.cli.deciding",
    "cancel": "agentor.cli.deciding",
    "enqueue": "agentor.cli.working",
    "worker": "agentor.cli.working",
    "rehearse": "agentor.cli.working",
    "verify": "agentor.cli.verifying",
    "crashtest": "agentor.cli.crashing",
    "outbox": "agentor.cli.posting",
    "export": "agentor.cli.moving",
    "import": "agentor.cli.moving",
    "backup": "agentor.cli.moving",
    "delete": "agentor.cli.keeping",
    "prune": "agentor.cli.keeping",
    "tail": "agentor.cli.following",
}


_AS_ELSEWHERE: Final = {"list": "runs", "ls": "runs", "rm": "delete"}


class _Verbs(click.Group):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # prints --help, too
        try:
            with in_good_order():
                return super().make_context(*args, **kwargs)
        except click.NoSuchOption as error:
            told = f"{error.format_message()} Options follow the verb: agentor runs --store PATH."
            raise click.UsageError(told, error.ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        with in_good_order():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = [_AS_ELSEWHERE.get(args[0]), *difflib.get_close_matches(args[0], _VERBS, n=1)]
            meant = next(filter(None, near), None)
            if meant is None:
                raise
            told = f"{error.format_message()} Did you mean {meant!r}?"
            raise click.UsageError(told, error.ctx) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        # A verb that Python has as a keyword is a function with an underscore, as usual.
        function = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(importlib.import_module(_VERBS[cmd_name]), function)
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentor")
def main() -> None:
    """Durable agent runs: look at them, check them, go on with them, branch them off.

    Runs are read from --store, else from AGENTOR_STORE, else from runs.db in the current directory.
    Options follow the verb. Exit codes: 0 all is well, 1 it failed or damage was found, 2 wrong usage.
    """
    forgive_the_terminal()
