"""What the library's errors say, in the words of the command line: verbs and options, no Python."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click

from agentor.commands import command, with_options
from agentor.errors import AgentorError, ConfigError, LeaseHeldError, RunNotFoundError

# Advice to programmers in messages and notes, and what it comes to here.
_ADVICE: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]] = (
    (re.compile(r"resume\('([\w.-]+)'\) goes on"), lambda told: f"{_resume(told[1])} goes on"),
    (
        re.compile(r"(The fork is run '([\w.-]+)'): resume it"),
        lambda told: f"{told[1]}: {_resume(told[2])} goes on with it",
    ),
    (
        re.compile(r"decide with question=(\d+)"),
        lambda told: f"decide with --question {told[1]}",
    ),
    (re.compile(r", or pass allow_network_filesystem=True[^.;]*"), lambda _: ""),
    (re.compile(r"; for runs in memory use MemoryStore\(\)"), lambda _: ""),
)

# Commands that can be typed as they stand in a message; a verb alone that needs more words is only spoken of.
_COMMAND: Final = re.compile(
    r"`(agentor (?:(?:runs|verify|pending|outbox|tail)\b[^`]*|[a-z]+ [^`]+))`"
)
WHERE: Final = "agentor.where"  # in the context: the store that commands must name to find it


def typed(verb: str, *words: str, options: Sequence[str] = ()) -> str:
    """A command about the store of this one, as one types it."""
    return command(verb, *words, options=[*options, *_where()])


def _where() -> list[str]:
    """The option that a command needs to find the store of this one; none if it looks there by itself."""
    verb = click.get_current_context(silent=True)
    path = verb.meta.get(WHERE) if verb else None
    return ["--store", path] if path else []


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
    for pattern, in_our_words in _ADVICE:
        text = pattern.sub(in_our_words, text)
    return _COMMAND.sub(lambda found: f"`{_with_store(found[1])}`", text)


def _with_store(text: str) -> str:
    try:
        return text if "--store" in text else with_options(text, _where())
    except ValueError:  # a backtick in a name has cut it off
        return text


def _resume(run_id: str) -> str:
    """Of the agent as this command names it; of APP for a verb that takes none."""
    verb = click.get_current_context(silent=True)
    app = verb.params.get("target") if verb else None
    return f"`{typed('resume', app or 'APP', run_id)}`"


def _later() -> str:
    verb = click.get_current_context(silent=True)
    can_wait = verb is not None and "wait_s" in verb.params
    return "try again when it has ended" + (
        ", or wait for it with --wait SECONDS" if can_wait else ""
    )
