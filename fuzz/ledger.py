"""What the file says, read by somebody who takes no part: every run's rows, folded as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from agentor.engine import replay
from agentor.engine.batch import Batch
from agentor.engine.decide import AskModel, decide
from agentor.engine.events import APPROVAL, RUN_END, TOOL_CALL, TOOL_RESULT, Event
from agentor.engine.replay import RunState
from agentor.engine.request import Call, build_request
from agentor.errors import LogCorruptError
from agentor.testing.checker import check_messages
from fuzz.bank import Books, books
from fuzz.disk import Disk

_RUNS: Final = "SELECT number, run_id, parent, parent_seq, deleted_at IS NULL FROM agentor_runs"
_NEW_ROWS: Final = (
    "SELECT position, run, seq, body FROM agentor_events WHERE position > ? ORDER BY position"
)
_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE name = 'agentor_events'"
_STANDING: Final = """
SELECT (SELECT term FROM agentor_leases WHERE run_id = ?1),
       (SELECT status FROM agentor_runs WHERE run_id = ?1),
       (SELECT asked_at FROM agentor_signals WHERE run_id = ?1 AND kind = 'cancel'),
       (SELECT owner FROM agentor_leases WHERE run_id = ?1)
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands at a moment, as the file has it."""

    term: int | None = None  # of its lease
    status: str | None = None
    cancel_asked_at: float | None = None
    owner: str | None = None  # of its lease

    def is_of(self, worker: str) -> bool:
        """Whether the lease is in this worker's name."""
        return self.owner is not None and self.owner.split("/")[0] == worker


@dataclass
class Log:
    """One run: bodies, events, and the state after each (`states[n]` after n events)."""

    inherited: int = 0  # how many of its events it shares with its parent
    bodies: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    states: list[RunState] = field(default_factory=lambda: [RunState()])

    @property
    def state(self) -> RunState:
        return self.states[-1]

    def batch(self, seq: int) -> Batch | None:
        """The batch of the generation at `seq`, as it stood last."""
        found = None
        for state in self.states[seq:]:
            if state.batch is None or state.batch.seq != seq:
                break
            found = state.batch
        return found

    def has_result(self, seq: int, call_id: str) -> bool:
        """Whether a call of the batch of the generation at `seq` has its result."""
        about = self._about_batch(seq)
        return any(event.type == TOOL_RESULT and event.call_id == call_id for event in about)

    def result_of(self, seq: int, call_id: str) -> str | None:
        """What is recorded as the result of a call of that batch, if it has one and no error."""
        about = [event for event in self._about_batch(seq) if event.call_id == call_id]
        results = (event for event in about if event.type == TOOL_RESULT and event.error is None)
        return next((event.result for event in results), None)

    def consents(self, seq: int, call_id: str) -> int:
        """How often a person has consented to a call of that batch."""
        about = [event for event in self._about_batch(seq) if event.call_id == call_id]
        return sum(event.type == APPROVAL and event.status == "approved" for event in about)

    def recorded_args(self, seq: int, call_id: str) -> dict[str, Any] | None:
        """The arguments in the last claim of a call of that batch."""
        about = [event for event in self._about_batch(seq) if event.call_id == call_id]
        claims = [event.args for event in about if event.type == TOOL_CALL]
        return claims[-1] if claims else None

    def consented_args(self, seq: int, call_id: str) -> dict[str, Any] | None:
        """The arguments of a call of that batch as a person has changed them last, if somebody has."""
        about = [event for event in self._about_batch(seq) if event.call_id == call_id]
        decisions = (e for e in about if e.type == APPROVAL and e.status == "approved")
        changed = [event.args for event in decisions if event.args is not None]
        return changed[-1] if changed else None

    def was_rejected(self, seq: int, call_id: str) -> bool:
        """Whether what a person has said last of a call of that batch is that they refuse it."""
        about = [event for event in self._about_batch(seq) if event.call_id == call_id]
        said = [event.status for event in about if event.type == APPROVAL]
        return said[-1:] == ["rejected"]

    def has_ended_since(self, count: int) -> bool:
        """Whether there is an end of the run beyond its first `count` events."""
        return any(event.type == RUN_END for event in self.events[count:])

    def before_its_end(self) -> int:
        """How many events come before the last end of the run. Decisions may follow that."""
        return max(n for n, event in enumerate(self.events) if event.type == RUN_END)

    def _about_batch(self, seq: int) -> Iterator[Event]:
        """The events while the batch of the generation at `seq` is open, the one that settles it included."""
        for state, event in zip(self.states[seq:], self.events[seq:], strict=False):
            if state.batch is None or state.batch.seq != seq:
                return
            yield event

    def up_to(self, seq: int) -> Log:
        """The log of a fork that has as much of this one."""
        return Log(seq, self.bodies[:seq], self.events[:seq], self.states[: seq + 1])

    def results(
        self, run_id: str, name: str, error: str | None = None
    ) -> Iterator[tuple[str, bool]]:
        """Calls of a tool that have a result here and no error (or this one), those shared with the parent left out: the
        idempotency key, and whether they were asked for in this run, `run_id`."""
        for batch, call, event in self.tool_results():
            if event.name == name and event.error == error:
                yield batch.key_of(run_id, call), batch.origin is None

    def tool_results(self) -> Iterator[tuple[Batch, Call, Event]]:
        """The results that are not shared with the parent, with their calls and the batches as they were before."""
        own = slice(self.inherited, None)
        for state, event in zip(self.states[own], self.events[own], strict=False):
            if event.type == TOOL_RESULT:
                batch = state.batch
                assert batch is not None
                call = next(each for each in batch.calls if each.call_id == event.call_id)
                yield batch, call, event


