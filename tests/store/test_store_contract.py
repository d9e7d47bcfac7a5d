"""The contract suite on the bundled stores, and on the smallest stores that somebody might write."""

from __future__ import annotations

from pathlib import Path

from agentor.engine.events import Event
from agentor.engine.store import FileStore, MemoryStore, SQLiteStore, Store
from agentor.testing.store_contract import StoreContract


class TestSQLiteStore(StoreContract):
    def make_store(self, place: Path) -> Store:
        return SQLiteStore(place / "runs.db")


class TestFileStore(StoreContract):
    def make_store(self, place: Path) -> Store:
        return FileStore(place / "runs")


class TestMemoryStore(StoreContract):
    is_persistent = False

    def make_store(self, place: Path) -> Store:
        return MemoryStore()


class ThreeMethods:
    """The smallest store: it promises nothing but to give back what it was given."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[str]] = {}

    def append(self, run_id: str, event: Event) -> None:
        self.bodies.setdefault(run_id, []).append(event.to_json())

    def load(self, run_id: str) -> list[Event]:
        return [Event.from_json(body) for body in self.bodies.get(run_id, [])]

    def list_runs(self) -> list[str]:
        return list(self.bodies)


class TestThreeMethods(StoreContract):
    is_persistent = False
    refuses_conflicts = False
    checks_values = False
    checks_run_ids = False

    def make_store(self, place: Path) -> Store:
        return ThreeMethods()


class CopiesRuns(ThreeMethods):
    """A store with `fork` as Agentor 0.1 had it: the whole run and nothing else."""

    def fork(self, src_run_id: str, dst_run_id: str) -> None:
        from agentor.errors import RunExistsError, RunNotFoundError

        if src_run_id not in self.bodies:
            raise RunNotFoundError(src_run_id)
        if dst_run_id in self.bodies:
            raise RunExistsError(dst_run_id)
        self.bodies[dst_run_id] = list(self.bodies[src_run_id])


class TestStoreThatCopiesRuns(TestThreeMethods):
    def make_store(self, place: Path) -> Store:
        return CopiesRuns()
