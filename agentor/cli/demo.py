"""The verb `demo`: tells the story on the terminal, or its outcome as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.syntax import Syntax
from rich.text import Text

from agentor.cli import console
from agentor.cli.options import Verb, debug_option, json_option
from agentor.cli.timeline import timeline
from agentor.demo.story import SCRIPT_MODEL, STORE, Outcome, play
from agentor.engine.events import Event
from agentor.errors import ConfigError


@click.command(
    cls=Verb,
    short_help="Watch an agent be killed and finished.",
    epilog="agentor demo\nagentor demo --keep demo\nOPENAI_API_KEY=... agentor demo --live --model gpt-4o-mini",
)
@click.option("--live", is_flag=True, help="Ask a real model: OPENAI_API_KEY, OPENAI_BASE_URL.")
@click.option(
    "--model", default=SCRIPT_MODEL, show_default=True, help="The model to ask with --live."
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Leave the files in this new or empty directory.",
)
@json_option
@debug_option
def demo(live: bool, model: str, keep: Path | None, as_json: bool) -> None:
    """Watch an agent be killed half-way, resumed by another process and forked. Takes some seconds.

    Needs no network and no key: a stand-in for the model answers on this machine, unless --live is given.
    """
    if live and not os.environ.get("OPENAI_API_KEY"):
        raise ConfigError("--live asks a real model, so it needs OPENAI_API_KEY")
    with _directory(keep) as directory:
        outcome = play(directory, _Terminal(as_json), live_model=model if live else None)
    if as_json:
        console.print_json(dataclasses.asdict(outcome))
    else:
        _say_what_next(outcome, keep)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="agentor-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_empty = not any(keep.iterdir())
    except OSError as error:
        raise ConfigError(f"{str(keep)!r} cannot be made or read: {error}") from error
    if not is_empty:
        raise ConfigError(f"{str(keep)!r} is not empty; name a new directory")
    yield keep


class _Terminal:
    """Tells the story line by line, and is flushed before a child process writes between the lines."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self._out = console.console()

    def says(self, text: str) -> None:
        self._print(Text(f"\n{text}", style="bold cyan"))

    def shows_program(self, code: str) -> None:
        if self._out.is_terminal:
            self._print(
                Syntax(code.strip(), "python", theme="ansi_dark", background_color="default")
            )
        else:
            self._print(Text(code.strip()))

    def shows_command(self, command: str) -> None:
        self._print(Text(f"$ {command}", style="bold"))

    def shows_log(self, events: list[Event]) -> None:
        if not self.silent:
            console.print_timeline(timeline(events))

    def _print(self, what: Text | Syntax) -> None:
        if not self.silent:
            self._out.print(what, soft_wrap=True)
            self._out.file.flush()


def _say_what_next(outcome: Outcome, keep: Path | None) -> None:
    terminal = _Terminal(silent=False)
    terminal.says(f"All of it took {outcome.seconds} s. What to try next:")
    if keep is None:
        terminal.shows_command(f"{_program()} demo --keep demo    # the same, and the files stay")
        return
    store = shlex.quote(str(keep / STORE))
    terminal.shows_command(f"{_program()} show {outcome.fork_id} --store {store}")
    terminal.shows_command(f"{_program()} verify --store {store}")


def _program() -> str:
    """How to call this program from where the user is: after `make demo` it is not on the PATH."""
    if shutil.which("agentor"):
        return "agentor"
    script = Path(sys.executable).with_name("agentor")
    return shlex.quote(min(str(script), os.path.relpath(script), key=len))
