"""A run as its log has it: what everybody starts from who only has a store and an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from agentor.engine.events import FORK, RUN_END, Event, without_repeats
from agentor.engine.recorder import off_loop
from agentor.engine.replay import RunState, with_messages
from agentor.engine.store.copying import check_whole, unmarked
from agentor.engine.store.own import answer_of, loaded
from agentor.engine.store.protocol import Peeks, Store
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
    events = without_repeats(await off_loop(store, loaded, store, run_id))
    if not events:
        raise RunNotFoundError(run_id)
    check_whole(run_id, events)
    state, filled = with_messages(unmarked(events), run_id)
    if not len(state.transcript):
        raise LogCorruptError(run_id, 1, "no event says what the conversation is")
    return state, filled


def birth_seq(events: Sequence[Event]) -> int:
    """The seq of the event that began the run: its own `fork` event, or its first. Only there it differs for certain from
    another run of its id: the calls of two runs of one script are the same events."""
    forks = [seq for seq, event in enumerate(events, 1) if event.type == FORK]
    return forks[-1] if forks else 1


def identity(events: Sequence[Event]) -> str:
    """What tells the run from any other of its id for as long as it lives: its nonce, or how it begins if an older
    version wrote it without one."""
    birth = events[birth_seq(events) - 1]
    return birth.nonce or birth.to_json()


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
    return await recorded_still(store, run_id, identity(known[1]))


async def recorded_still(store: Store, run_id: str, which: str) -> Recorded:
    """`recorded` of the run with this `identity`. `RunNotFoundError` if the id is nobody's or another run's by now."""
    try:
        found = await recorded(store, run_id)
    except RunNotFoundError:
        raise another_run(run_id) from None
    if identity(found[1]) != which:
        raise another_run(run_id)
    return found


def has_ended_since(known: Recorded, seen: int) -> bool:
    """Whether somebody has brought the run to an end after its first `seen` events: whoever asked for it to go on did so
    before that."""
    state, events = known
    return state.status is not None and any(event.type == RUN_END for event in events[seen:])


async def overtaken(
    store: Store, run_id: str, known: Recorded, conflict: SequenceConflictError
) -> Recorded:
    """The run as somebody else has gone on with it, for whoever wrote after what was `known` and found the seq taken:
    nothing but the seq kept the two apart. The conflict is raised if nobody has."""
    found = await recorded_still(store, run_id, identity(known[1]))
    if found[0].seq == known[0].seq:
        raise conflict
    return found


def _is_still_so(store: object, run_id: str, events: Sequence[Event]) -> bool:
    """Whether it is this run, and as long as it was: an event is never changed, but a run can be deleted."""
    if not isinstance(store, Peeks):
        return False
    seq = birth_seq(events)
    return answer_of(store.peek, run_id, seq) == (len(events), events[seq - 1])
