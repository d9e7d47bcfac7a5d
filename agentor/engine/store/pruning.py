"""Which runs a prune takes: the same rule for every bundled store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from agentor.engine import clock
from agentor.engine.store.protocol import Removed, check_number, check_run_id, shown
from agentor.engine.store.summary import STATUSES, UNFINISHED, no_such_status
from agentor.errors import ConfigError

Age: TypeAlias = float | timedelta | datetime
NOT_ENDED = frozenset({UNFINISHED, "paused"})


@dataclass(frozen=True, slots=True)
class Choice:
    """Runs of these statuses, last changed before a moment, but not the newest of them."""

    before: float | None  # seconds since the epoch
    statuses: frozenset[str] | None  # None: every one of runs that have ended
    keep: int
    only: frozenset[str] | None = None  # run ids; None: all there are

    @classmethod
    def checked(
        cls,
        older_than: Age | None,
        status: str | Iterable[str] | None,
        keep: int | None,
        only: Iterable[str] | None,
    ) -> Choice:
        if older_than is None and status is None and keep is None and only is None:
            raise ConfigError("prune what? give older_than, status, keep or only")
        if keep is not None and (type(keep) is not int or keep < 0):
            raise ConfigError(f"keep={shown(keep)}: give the number of newest runs to keep")
        before = None if older_than is None else _moment(older_than)
        statuses = None if status is None else _statuses(status)
        return cls(before, statuses, keep or 0, None if only is None else _ids(only))

    def of(self, runs: Iterable[tuple[str, str, float]]) -> list[tuple[str, float]]:
        """Which of the runs `(run_id, status, changed_at)`, of all there are, oldest first; as `(run_id, changed_at)`.

        `ConfigError`: a status that we do not know, and that none of the runs has.
        """
        of_status, seen = [], set(STATUSES)
        for run_id, status, changed_at in runs:
            seen.add(status)
            if self._takes(status):
                of_status.append((run_id, changed_at))
        for status in sorted((self.statuses or frozenset()) - seen):
            raise no_such_status(status)
        old = of_status[: max(len(of_status) - self.keep, 0)]
        return [each for each in old if self._is_meant(*each)]

    def _is_meant(self, run_id: str, changed_at: float) -> bool:
        if self.before is not None and changed_at >= self.before:
            return False
        return self.only is None or run_id in self.only

    def _takes(self, status: str) -> bool:
        return status not in NOT_ENDED if self.statuses is None else status in self.statuses


def _statuses(status: Any) -> frozenset[str]:
    with contextlib.suppress(TypeError):
        statuses = frozenset([status] if isinstance(status, str) else status)
        if all(isinstance(each, str) for each in statuses):
            return statuses
    raise ConfigError(f"status={status!r}: give a status, or several")


def _ids(only: Any) -> frozenset[str]:
    if isinstance(only, Iterable) and not isinstance(only, str | bytes):
        return frozenset(map(check_run_id, only))
    raise ConfigError(f"only={shown(only)}: give run ids, a list of them")


def _moment(older_than: Any) -> float:
    what = "seconds (0 or more), a timedelta or a datetime"
    if isinstance(older_than, datetime):
        try:
            return older_than.timestamp()
        except (OverflowError, ValueError):
            raise ConfigError(f"older_than={older_than!r}: give a later moment") from None
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    seconds = check_number("older_than", older_than, what)
    if not seconds >= 0:
        raise ConfigError(f"older_than={older_than!r}: give {what}")
    return clock.now() - seconds


def removed(logs: Iterable[tuple[str, list[str]]], held: list[str]) -> Removed:
    """What taking these runs `(run_id, bodies)` away comes to, where no two runs share an event."""
    bodies = dict(logs)
    lengths = [len(body.encode()) for log in bodies.values() for body in log]
    return Removed(list(bodies), held, len(lengths), sum(lengths))
