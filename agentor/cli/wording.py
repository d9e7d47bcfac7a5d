"""What the library's errors say, in the words of the command line: verbs and options, no Python."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

import click

from agentor.errors import AgentorError, ConfigError, LeaseHeldError, RunNotFoundError

# Advice to programmers in messages and notes, and what it comes to here.
_ADVICE: Final = (
    (re.compile(r"resume\('([\w.-]+)'\) goes on"), r"`agentor resume {app} \1` goes on"),
    (
        re.compile(r"The fork is run '([\w.-]+)': resume it"),
        r"The fork is run '\1': `agentor resume {app} \1` goes on with it",
    ),
    (re.compile(r"decide with question=(\d+)"), r"decide with --question \1"),
    (re.compile(r", or pass allow_network_filesystem=True[^.;]*"), ""),
    (re.compile(r"; for runs in memory use MemoryStore\(\)"), ""),
)

# Commands in messages that are about the runs which this command is about.
_COMMAND: Final = re.compile(r"`(agentor (?:runs|verify|resume|reject)\b(?![^`]*--store)[^`]*)`")
WHERE: Final = "agentor.where"  # in the context: what `where` says


def where() -> str:
    """The option that a command needs to find the store of this one, with a space before it; "" if it looks there by itself."""
    verb = click.get_current_context(silent=True)
    return str(verb.meta.get(WHERE, "")) if verb else ""


def counted(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of the names, and whether there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


@contextlib.contextmanager
def noted(pattern: str, note: str) -> Iterator[None]:
    """Add a note to a `ConfigError` whose words match."""
    try:
        yield
    except ConfigError as error:
        if re.search(pattern, str(error)):
            error.add_note(note)
        raise


def in_words(error: BaseException) -> str:
    """The error and its notes as sentences; the kind of the error only where it is not one of ours."""
    notes = getattr(error, "__notes__", [])
    told = (advised(part) for part in [_message(error), *notes])
    said = (_in_one_line(part).strip().removesuffix(".") for part in told)
    return ". ".join(said) + ("." if notes else "")


def _message(error: BaseException) -> str:
    match error:
        case RunNotFoundError():
            return f"no run {error.run_id!r} in this store; `agentor runs` lists those there are"
        case LeaseHeldError(is_own=True):
            return f"this process itself works on run {error.run_id!r}; {_later()}"
        case LeaseHeldError():
            worker = (error.owner or "unknown").split("/")[0]
            return f"another worker has run {error.run_id!r} ({worker}); {_later()}"
        case AgentorError():
            return str(error)
        case KeyboardInterrupt():
            return "Interrupted"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _in_one_line(text: str) -> str:
    """Lines with marks between them: a list of changes is no sentence."""
    return re.sub(r"\.?(?<=[^\s:;,])\s*\n\s*(?=\S)", "; ", text)


def advised(text: str) -> str:
    """What the library says, with commands that work as they stand."""
    app = _app().replace("\\", r"\\")
    for pattern, words in _ADVICE:
        text = pattern.sub(words.replace("{app}", app), text)
    return _COMMAND.sub(lambda command: f"`{command[1]}{where()}`", text)


def _app() -> str:
    """The agent as the command names it; APP for a verb that takes none."""
    verb = click.get_current_context(silent=True)
    named = verb.params.get("target") if verb else None
    return shlex.quote(named) if named else "APP"


def _later() -> str:
    verb = click.get_current_context(silent=True)
    can_wait = verb is not None and "wait_s" in verb.params
    return "try again when it has ended" + (
        ", or wait for it with --wait SECONDS" if can_wait else ""
    )
