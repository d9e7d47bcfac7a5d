"""What is written about a run and how it is read back: the statements on agentor_events and agentor_runs.

Functions here take a connection that is inside the writer's transaction, or one that only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import apsw

from agentor.engine import clock
from agentor.engine.events import FORK, GENERATION, RUN_END, RUN_START, Event
from agentor.engine.store.copying import check_whole
from agentor.engine.store.numbering import bodies_after, check_fork_point, check_meant, fork_tail
from agentor.engine.store.sqlite_deleting import free_id
from agentor.engine.store.summary import COUNT_MAX, COUNTS, UNFINISHED, summary
from agentor.engine.strict_json import clean_text
from agentor.errors import LogCorruptError, RunExistsError, RunNotFoundError

_logger = logging.getLogger("agentor.store")

SUMMARY = (
    *("status", "error", "agent", "model", "forked_from", "forked_at", "started_at", "ended_at"),
    *COUNTS,
)
SummaryAt: TypeAlias = tuple[int | None, dict[str, Any]]  # of which run, by its number

_COPIED = ", ".join(SUMMARY)

_PLACE = "SELECT number, last_seq FROM agentor_runs WHERE run_id = ? AND deleted_at IS NULL"

# Of a run's own first event: a fork inherits its parent's, and is no part.
_MAY_BE_A_PART = """
SELECT 1 FROM agentor_runs AS r JOIN agentor_events AS e ON e.run = r.number AND e.seq = 1
WHERE r.run_id = ? AND r.deleted_at IS NULL
AND CASE WHEN json_valid(e.body) THEN json_type(e.body, '$.copy') = 'object' END
"""

_ADD_EVENT = """
INSERT INTO agentor_events (run, seq, type, recorded_at, body) VALUES (?, ?, ?, ?, ?)
"""

_ADD_RUN = """
INSERT INTO agentor_runs (run_id, last_seq, status, created_at, updated_at)
VALUES (:run_id, 0, :status, :now, :now)
RETURNING number
"""

_FORGET_SUMMARY = f"""
UPDATE agentor_runs SET
    last_seq = coalesce(
        (SELECT max(seq) FROM agentor_events WHERE run = number), parent_seq),
    status = :status, {", ".join(f"{name} = NULL" for name in SUMMARY[1 : -len(COUNTS)])},
    {", ".join(f"{name} = 0" for name in COUNTS)}
WHERE run_id = :run_id
RETURNING number, updated_at
"""

_FORK_WHOLE = f"""
INSERT INTO agentor_runs (run_id, parent, parent_seq, last_seq, created_at, updated_at, {_COPIED})
SELECT :dst, run_id, last_seq, last_seq, :now, :now, {_COPIED}
FROM agentor_runs WHERE run_id = :src
"""

_FORK_EARLIER = """
INSERT INTO agentor_runs (run_id, parent, parent_seq, last_seq, status, created_at, updated_at)
VALUES (:dst, :src, :at, :at, :status, :now, :now)
RETURNING number
"""

# Each ancestor contributes the events up to the lowest seq at which anyone below it left. A parent is older than its
# fork: only damage can say otherwise, and it must not send a reader round in circles.
_LINEAGE = """
WITH RECURSIVE lineage (number, parent, parent_seq, upto) AS (
    SELECT number, parent, parent_seq, last_seq FROM agentor_runs
    WHERE run_id = :run_id AND deleted_at IS NULL
    UNION ALL
    SELECT r.number, r.parent, r.parent_seq, min(l.parent_seq, l.upto)
    FROM lineage AS l JOIN agentor_runs AS r ON r.run_id = l.parent AND r.number < l.number
)
"""

_MILESTONES = (
    _LINEAGE
    + """
SELECT CAST(e.body AS BLOB)
FROM lineage AS l JOIN agentor_events AS e ON e.run = l.number AND e.seq <= min(l.upto, :at)
WHERE e.type IN (:start, :end, :fork)
ORDER BY e.seq
"""
)

# total() and not sum(): nothing that a log may say can make it overflow. Up to COUNT_MAX it is exact.
_SUMS = ", ".join(
    f"""CAST(min(total(CASE WHEN json_type(e.body, '$.usage.{name}') IN ('integer', 'real') THEN
    min(max(CAST(json_extract(e.body, '$.usage.{name}') AS INTEGER), 0), {COUNT_MAX}) END), {COUNT_MAX})
    AS INTEGER)"""
    for name in COUNTS[1:]
)
_USAGE_UP_TO = f"""{_LINEAGE}
SELECT count(*), {_SUMS}
FROM lineage AS l JOIN agentor_events AS e ON e.run = l.number AND e.seq <= min(l.upto, :at)
WHERE e.type = :generation
"""

_SETS = {name: f"{name} = min({name} + :{name}, {COUNT_MAX})" for name in COUNTS}
_SETS["started_at"] = "started_at = coalesce(started_at, :started_at)"

_LOAD = (
    _LINEAGE
    + """
