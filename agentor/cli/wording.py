"""What the library's errors say, in the words of the command line: verbs and options, no Python."""

from __future__ import annotations

import re
from typing import Final

from agentor.errors import AgentorError, LeaseHeldError, RunNotFoundError

# Advice to programmers in messages and notes, and what it comes to here.
_ADVICE: Final = (
    (re.compile(r"resume\('([\w.-]+)'\) goes on"), r"`agentor resume APP \1` goes on"),
    (re.compile(r"decide with question=(\d+)"), r"decide with --question \1"),
    (re.compile(r", or pass allow_network_filesystem=True[^.;]*"), ""),
    (re.compile(r"; for runs in memory use MemoryStore\(\)"), ""),
)


def counted(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def in_words(error: BaseException) -> str:
    """The error and its notes as sentences; the kind of the error only where it is not one of ours."""
    notes = getattr(error, "__notes__", [])
    told = (_advised(part) for part in [_message(error), *notes])
    said = (_in_one_line(part).strip().removesuffix(".") for part in told)
    return ". ".join(said) + ("." if notes else "")


def _message(error: BaseException) -> str:
    match error:
        case RunNotFoundError():
            return f"no run {error.run_id!r} in this store; `agentor runs` lists those there are"
        case LeaseHeldError(is_own=True):
            return f"this process itself works on run {error.run_id!r}; try again when it has ended"
        case LeaseHeldError():
            worker = (error.owner or "unknown").split("/")[0]
            return (
                f"another worker has run {error.run_id!r} ({worker}); try again when it has ended"
            )
        case AgentorError():
            return str(error)
        case KeyboardInterrupt():
            return "Interrupted"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _in_one_line(text: str) -> str:
    """Lines with marks between them: a list of changes is no sentence."""
    return re.sub(r"\.?(?<=[^\s:;,])\s*\n\s*(?=\S)", "; ", text)


def _advised(text: str) -> str:
    for pattern, words in _ADVICE:
        text = pattern.sub(words, text)
    return text
