"""Pages of runs while others delete, and what cannot be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore
from agentor.errors import ConfigError, RunNotFoundError


def filled(path: Path, count: int) -> SQLiteStore:
    store = SQLiteStore(path)
    for number in range(count):
        store.append(f"r{number}", Event("run_start"))
    return store


@given(
    limit=st.integers(1, 4),
    deleted=st.lists(st.lists(st.integers(0, 11), max_size=4), max_size=12),
    is_used_again=st.booleans(),
    backwards=st.booleans(),
)
def test_a_walk_through_the_pages_beside_deletes_gives_each_run_that_stays_once(
    tmp_path_factory: pytest.TempPathFactory,
    limit: int,
    deleted: list[list[int]],
    is_used_again: bool,
    backwards: bool,
) -> None:
    path = tmp_path_factory.mktemp("pages") / "runs.db"
    gone: set[str] = set()
    with filled(path, 12) as store, SQLiteStore(path) as other:
        seen: list[str] = []
        end: str | None = None
        while True:
            before, after = (end, None) if backwards else (None, end)
            page = store.list_runs(limit=limit, newest=backwards, before=before, after=after)
            if not page:
                break
            seen += page[::-1] if backwards else page
            end = page[0] if backwards else page[-1]
            for run_id in (f"r{number}" for number in (deleted.pop() if deleted else ())):
                if run_id not in gone:
                    gone.add(run_id)
                    other.delete(run_id)
                    if is_used_again:
                        other.append(run_id, Event("run_start"))
        stays = [f"r{number}" for number in range(12) if f"r{number}" not in gone]
        kept = [run_id for run_id in seen if run_id not in gone]
        assert kept == (stays[::-1] if backwards else stays)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("make"), st.integers(0, 5)),
            st.tuples(st.just("page"), st.integers(1, 3)),
        ),
        max_size=12,
    ),
    place=st.integers(0, 5),
)
@example(steps=[("page", 1), ("make", 0), ("make", 1)], place=4)
def test_a_page_goes_on_from_where_the_last_list_has_shown_the_run_of_that_id(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], place: int
) -> None:
    path = tmp_path_factory.mktemp("shown") / "runs.db"
    with filled(path, 6) as store, SQLiteStore(path) as other:
        for step, number in steps:
            if step == "page":
                store.list_runs(limit=number)
            else:
                other.delete(f"r{number}")
                other.append(f"r{number}", Event("run_start"))
        shown = store.list_runs()
        assert store.list_runs(after=shown[place]) == shown[place + 1 :]
        assert store.list_runs(before=shown[place]) == shown[:place]


def test_a_run_that_no_page_has_ended_with_is_not_found(tmp_path: Path) -> None:
    with filled(tmp_path / "runs.db", 3) as store:
        with pytest.raises(RunNotFoundError):
            store.list_runs(after="nobody")
        store.delete("r1")
        with pytest.raises(RunNotFoundError):
            store.runs(before="r1")


@pytest.mark.parametrize(
    "asked",
    [
        *({"limit": limit} for limit in (-1, "3", 1.0, True, 2**63)),
        *({"since": since} for since in ("x", float("nan"), float("inf"), True)),
        *({"status": status} for status in (["failed"], 1, b"failed")),
        {"agent": 3},
        *({"after": run_id} for run_id in ("", "a/b", 5, ["r0"])),
        {"before": ""},
    ],
)
def test_what_cannot_be_asked_is_a_config_error_that_names_the_argument(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    with filled(tmp_path / "runs.db", 2) as store:
        for ask in (store.list_runs, store.runs):
            with pytest.raises(ConfigError, match=rf"{next(iter(asked))}|bad run id"):
                ask(**asked)
        assert store.list_runs(limit=0) == []
        assert store.list_runs(limit=5, since=0) == ["r0", "r1"]