SELECT e.seq, CAST(e.body AS BLOB)
FROM lineage AS l JOIN agentor_events AS e ON e.run = l.number AND e.seq <= l.upto
ORDER BY e.seq
"""
)


_LOAD_AFTER = (
    _LINEAGE
    + """
SELECT e.seq, CAST(e.body AS BLOB)
FROM lineage AS l JOIN agentor_events AS e ON e.run = l.number AND e.seq BETWEEN :after + 1 AND l.upto
ORDER BY e.seq
"""
)

_PEEK = (
    _LINEAGE
    + """
SELECT e.seq, CAST(e.body AS BLOB)
FROM lineage AS l JOIN agentor_events AS e ON e.run = l.number AND e.seq = :seq
WHERE :seq <= l.upto
"""
)

# Joined to the runs, since what a deleted run has left to its forks is nobody's news.
_AFTER = """
SELECT e.position, r.run_id, e.seq, CAST(e.body AS BLOB)
FROM agentor_events AS e CROSS JOIN agentor_runs AS r ON r.number = e.run
WHERE e.position > :after AND r.deleted_at IS NULL AND r.run_id NOT LIKE '.%'
ORDER BY e.position LIMIT :limit
"""


def append(connection: apsw.Connection, run_id: str, events: Sequence[Event]) -> None:
    """Add events at the end of a run, which is created by its first."""
    now = clock.now()
    place = _place(connection, run_id)
    last_seq = 0 if place is None else place[1]
    bodies = bodies_after(run_id, last_seq, events)
    if not bodies:
        return
    number = _new_run(connection, run_id, now) if place is None else place[0]
    rows = enumerate(zip(events, bodies, strict=True), last_seq + 1)
    connection.executemany(
        _ADD_EVENT,
        [(number, seq, clean_text(event.type), now, body) for seq, (event, body) in rows],
    )
    _update_run(connection, number, last_seq + len(bodies), now, summary(events))


def load(connection: apsw.Connection, run_id: str) -> list[Event]:
    """Every event of a run, those it shares with its ancestors first; [] if there is no such run."""
    try:
        with connection:  # both answers as of one moment
            last_seq = last_seq_of(connection, run_id)
            rows = connection.execute(_LOAD, {"run_id": run_id}).fetchall()
    except apsw.CorruptError as error:  # others may lie on pages that are whole
        raise LogCorruptError(
            run_id, None, f"SQLite cannot read it in {connection.db_filename('main')} ({error})"
        ) from error
    events = [_event(run_id, expected, row) for expected, row in enumerate(rows, 1)]
    if last_seq is not None and len(events) < last_seq:
        raise LogCorruptError(run_id, len(events) + 1, f"the log should go on to seq {last_seq}")
    return events


def load_after(
    connection: apsw.Connection, run_id: str, after: int, number: int | None = None
) -> tuple[int | None, list[Event]]:
    """The number of a run, None if there is no such run, and its events with a seq above `after`.

    No events if it is not the run with the `number` that is given. Costs little when there are none.
    """
    with connection:  # both answers as of one moment
        there, last_seq = _place(connection, run_id) or (None, 0)
        if last_seq <= after or number not in (None, there):
            return there, []
        rows = connection.execute(_LOAD_AFTER, {"run_id": run_id, "after": after}).fetchall()
    return there, [_event(run_id, expected, row) for expected, row in enumerate(rows, after + 1)]


def peek(connection: apsw.Connection, run_id: str, seq: int) -> tuple[int, Event | None]:
    """The seq of the last event of a run and its event `seq`; (0, None) if there is no such run."""
    with connection:  # both answers as of one moment
        last_seq = last_seq_of(connection, run_id)
        row: Any = connection.execute(_PEEK, {"run_id": run_id, "seq": seq}).get
    return last_seq or 0, None if row is None else _event(run_id, seq, row)


def last_position(connection: apsw.Connection) -> int:
    return int(connection.execute("SELECT coalesce(max(position), 0) FROM agentor_events").get)


def all_after(
    connection: apsw.Connection, position: int, limit: int
) -> tuple[int, list[tuple[int, str, Event]]]:
    """Where to go on, and the events of all runs above a position: up to `limit`, without those that are damaged."""
    rows: list[Any] = connection.execute(_AFTER, {"after": position, "limit": limit}).fetchall()
    found = []
    for place, run_id, seq, body in rows:
        try:
            found.append((place, run_id, _event_of(run_id, seq, body)))
        except LogCorruptError as error:  # that run's own trouble
            _logger.warning("%s", error)
    return (rows[-1][0] if rows else position), found


def fork(
    connection: apsw.Connection,
    src: str,
    dst: str,
    at: int | None,
    event: Event | None,
    there: SummaryAt | None,
    of: Event | None,
) -> None:
    """Let `dst` share the events of `src` up to `at`; `there` is what `summary_at` said of that place before, `of` an
    event that `src` has."""
    place: Any = connection.execute(_PLACE, (src,)).get
    if place is None:
        raise RunNotFoundError(src)
    number, last_seq = place
    if of is not None:
        check_meant(src, [peek(connection, src, of.seq or 0)[1]], of)
    if connection.execute(_MAY_BE_A_PART, (src,)).get:
        check_whole(src, load(connection, src))
    if last_seq_of(connection, dst) is not None:
        raise RunExistsError(dst)
    at = check_fork_point(src, last_seq, at)
    free_id(connection, dst)
    now = clock.now()
    if at == last_seq:
        connection.execute(_FORK_WHOLE, {"src": src, "dst": dst, "now": now})
    else:
        if there is None or there[0] != number:  # the id is another run's by now
            there = summary_at(connection, src, at)
        row = {"src": src, "dst": dst, "at": at, "status": UNFINISHED, "now": now}
        _update_run(connection, int(connection.execute(_FORK_EARLIER, row).get), at, now, there[1])
    append(connection, dst, fork_tail(event, at))


def summary_at(connection: apsw.Connection, run_id: str, at: int) -> SummaryAt:
    """The number of a run and the `summary` of its events up to `at`, without reading most of them."""
    bindings = {"run_id": run_id, "at": at}
    kinds = {"start": RUN_START, "end": RUN_END, "fork": FORK}
    with connection:  # all answers as of one moment
        place: Any = connection.execute(_PLACE, (run_id,)).get
        milestones = connection.execute(_MILESTONES, bindings | kinds).fetchall()
        sums: Any = connection.execute(
            _USAGE_UP_TO, bindings | {"generation": GENERATION}
        ).fetchall()
    counts = {name: count for name, count in zip(COUNTS, sums[0], strict=True) if count}
    found = summary(_event_of(run_id, None, body) for (body,) in milestones)
    return (None if place is None else place[0]), found | counts


def summarise_anew(connection: apsw.Connection, run_id: str) -> None:
    """Work out a run's summary from its events, as if it had never been kept."""
    bindings = {"run_id": run_id, "status": UNFINISHED}
    place: Any = connection.execute(_FORGET_SUMMARY, bindings).get
    if place is None:  # where the id itself is damaged
        raise RunNotFoundError(run_id)
    number, updated_at = place
    events = load(connection, run_id)
    _update_run(connection, number, len(events), updated_at, summary(events))


