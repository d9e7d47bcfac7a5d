"""Read runs one after the other, so that only one is in memory, and set the damaged ones aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentor.engine.events import Event, without_repeats
from agentor.engine.store.copying import check_whole
from agentor.engine.store.protocol import Store, check_run_id
from agentor.errors import ConfigError, LogCorruptError, RunNotFoundError

# Goes through items while it shows how far it is; `what` says what is done with them.
Progress: TypeAlias = Callable[[Sequence[Any], str], Iterable[Any]]


def silent(items: Sequence[Any], what: str) -> Iterable[Any]:
    """The progress that nobody sees."""
    return items


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run, or a file that should hold one, was left out or taken over with something missing."""

    run_id: str
    problem: str


def chosen_runs(store: Store, wanted: Sequence[str] = ()) -> list[str]:
    """The runs that are asked for in the order of the store, or all of them. `RunNotFoundError` names a missing one."""
    known = store.list_runs()
    if not wanted:
        return known
    missing = {check_run_id(run_id) for run_id in wanted}.difference(known)
    if missing:
        raise RunNotFoundError(min(missing))
    return [run_id for run_id in known if run_id in wanted]


def readable_runs(
    store: Store, run_ids: Iterable[str], problems: list[Problem]
) -> Iterator[tuple[str, list[Event]]]:
    """Each run with its log. What cannot be read, or is no run yet, is added to `problems` and passed over."""
    for run_id in run_ids:
        try:
            log = without_repeats(store.load(run_id))
            check_whole(run_id, log)
        except LogCorruptError as damage:
            problems.append(Problem(run_id, damage.damage))
            continue
        except ConfigError as damage:  # no run can have this id
            problems.append(Problem(run_id, str(damage)))
            continue
        if log:  # it may have been deleted since it was listed
            yield run_id, log
