"""Commands of the program `agentor` as one types them, for messages that say what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def command(verb: str, *words: str, options: Sequence[str] = ()) -> str:
    """A verb with its words and options, quoted for a shell; words that begin with - come last, after --.

    >>> command("show", "run", options=["--store", "my runs.db"])
    "agentor show run --store 'my runs.db'"
    >>> command("show", "-run", options=["--full"])
    'agentor show --full -- -run'
    """
    if any(word.startswith("-") for word in words):
        return shlex.join(["agentor", verb, *options, "--", *words])
    return shlex.join(["agentor", verb, *words, *options])


def with_options(text: str, options: Sequence[str]) -> str:
    """A command that `command` has made, with further options."""
    words = shlex.split(text)
    end = words.index("--") if "--" in words else len(words)
    return shlex.join([*words[:end], *options, *words[end:]])
