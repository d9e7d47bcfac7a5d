"""What the file says, read by somebody who takes no part: every run's rows, folded as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import apsw

from agentor.engine.batch import Batch
from agentor.engine.decide import AskModel, decide
from agentor.engine.events import APPROVAL, TOOL_RESULT, Event
from agentor.engine.replay import RunState, evolve
from agentor.engine.request import build_request
from agentor.errors import LogCorruptError
from agentor.testing.checker import check_messages
from fuzz.disk import Disk

_NEW_ROWS = """
SELECT position, run_id, seq, body FROM agentor_events JOIN agentor_runs ON number = run
WHERE position > ? ORDER BY position
"""
_TABLE = "SELECT 1 FROM sqlite_schema WHERE name = 'agentor_events'"
_LINEAGE = "SELECT parent, parent_seq FROM agentor_runs WHERE run_id = ?"
_HOLDER = "SELECT owner, term FROM agentor_leases WHERE run_id = ?"


@dataclass
class Log:
    """One run: bodies, events, and the state after each (`states[n]` after n events)."""

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

    def consents(self, seq: int, call_id: str) -> int:
        """How often a person has consented to a call of that batch."""
        about = [event for event in self._about_batch(seq) if event.call_id == call_id]
        return sum(event.type == APPROVAL and event.status == "approved" for event in about)

    def _about_batch(self, seq: int) -> Iterator[Event]:
        """The events while the batch of the generation at `seq` is open, the one that settles it included."""
        for state, event in zip(self.states[seq:], self.events[seq:], strict=False):
            if state.batch is None or state.batch.seq != seq:
                return
            yield event

    def up_to(self, seq: int) -> Log:
        return Log(self.bodies[:seq], self.events[:seq], self.states[: seq + 1])


class Ledger:
    """Keeps up with the file by `refresh`; starts anew after a power cut."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.connection: apsw.Connection | None = None
        self._position = 0
        self.logs: dict[str, Log] = {}
        self.gaps: list[str] = []
        self.illegal: list[str] = []
        self._checked: set[str] = set()  # digests of conversations

    def refresh(self) -> None:
        if not self._has_tables():
            return
        with self._disk.spared():
            for position, run_id, seq, body in self._connected().execute(
                _NEW_ROWS, (self._position,)
            ):
                self._position = position
                self._take(run_id, seq, body)

    def holder(self, run_id: str) -> tuple[str | None, int] | None:
        """Owner and term of the run's lease."""
        with self._disk.spared():
            found: tuple[str | None, int] | None = self._connected().execute(_HOLDER, (run_id,)).get
        return found

    def integrity(self) -> str:
        """ "ok", or what SQLite has to say."""
        with self._disk.spared():
            return str(self._connected().execute("PRAGMA integrity_check").get)

    def _has_tables(self) -> bool:
        """False for a file that a power cut has taken, or of which it has left nothing."""
        if not os.path.exists(self._path):
            return False
        with self._disk.spared():
            found = self._connected().execute(_TABLE).get
        return found is not None

    def start_anew(self) -> None:
        self.close()
        self._position = 0
        self.logs = {}

    def close(self) -> None:
        if self.connection is not None:
            with self._disk.spared():
                self.connection.close()
            self.connection = None

    def _connected(self) -> apsw.Connection:
        if self.connection is None:
            self.connection = apsw.Connection(
                self._path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._disk.vfs_name
            )
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.pragma("query_only", True)
        return self.connection

    def _take(self, run_id: str, seq: int, body: str) -> None:
        if run_id not in self.logs:
            parent, parent_seq = self._connected().execute(_LINEAGE, (run_id,)).get
            self.logs[run_id] = self.logs[parent].up_to(parent_seq) if parent else Log()
        log = self.logs[run_id]
        if seq != len(log.events) + 1:
            self.gaps.append(f"{run_id}: seq {seq} follows {len(log.events)}")
        event = Event.from_json(body)
        try:
            state = evolve(log.state, event)
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
