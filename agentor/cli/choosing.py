"""Which runs a verb is about: those of some statuses, of one agent or of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from agentor.cli.overview import DAMAGED, Overview, overview_of_row, overviews_of
from agentor.engine.store.protocol import Store
from agentor.errors import ConfigError, LogCorruptError


@runtime_checkable
class _Sorts(Protocol):
    """A store that finds runs by status and agent without reading their events."""

    def runs(self, *, status: str | None = None, agent: str | None = None) -> Sequence[Any]: ...

    def counts(self) -> dict[str, int]: ...


@runtime_checkable
class _TellsStatus(Protocol):
    """A store that can say how a run stands from the end of its log, where nothing unusual stands there."""

    def status_at_end(self, run_id: str) -> str | None: ...


def may_have(store: Store, run_ids: Sequence[str], statuses: Sequence[str]) -> list[str]:
    """The runs that have one of these statuses, and those of which only the whole log can tell."""
    if not isinstance(store, _TellsStatus):
        return list(run_ids)
    return [run_id for run_id in run_ids if _may_have(store, run_id, statuses)]


def _may_have(store: _TellsStatus, run_id: str, statuses: Sequence[str]) -> bool:
    try:
        status = store.status_at_end(run_id)
    except (LogCorruptError, ConfigError):  # for whoever reads it to tell
        return True
    return status is None or status in statuses


def runs_of(store: Store, statuses: Sequence[str], agent: str | None = None) -> Iterator[Overview]:
    """The runs, status by status, oldest first. Where only reading tells, one that may have such a status and cannot
    be read comes as damaged, whosever it is."""
    if isinstance(store, _Sorts):
        for status in statuses:
            yield from map(overview_of_row, store.runs(status=status, agent=agent))
        return
    rows = list(overviews_of(store, may_have(store, store.list_runs(), statuses)))
    yield from (row for row in rows if row.status == DAMAGED)
    for status in statuses:
        yield from (row for row in rows if row.status == status and agent in (None, row.agent))
