"""With --json standard output is ours alone: what the user's program prints goes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def output_of_ours(as_json: bool) -> Iterator[TextIO]:
    """Standard output for us to write to; while `as_json`, nobody else's text comes there.

    Neither what Python prints in any thread, nor what is written to the file descriptor: by a C library, or by a
    process that a tool starts.
    """
    if not as_json:
        yield sys.stdout
        return
    with _apart(sys.stdout) as ours, contextlib.redirect_stdout(sys.stderr):
        yield ours


@contextlib.contextmanager
def _apart(stdout: TextIO) -> Iterator[TextIO]:
    """The stream under another descriptor; the one it had leads to standard error meanwhile."""
    try:
        number, errors = stdout.fileno(), sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        yield stdout  # no file of the system: nothing but Python writes to it
        return
    stdout.flush()
    kept = os.dup(number)
    try:
        os.dup2(errors, number)
        with open(
            os.dup(kept), "w", buffering=1, encoding=stdout.encoding, errors=stdout.errors
        ) as ours:
            yield ours
    finally:
        with contextlib.suppress(OSError, ValueError):
            stdout.flush()  # what somebody wrote there who had kept the stream
        os.dup2(kept, number)
        os.close(kept)
