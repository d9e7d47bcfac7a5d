"""Verbs that list the runs and then read them, while somebody else deletes one in between: it is as if it had never been."""

from __future__ import annotations

from typing import Any

import pytest
from stored_runs import BODIES, Program, read_json, write

from agentor.engine.store import FileStore, SQLiteStore

PAUSED = [*BODIES[:4], {"type": "run_end", "status": "paused"}]

VERBS = [
    ["runs"],
    ["runs", "--tree", "--json"],
    ["runs", "--status", "paused"],
    ["pending"],
    ["verify"],
    ["verify", "--json"],
    ["export", "tables.db"],
    ["export", "--jsonl", "elsewhere"],
    ["prune", "--status", "paused", "--dry-run"],
    ["prune", "--status", "paused", "--yes"],
    ["rehearse", "app.py:agent"],
    ["worker", "app.py:agent", "--until-idle"],
]


@pytest.fixture
def looks() -> int:
    """How often a verb has looked at the log before the run is deleted."""
    return 0


@pytest.fixture
def vanishing(stored: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with the further run "gone", which is deleted when somebody is about to read its log."""
    write(stored, "gone", PAUSED)
    left = [None] * looks

    def deleted_first(read: Any) -> Any:
        def reading(self: Any, run_id: str) -> Any:
            if run_id == "gone" and not left:
                monkeypatch.setattr(kind, name, read)
                self.delete("gone")
            elif run_id == "gone":
                left.pop()
            return read(self, run_id)

        return reading

    kind, name = (SQLiteStore, "load") if stored.endswith(".db") else (FileStore, "read")
    monkeypatch.setattr(kind, name, deleted_first(getattr(kind, name)))
    return stored


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_run_that_is_deleted_between_the_list_and_its_log_is_no_event(
    program: Program, vanishing: str, verb: list[str]
) -> None:
    result = program(*verb, "--store", vanishing)
    assert result.exit_code == 0, result.output
    assert "damaged" not in result.output
    assert "gone" not in result.stderr


def test_verify_counts_the_runs_that_were_there(program: Program, vanishing: str) -> None:
    result = program("verify", "--store", vanishing)
    assert result.stdout == "2 runs checked: all is well.\n"


def test_verify_of_the_one_run_that_is_deleted_says_that_there_is_none(
    program: Program, vanishing: str
) -> None:
    result = program("verify", "gone", "--store", vanishing)
    assert result.exit_code == 1
    assert "no run 'gone' in this store" in result.stderr


def test_delete_is_content_when_somebody_else_was_quicker(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = SQLiteStore if stored.endswith(".db") else FileStore
    delete = kind.delete

    def too_late(store: Any, run_id: str) -> Any:
        if run_id == "finished":
            delete(store, run_id)
        return delete(store, run_id)

    monkeypatch.setattr(kind, "delete", too_late)
    told = read_json(program("delete", "finished", "killed", "--yes", "--json", "--store", stored))
    assert told["run_ids"] == ["killed"]


def test_tail_says_that_its_run_was_deleted(
    program: Program, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = SQLiteStore if stored.endswith(".db") else FileStore
    news_of = kind._news

    def deleted_once_seen(self: Any, run_id: str, after: int) -> Any:
        news = news_of(self, run_id, after)

        def look() -> Any:
            if found := news():
                self.delete(run_id)
            return found

        return look

    monkeypatch.setattr(kind, "_news", deleted_once_seen)
    result = program("tail", "killed", "--store", stored, "--json")
    assert len(result.stdout.splitlines()) == 4
    assert result.exit_code == 1
    assert "run killed was deleted while it was followed" in result.stderr


def test_a_file_in_which_nothing_is_whole_is_told_by_verify(
    program: Program, store_path: str
) -> None:
    if store_path.endswith(".db"):
        pytest.skip("has no lines that could be torn")
    store = FileStore(store_path)
    store.path("torn").write_text('{"type": "run_st')
    result = program("verify", "--store", store_path)
    assert result.exit_code == 1
    assert result.stdout.startswith("the store: torn.jsonl holds no whole event, and so no run")