def last_seq_of(connection: apsw.Connection, run_id: str) -> int | None:
    """None if there is no such run."""
    place = _place(connection, run_id)
    return None if place is None else place[1]


def _place(connection: apsw.Connection, run_id: str) -> tuple[int, int] | None:
    """A run's number and last seq."""
    found: Any = connection.execute(_PLACE, (run_id,)).get
    if found is not None and type(found[1]) is not int:
        raise LogCorruptError(run_id, None, f"its row ends at seq {found[1]!r}")
    return found  # type: ignore[no-any-return]


def _new_run(connection: apsw.Connection, run_id: str, now: float) -> int:
    free_id(connection, run_id)
    row = {"run_id": run_id, "status": UNFINISHED, "now": now}
    return int(connection.execute(_ADD_RUN, row).get)


def _update_run(
    connection: apsw.Connection, number: int, last_seq: int, now: float, changes: dict[str, Any]
) -> None:
    # Naming only what changes spares the indexes: most appends touch no column that has one.
    sets = [_SETS.get(name, f"{name} = :{name}") for name in changes]
    connection.execute(
        f"UPDATE agentor_runs SET {', '.join(['last_seq = :last_seq', 'updated_at = :now', *sets])} "
        "WHERE number = :number",
        changes | {"last_seq": last_seq, "now": now, "number": number},
    )


def _event(run_id: str, expected: int, row: Any) -> Event:
    seq, body = row
    if seq != expected:
        raise LogCorruptError(run_id, expected, f"the log goes on with seq {seq} instead")
    try:
        event = Event.from_json(body)
    except (ValueError, TypeError) as error:
        raise LogCorruptError(run_id, seq, str(error)) from error
    if event.seq != seq:
        raise LogCorruptError(run_id, seq, f"the event says that its seq is {event.seq}")
    return event


def _event_of(run_id: str, seq: int | None, body: Any) -> Event:
    try:
        return Event.from_json(body)
    except (ValueError, TypeError) as error:
        raise LogCorruptError(run_id, seq, str(error)) from error
