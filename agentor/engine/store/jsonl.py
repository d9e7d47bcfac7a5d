"""Read one run's JSONL file: which events it holds, and where its good part ends.

A log of ours carries a `seq` in every line. Logs of Agentor 0.1 carry none: there the seq is the number of the
line among the readable ones, and a line that cannot be read is skipped, because 0.1 itself goes on writing
after a line that a crash tore. In our part of a log nothing may be missing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from agentor.engine.events import Event
from agentor.errors import LogCorruptError

_log = logging.getLogger("agentor.store")


@dataclass(slots=True)
class JsonlLog:
    """What a file holds. `good_size` is the byte after the last readable event; what follows is torn."""

    events: list[Event] = field(default_factory=list)
    good_size: int = 0
    needs_newline: bool = False  # the last event is whole, only the end of its line is missing
    problems: list[str] = field(default_factory=list)  # lines of a 0.1 log that were skipped

    def warn_of_problems(self, run_id: str) -> None:
        """Log what was skipped, where nobody else tells it."""
        for problem in self.problems:
            _log.warning("run %r: %s; it is skipped", run_id, problem)


def read_jsonl(run_id: str, content: bytes, after: int = 0) -> JsonlLog:
    """Every event of the file. `LogCorruptError` names the seq of a hole or of damage in our part of it.

    With `after`, the content is the rest of a file behind its event of that seq.
    """
    reader = _Reader(run_id, after)
    *lines, tail = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        reader.take(number, line)
    reader.log.good_size = len(content) - len(tail)
    if tail:
        reader.take_tail(tail, len(content))
    reader.check_something_was_readable()
    return reader.log


class _Reader:
    def __init__(self, run_id: str, after: int) -> None:
        self.run_id = run_id
        self.after = after
        self.log = JsonlLog()
        self.numbered = False  # an event with a seq was seen: from here on it is our part

    def take(self, number: int, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = Event.from_json(line)
        except ValueError as error:
            self._skip(number, str(error))
        else:
            self._add(event)

    def take_tail(self, tail: bytes, size: int) -> None:
        """The last line, without its newline: whole if it can be read, else torn and not part of the log."""
        try:
            event = Event.from_json(tail)
        except ValueError:
            return
        self._add(event)
        self.log.good_size = size
        self.log.needs_newline = True

    def check_something_was_readable(self) -> None:
        if self.log.problems and not self.log.events:
            raise LogCorruptError(self.run_id, 1, self.log.problems[0])

    def _add(self, event: Event) -> None:
        expected = self.after + len(self.log.events) + 1
        if event.seq is None:
            event = event.with_(seq=expected)
        else:
            self.numbered = True
            if event.seq != expected:
                raise LogCorruptError(
                    self.run_id, expected, f"the file goes on with seq {event.seq} instead"
                )
        self.log.events.append(event)

    def _skip(self, number: int, reason: str) -> None:
        if self.numbered:
            raise LogCorruptError(self.run_id, self.after + len(self.log.events) + 1, reason)
        self.log.problems.append(f"line {number} cannot be read ({reason})")
