"""Branch a run off under a new id, with whatever the store can do: in one step, by copying, or event by event."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from agentor.engine import clock
from agentor.engine.events import FORK, Event, Message, without_repeats
from agentor.engine.store.copying import Copy, check_whole, copy_events, unfinished_copy
from agentor.engine.store.numbering import check_fork_point, check_meant, numbered
from agentor.engine.store.own import answer_of, loaded
from agentor.engine.store.protocol import Store, check_run_id, new_run_id
from agentor.errors import RunExistsError, RunNotFoundError


def fork_run(
    store: Store,
    run_id: str,
    fork_id: str | None = None,
    at: int | None = None,
    *,
    messages: Sequence[Message] = (),
    agent: str | None = None,
    of: Event | None = None,
    nonce: str | None = None,
) -> str:
    """Copy `run_id`, up to the seq `at` (itself included) if given, and record where the copy came from.

    The new run ends in exactly one `fork` event that this call has written. `messages` are in it: what the fork is asked,
    which makes it unfinished until that is answered. `agent`: who is to go on with it, if that is not the parent's.
    `of`: an event, with its seq, of the run as the caller has read it, whose id may be another's by now. `nonce`: of the new
    run, instead of a made one. Returns the new run's id. A copy that was broken off,
    in a store that copies event by event, is finished by forking the same run under the same id again, as far as it was to go.
    `RunNotFoundError` (also if the run does not have `of`), `RunExistsError`, `LogCorruptError` and `ConfigError` (a bad
    id, a seq the run does not have): nothing was copied.
    """
    check_run_id(run_id)
    fork_id = new_run_id() if fork_id is None else check_run_id(fork_id)
    event = _fork_event(run_id, list(messages) or None, agent, nonce)
    verb = getattr(store, "fork", None)
    takes = _taken_by(verb)
    if verb is not None and "at" in takes and "event" in takes:
        told = {"event": event, "of": of} if "of" in takes else {"event": event}
        if of is not None and "of" not in takes:  # the best that can be done
            check_meant(run_id, _source(store, run_id)[0], of)
        answer_of(verb, run_id, fork_id, at=at, **told)
    else:
        _fork_in_steps(store, run_id, fork_id, at, verb, takes, event, of)
    return fork_id


def forks_at_once(store: object) -> bool:
    """Whether a fork and its `fork` event are one commit of this store."""
    takes = _taken_by(getattr(store, "fork", None))
    return "at" in takes and "event" in takes


def _taken_by(verb: Any) -> Any:
    return inspect.signature(verb).parameters if callable(verb) else {}


def _fork_event(
    run_id: str, messages: list[Message] | None, agent: str | None, nonce: str | None
) -> Event:
    now = clock.now()
    fork = Event(FORK, forked_from=run_id, messages=messages, agent=agent)
    return fork.with_(started_at=now, ended_at=now, nonce=nonce or clock.new_nonce())


def _fork_in_steps(
    store: Store,
    run_id: str,
    fork_id: str,
    at: int | None,
    verb: Any,
    takes: Any,
    event: Event,
    of: Event | None,
) -> None:
    source, has_repeats = _source(store, run_id)
    check_meant(run_id, source, of)
    check_whole(run_id, source)
    if has_repeats:
        verb = None  # the store's own would take the repeats along, or count them
    begun = _begun(store, run_id, fork_id, at)
    last_seq = begun.events if begun else check_fork_point(run_id, len(source), at)
    if verb is not None and "at" in takes:
        answer_of(verb, run_id, fork_id, at=last_seq)
    elif verb is not None and last_seq == len(source) and begun is None:
        answer_of(verb, run_id, fork_id)
        # A run in flight may have grown since we looked.
        last_seq = len(without_repeats(loaded(store, fork_id)))
    else:
        copy_events(store, begun or Copy(fork_id, run_id, last_seq), source, bool(event.messages))
    answer_of(store.append, fork_id, event.with_(forked_at=last_seq, seq=last_seq + 1))


def _source(store: Store, run_id: str) -> tuple[list[Event], bool]:
    """The events of a run, numbered and each once, and whether the store has some of them twice."""
    log = loaded(store, run_id)
    if not log:
        raise RunNotFoundError(run_id)
    source = numbered(run_id, without_repeats(log))
    return source, len(source) < len(log)


def _begun(store: Store, run_id: str, fork_id: str, at: int | None) -> Copy | None:
    """The copy that was broken off, if it is this one; `RunExistsError` if the id is taken otherwise."""
    events = without_repeats(loaded(store, fork_id))
    copy = unfinished_copy(fork_id, events)
    if copy is not None and copy.parent == run_id and at in (None, copy.events):
        return copy
    if events or fork_id in answer_of(store.list_runs):
        raise RunExistsError(fork_id)
    return None
