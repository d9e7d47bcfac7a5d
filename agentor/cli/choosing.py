"""Which runs a verb is about: those of some statuses, of one agent or of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from agentor.cli.overview import DAMAGED, Overview, overview_of_row, overviews_of
from agentor.engine.store.protocol import Store


@runtime_checkable
class _Sorts(Protocol):
    """A store that finds runs by status and agent without reading their events."""

    def runs(self, *, status: str | None = None, agent: str | None = None) -> Sequence[Any]: ...

    def counts(self) -> dict[str, int]: ...


def runs_of(store: Store, statuses: Sequence[str], agent: str | None = None) -> Iterator[Overview]:
    """The runs, status by status, oldest first. Where only reading tells, one that cannot be read comes as damaged,
    whosever it is."""
    if isinstance(store, _Sorts):
        for status in statuses:
            yield from map(overview_of_row, store.runs(status=status, agent=agent))
        return
    rows = list(overviews_of(store, store.list_runs()))
    yield from (row for row in rows if row.status == DAMAGED)
    for status in statuses:
        yield from (row for row in rows if row.status == status and agent in (None, row.agent))
