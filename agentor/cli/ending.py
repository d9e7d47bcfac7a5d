"""How the program ends when nobody reads what it prints any more, when that cannot be written or has no place, or when
Ctrl-C comes before a verb has begun.

Python ignores SIGPIPE, and so must we: a worker's connection that breaks is no reason to die. What is left to do is
to end as programs do that the signal has ended: at once, without a word, and with 141.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from click.exceptions import Abort, Exit

from agentor.cli.options import Failure, Interrupted
from agentor.errors import AgentorError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
NOBODY_READS = 141  # what shells say of a program that SIGPIPE ended


@contextlib.contextmanager
def in_good_order() -> Iterator[None]:
    _replace_what_is_closed()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # or the interpreter would complain of it at its end
            _refuse_if_lost(sys.stdout)
    except BrokenPipeError as error:
        if not _nobody_reads(sys.stdout):
            raise
        _to_nowhere(sys.stdout)
        raise Exit(NOBODY_READS) from error
    except OSError as error:
        if not _is_of_the_output(error):
            raise
        _to_nowhere(sys.stdout)
        reason = error.strerror or type(error).__name__
        raise Failure(AgentorError(f"standard output cannot be written: {reason}")) from error
    except KeyboardInterrupt as interrupt:
        raise Interrupted(interrupt) from interrupt
    except Abort as abort:
        if not isinstance(abort.__context__, KeyboardInterrupt):  # nobody there to answer
            raise
        raise Interrupted(abort.__context__) from abort


def _nobody_reads(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no file of the system, or a system without poll
        return False


def _is_of_the_output(error: OSError) -> bool:
    """Whether standard output is what failed: what is left in its buffer fails again; without one there is only this error,
    which names no file."""
    if getattr(sys.stdout, "write_through", False):
        return error.errno in _FULL and error.filename is None
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


class _Lost(io.FileIO):
    """Instead of a stream that whoever started us has closed. A worker, and what tools print, go on; what a verb had to say
    is known to be lost at its end."""

    is_lost = False

    def __init__(self) -> None:
        super().__init__(os.devnull, "w")

    def write(self, data: Buffer) -> int:
        self.is_lost = True
        return super().write(data)


def _replace_what_is_closed() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = io.TextIOWrapper(io.BufferedWriter(_Lost()), encoding="utf-8")
            setattr(sys, name, stream)


def _refuse_if_lost(stream: TextIO) -> None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if isinstance(raw, _Lost) and raw.is_lost:
        raise Failure(AgentorError("standard output cannot be written: it is closed"))


def _to_nowhere(stream: TextIO) -> None:
    """What is still in its buffer is written at the end of the process, and would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
