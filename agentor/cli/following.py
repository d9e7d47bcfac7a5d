"""The verb that follows: `tail`."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any, Final

import click

from agentor.cli import console
from agentor.cli.options import (
    Seconds,
    Verb,
    WholeNumber,
    debug_option,
    full_option,
    store_option,
)
from agentor.cli.stores import existing_store
from agentor.cli.timeline import Before, timeline
from agentor.engine import strict_json
from agentor.engine.events import RUN_END, Event
from agentor.engine.store.protocol import Tails, check_run_id
from agentor.errors import ConfigError, RunNotFoundError
from agentor.stopping import ENDABLE

LATE_CANCEL_S: Final = 0.5  # how long after an end it may be recorded


@click.command(
    cls=Verb,
    short_help="Follow a run, or all runs, while others write.",
    epilog="agentor tail RUN\nagentor tail --json --store runs.db",
)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--after",
    type=WholeNumber(min=0),
    metavar="N",
    help="Leave out what comes first: up to this seq of RUN, or this position of all runs.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="End when nothing has come for so long; 0: what is there already.",
)
@full_option
@store_option()
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text: one event a line."
)
@debug_option
def tail(
    run_id: str | None,
    after: int | None,
    timeout: float | None,
    full: bool,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Show the events of RUN as they are saved, and end when it has ended, whatever --after leaves out.

    Without RUN, those of all runs from now on (--after 0: from the beginning), until Ctrl-C. That takes a SQLite store.
    """
    with existing_store(store_path) as store:
        if not isinstance(store, Tails):
            raise ConfigError("this store cannot be followed")
        try:
            if run_id is None:
                _all(store, after, timeout, as_json, full)
            else:
                _one(store, run_id, after or 0, timeout, as_json, full)
        except KeyboardInterrupt:  # the usual way to end it, so nothing to say
            click.get_current_context().exit(130)


def _one(
    store: Any, run_id: str, after: int, timeout: float | None, as_json: bool, full: bool
) -> None:
    log = store.load(check_run_id(run_id))
    if not log:
        raise RunNotFoundError(run_id)
    start = min(after, len(log) - 1)  # what may be its end is looked at, shown or not
    before = functools.reduce(Before.after, log[:start], Before())
    events = _until_it_has_ended(store, run_id, start, timeout, there=len(log))
    before, shown = _passed(events, after, before)
    if as_json:
        for event in shown:
            click.echo(event.to_json())
    else:
        console.print_timeline(timeline(shown, before), full)


def _passed(events: Iterator[Event], after: int, before: Before) -> tuple[Before, Iterator[Event]]:
    """The events from the first on that has a seq above `after`, and what was before it."""
    for event in events:
        if (event.seq or 0) > after:
            return before, itertools.chain([event], events)
        before = before.after(event)
    return before, events


def _until_it_has_ended(
    store: Any, run_id: str, after: int, timeout: float | None, there: int
) -> Iterator[Event]:
    """Up to a run_end that nothing follows: a run that was resumed has others before it, among those `there`."""
    for event in store.tail(run_id, after=after, timeout=timeout):
        yield event
        seq = event.seq or 0
        if event.type == RUN_END and seq >= there:
            patience_s = LATE_CANCEL_S if seq > there else 0.0
            if event.status not in ENDABLE or not _goes_on(store, run_id, seq, patience_s):
                return


def _goes_on(store: Any, run_id: str, seq: int, patience_s: float) -> bool:
    """Whether another end follows this one at once: a cancel that came as the run ended."""
    with contextlib.suppress(RunNotFoundError):  # it ended before it was deleted
        return any(True for _ in store.tail(run_id, after=seq, timeout=patience_s))
    return False


def _all(store: Any, after: int | None, timeout: float | None, as_json: bool, full: bool) -> None:
    start = store.last_position() if after is None else after
    told = None
    before: dict[str, tuple[int, Before]] = {}  # by run: what was at which seq
    for position, run_id, event in store.tail(after=start, timeout=timeout):
        if as_json:
            body = {"position": position, "run_id": run_id, "event": event.to_dict()}
            click.echo(strict_json.in_ascii(body))
            continue
        if run_id != told:
            console.print_facts([("run", run_id)])
            told = run_id
        seq = event.seq or 1
        last, known = before.pop(run_id, (0, Before()))
        if last != seq - 1:  # not heard of yet, or another run has the id by now
            known = _what_was_before(store, run_id, event)
        console.print_timeline(timeline([event], known), full)
        if event.type != RUN_END:  # else it may never be heard of again
            before[run_id] = seq, known.after(event)


def _what_was_before(store: Any, run_id: str, event: Event) -> Before:
    seq = event.seq or 1
    log = store.load(run_id)[: seq - 1] if seq > 1 else []
    return functools.reduce(Before.after, log, Before())
