"""A run as its log has it: what everybody starts from who only has a store and an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from agentor.engine.events import RUN_END, Event, without_repeats
from agentor.engine.recorder import off_loop
from agentor.engine.replay import RunState, with_messages
from agentor.engine.store.copying import check_whole, unmarked
from agentor.engine.store.protocol import Store, Tails
from agentor.errors import ConfigError, LogCorruptError, RunNotFoundError, SequenceConflictError

Recorded: TypeAlias = tuple[RunState, list[Event]]


def stored(store: Store | None) -> Store:
    """The store of an agent, or a `ConfigError` if it has none."""
    if store is None:
        raise ConfigError("this agent has no store: give it one, Agentor(store='runs.db')")
    return store


async def recorded(store: Store, run_id: str) -> Recorded:
    """The state that the log leads to, and its events, each generation with the messages it was sent.

    `RunNotFoundError` if there are none, `LogCorruptError` if they cannot be folded or are no run yet.
    """
    events = without_repeats(await off_loop(store, store.load, run_id))
    if not events:
        raise RunNotFoundError(run_id)
    check_whole(run_id, events)
    state, filled = with_messages(unmarked(events), run_id)
    if not len(state.transcript):
        raise LogCorruptError(run_id, 1, "no event says what the conversation is")
    return state, filled


def identity(state: RunState, events: Sequence[Event]) -> str:
    """What tells the run from any other of its id for as long as it lives: its nonce, or how it begins if an older
    version wrote it without one."""
    return state.nonce or events[0].to_json()


def another_run(run_id: str) -> RunNotFoundError:
    """For whoever meant a run that is gone, although its id may be another's by now."""
    error = RunNotFoundError(run_id)
    error.add_note(f"the run {run_id} that was meant was deleted; another may have its id by now")
    return error


async def reread(store: Store, run_id: str, known: Recorded | None) -> Recorded:
    """`recorded` once more, at little cost if nothing has been added to what was known.

    `RunNotFoundError` if that run is gone, whether or not another has its id by now.
    """
    if known is None:
        return await recorded(store, run_id)
    if await off_loop(store, _is_still_so, store, run_id, known[1]):
        return known
    return await recorded_still(store, run_id, identity(*known))


async def recorded_still(store: Store, run_id: str, which: str) -> Recorded:
    """`recorded` of the run with this `identity`. `RunNotFoundError` if the id is nobody's or another run's by now."""
    try:
        found = await recorded(store, run_id)
    except RunNotFoundError:
        raise another_run(run_id) from None
    if identity(*found) != which:
        raise another_run(run_id)
    return found


def has_ended_since(known: Recorded, seen: int) -> bool:
    """Whether somebody has brought the run to an end after its first `seen` events: whoever asked for it to go on did so
    before that."""
    state, events = known
    return state.status is not None and any(event.type == RUN_END for event in events[seen:])


async def overtaken(
    store: Store, run_id: str, state: RunState, conflict: SequenceConflictError
) -> Recorded:
    """The run as somebody else has gone on with it, for whoever wrote after `state` and found the seq taken: nothing but
    the seq kept the two apart. The conflict is raised if nobody has."""
    known = await recorded(store, run_id)
    if known[0].nonce != state.nonce:
        raise another_run(run_id) from conflict
    if known[0].seq == state.seq:
        raise conflict
    return known


def _is_still_so(store: object, run_id: str, events: Sequence[Event]) -> bool:
    """Whether the run ends with the same event as before. An event is never changed, but a run can be deleted."""
    last = events[-1]
    if last.seq is None or not isinstance(store, Tails):
        return False
    return list(store.tail(run_id, after=last.seq - 1, timeout=0)) == [last]
