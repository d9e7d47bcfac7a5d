"""Leases in SQLite: one row per run, changed by one conditional statement.

The row stays when a lease is given back, so that the term never shrinks. A lease is free when nobody holds it,
when it has expired, or when its owner's process provably runs no more.
"""

from __future__ import annotations

from typing import Any

import apsw

from agentor.engine import clock
from agentor.engine.store.owner import is_gone
from agentor.engine.store.protocol import Holder, Lease
from agentor.errors import LeaseHeldError, LeaseLostError

_ACQUIRE = """
INSERT INTO agentor_leases (run_id, owner, term, expires_at)
VALUES (:run_id, :owner, 1, :expires_at)
ON CONFLICT (run_id) DO UPDATE SET
    term       = term + (owner IS NOT excluded.owner),
    owner      = excluded.owner,
    expires_at = excluded.expires_at
WHERE owner IS NULL OR owner = excluded.owner OR owner = :gone OR expires_at <= :now
RETURNING term
"""

_RENEW = """
UPDATE agentor_leases SET expires_at = :expires_at
WHERE run_id = :run_id AND owner = :owner AND term = :term
RETURNING term
"""

_RELEASE = """
UPDATE agentor_leases SET owner = NULL, expires_at = 0
WHERE run_id = :run_id AND owner = :owner AND term = :term
"""

_HOLDER = (
    "SELECT owner, term, expires_at FROM agentor_leases WHERE run_id = ? AND owner IS NOT NULL"
)


def acquire(connection: apsw.Connection, run_id: str, owner: str, ttl_s: float) -> Lease:
    now = clock.now()
    bindings = {"run_id": run_id, "owner": owner, "expires_at": now + ttl_s, "now": now}
    term = connection.execute(_ACQUIRE, bindings | {"gone": None}).get
    if term is None:
        holder, _, expires_at = connection.execute(_HOLDER, (run_id,)).get
        if not is_gone(holder):
            raise LeaseHeldError(run_id, holder, expires_at)
        term = connection.execute(_ACQUIRE, bindings | {"gone": holder}).get
    return Lease(run_id, owner, term, now + ttl_s, ttl_s)


def renew(connection: apsw.Connection, lease: Lease) -> Lease:
    expires_at = clock.now() + lease.ttl_s
    bindings = _named(lease) | {"expires_at": expires_at}
    if connection.execute(_RENEW, bindings).get is None:
        raise _lost(connection, lease)
    return Lease(lease.run_id, lease.owner, lease.term, expires_at, lease.ttl_s)


def release(connection: apsw.Connection, lease: Lease) -> None:
    connection.execute(_RELEASE, _named(lease))


def check(connection: apsw.Connection, run_id: str, lease: Lease | None) -> None:
    """Refuse an append by anyone but the holder. In the append's own transaction, so that it stays true."""
    holder = connection.execute(_HOLDER, (run_id,)).get
    if lease is not None:
        if holder is None or (run_id, *holder[:2]) != (lease.run_id, lease.owner, lease.term):
            raise _lost(connection, lease)
    elif holder is not None and _is_alive(holder):
        raise LeaseHeldError(run_id, holder[0], holder[2])


def holder(connection: apsw.Connection, run_id: str) -> Holder | None:
    """Who works on the run, as far as can be known."""
    found = connection.execute(_HOLDER, (run_id,)).get
    return Holder(found[0], found[2]) if found is not None and _is_alive(found) else None


def is_held(connection: apsw.Connection, run_id: str) -> bool:
    return holder(connection, run_id) is not None


def _is_alive(holder: Any) -> bool:
    owner, _, expires_at = holder
    return bool(expires_at > clock.now() and not is_gone(owner))


def _lost(connection: apsw.Connection, lease: Lease) -> LeaseLostError:
    holder = connection.execute(_HOLDER, (lease.run_id,)).get
    if holder is None:
        return LeaseLostError(lease.run_id)
    return LeaseLostError(lease.run_id, holder[0], holder[2])


def _named(lease: Lease) -> dict[str, str | int]:
    return {"run_id": lease.run_id, "owner": lease.owner, "term": lease.term}
