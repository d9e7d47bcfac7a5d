"""Branch a run off under a new id, with whatever the store can do: in one step, by copying, or event by event."""

from __future__ import annotations

import inspect
from typing import Any

from agentor.engine import clock
from agentor.engine.events import FORK, Event
from agentor.engine.store.numbering import check_fork_point
from agentor.engine.store.protocol import Store, check_run_id, new_run_id
from agentor.errors import RunExistsError, RunNotFoundError


def fork_run(store: Store, run_id: str, fork_id: str | None = None, at: int | None = None) -> str:
    """Copy `run_id`, up to the seq `at` (itself included) if given, and record where the copy came from.

    The new run ends in exactly one `fork` event that this call has written. Returns its id.
    `RunNotFoundError`, `RunExistsError` and `ConfigError` (a bad id, a seq the run does not have): nothing was
    copied.
    """
    check_run_id(run_id)
    fork_id = new_run_id() if fork_id is None else check_run_id(fork_id)
    verb = getattr(store, "fork", None)
    takes = inspect.signature(verb).parameters if callable(verb) else {}
    if verb is not None and "at" in takes and "event" in takes:
        verb(run_id, fork_id, at=at, event=_fork_event(run_id, at))
    else:
        _fork_in_steps(store, run_id, fork_id, at, verb, takes)
    return fork_id


def _fork_event(run_id: str, at: int | None, seq: int | None = None) -> Event:
    now = clock.now()
    return Event(FORK, forked_from=run_id, forked_at=at, started_at=now, ended_at=now, seq=seq)


def _fork_in_steps(
    store: Store, run_id: str, fork_id: str, at: int | None, verb: Any, takes: Any
) -> None:
    source = store.load(run_id)
    if not source:
        raise RunNotFoundError(run_id)
    if store.load(fork_id) or fork_id in store.list_runs():
        raise RunExistsError(fork_id)
    last_seq = check_fork_point(run_id, len(source), at)
    if verb is not None and "at" in takes:
        verb(run_id, fork_id, at=last_seq)
    elif verb is not None and last_seq == len(source):
        verb(run_id, fork_id)
        last_seq = len(store.load(fork_id))  # a run in flight may have grown since we looked
    else:
        for seq, event in enumerate(source[:last_seq], 1):
            store.append(fork_id, event.with_(seq=seq))
    store.append(fork_id, _fork_event(run_id, last_seq, last_seq + 1))