class Ledger:
    """Keeps up with the file by `refresh`; starts anew after a power cut."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.connection: apsw.Connection | None = None
        self._writes: int | None = None  # of the disk, when the file was last read
        self._standings: dict[str, Standing] = {}  # as read since
        self._position = 0
        self._known: dict[int, Log] = {}  # by number, runs that are no longer there included
        self.logs: dict[str, Log] = {}  # the runs that are there
        self.gaps: list[str] = []
        self.illegal: list[str] = []
        self._checked: set[str] = set()  # digests of conversations

    def refresh(self) -> None:
        """Read what has been written since."""
        if self._disk.writes == self._writes:
            return
        with self._disk.spared():
            if not self._has_tables():
                return
            connection = self._connected()
            self._writes = self._disk.writes
            self._standings.clear()
            runs: list[Any] = connection.execute(_RUNS).fetchall()
            numbers = {run_id: number for number, run_id, *_ in runs}
            lineage = {number: (run_id, parent, at) for number, run_id, parent, at, _ in runs}
            rows: Any = connection.execute(_NEW_ROWS, (self._position,))
            for position, number, seq, body in rows:
                self._position = position
                run_id, parent, at = lineage[number]
                if number not in self._known:  # its parent's events came before, if they are there
                    shared = self._known.get(numbers.get(parent, 0), Log())
                    self._known[number] = shared.up_to(at)
                self._take(run_id, self._known[number], seq, body)
            self.logs = {run_id: self._known[number] for number, run_id, *_, there in runs if there}

    def standing(self, run_id: str) -> Standing:
        self.refresh()
        if run_id not in self._standings:
            with self._disk.spared():
                found: Any = self._connected().execute(_STANDING, (run_id,)).get
            self._standings[run_id] = Standing(*found)
        return self._standings[run_id]

    def books(self) -> Books:
        with self._disk.spared():
            return books(self._connected()) if self._has_tables() else Books()

    def integrity(self) -> str:
        """ "ok", or what SQLite has to say."""
        with self._disk.spared():
            return str(self._connected().execute("PRAGMA integrity_check").get)

    def _has_tables(self) -> bool:
        """False for a file that a power cut has taken, or of which it has left nothing."""
        if self._writes is not None:
            return True
        if not os.path.exists(self._path):
            return False
        return self._connected().execute(_TABLE).get is not None

    def start_anew(self) -> None:
        self.close()
        self._writes = None
        self._position = 0
        self._known = {}
        self.logs = {}

    def close(self) -> None:
        if self.connection is not None:
            with self._disk.spared():
                self.connection.close()
            self.connection = None

    def _connected(self) -> apsw.Connection:
        """Past the simulated disk, which it would only be slowed down by, unless opening the file changes it."""
        if self.connection is None:
            is_settled = os.path.exists(f"{self._path}-wal")
            is_settled &= not os.path.exists(f"{self._path}-journal")
            self.connection = apsw.Connection(
                self._path,
                flags=apsw.SQLITE_OPEN_READWRITE,
                vfs=None if is_settled else self._disk.vfs_name,
            )
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.pragma("query_only", True)
        return self.connection

    def _take(self, run_id: str, log: Log, seq: int, body: str) -> None:
        if seq != len(log.events) + 1:
            self.gaps.append(f"{run_id}: seq {seq} follows {len(log.events)}")
        event = Event.from_json(body)
        try:
            state = replay.evolve(log.state, event)
        except LogCorruptError as error:
            self.illegal.append(f"{run_id} at seq {seq}: {error}")
            return
        log.bodies.append(body)
        log.events.append(event)
        log.states.append(state)
        digest = state.transcript.digest()
        if digest not in self._checked:
            self._checked.add(digest)
            self.illegal += [f"{run_id} at seq {seq}: {breach}" for breach in breaches(state)]


def breaches(state: RunState) -> list[str]:
    """What is wrong with the next request of a run in this state; after an answer, with the next user's word."""
    messages = build_request(state.transcript, None)
    if messages and not isinstance(decide(state, state.turn + 1), AskModel):
        messages = [*messages, {"role": "user", "content": "And then?"}]
    return check_messages(messages) if messages else []
