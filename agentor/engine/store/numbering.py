"""Give events their place in the log: the one rule about `seq` that every bundled store follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentor.engine import strict_json
from agentor.engine.events import Event, Usage
from agentor.engine.store.protocol import check_seq
from agentor.errors import ConfigError, LogCorruptError, RunNotFoundError, SequenceConflictError

NESTING_THAT_ALL_READ = 200  # levels


def bodies_after(run_id: str, last_seq: int, events: Sequence[Event]) -> list[str]:
    """The bodies of `events`, numbered from `last_seq + 1`.

    `SequenceConflictError` if an event names another seq; ValueError or TypeError if one is no event, no JSON, or nothing
    that could be loaded again. Either way before anything was written, so that a refusal refuses all of them.
    """
    bodies = []
    for seq, event in enumerate(events, last_seq + 1):
        _check(event)
        if event.seq is not None and event.seq != seq:
            raise SequenceConflictError(run_id, event.seq, seq)
        bodies.append(_body(event, seq))
    return bodies


def _check(event: Event) -> None:
    if not isinstance(event, Event):
        raise TypeError(f"give an Event, not {type(event).__name__}")
    if event.seq is not None and type(event.seq) is not int:
        raise TypeError(f"seq={event.seq!r}: give a whole number, or none for the next")
    if event.usage is not None and not isinstance(event.usage, Usage):
        raise TypeError(f"usage is a Usage, not {type(event.usage).__name__}")


def _body(event: Event, seq: int) -> str:
    body = event.to_dict()
    body["seq"] = seq
    Event.from_dict(body)  # what cannot be read is not acknowledged
    try:
        text = strict_json.dumps(body)
    except RecursionError:
        raise ValueError("nested too deeply for JSON, or a value that contains itself") from None
    # Lone surrogates would crash SQLite's binding and the file's encoding alike.
    text = strict_json.clean_text(text)
    if text.count("[") + text.count("{") > NESTING_THAT_ALL_READ:
        strict_json.loads(text)  # or it could never be loaded again
    return text


def numbered(run_id: str, events: Sequence[Event]) -> list[Event]:
    """The events of a log with their seqs, those of older logs too. `LogCorruptError` if one has another already."""
    for seq, event in enumerate(events, 1):
        if event.seq not in (None, seq):
            raise LogCorruptError(run_id, seq, f"the next event has seq {event.seq}")
    return [event.with_(seq=seq) for seq, event in enumerate(events, 1)]


def check_fork_point(run_id: str, last_seq: int, at: int | None) -> int:
    """The last seq a fork takes over: `at`, or all there is. `ConfigError` if that is no seq, or not one of the run."""
    if at is None:
        return last_seq
    if not 1 <= check_seq("at", at) <= last_seq:
        raise ConfigError(
            f"cannot fork run {run_id!r} at seq {at}: it has the seqs 1 to {last_seq}"
        )
    return at


def check_meant(run_id: str, there: Iterable[Event | None], of: Event | None) -> None:
    """`RunNotFoundError` if `of`, an event of the run that is to be forked, is not `there`: the id is another run's by now."""
    if of is not None and of not in there:
        raise RunNotFoundError(run_id)


def fork_tail(event: Event | None, last_seq: int) -> list[Event]:
    """What follows the copied events of a fork: the `fork` event, told where the copy ended."""
    return [] if event is None else [event.with_(forked_at=last_seq)]
