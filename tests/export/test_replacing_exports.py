"""`--force`: what is in the directory afterwards is this export, and nothing is lost but what an earlier one had left."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentor.engine.events import Event
from agentor.engine.store import FileStore, MemoryStore, whole_file
from agentor.engine.store.owner import owner_id
from agentor.errors import ConfigError, StoreError
from agentor.export import earlier, jsonl
from agentor.export.jsonl import export_runs, import_runs, log_files
from tests.cli.stored_runs import BODIES, write
from tests.export.conftest import Program


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "files"


def add(store: Any, run_id: str, events: list[Event]) -> None:
    for event in events:
        store.append(run_id, event)


def content(directory: Path) -> dict[str, bytes]:
    """What an import would find, by run."""
    return {path.stem: path.read_bytes() for path in directory.glob("*.jsonl")}


def imported(directory: Path) -> set[str]:
    store = MemoryStore()
    import_runs(store, log_files([directory]))
    return set(store.list_runs())


def test_what_was_deleted_since_an_earlier_export_does_not_come_back(
    store: Any, story: list[Event], target: Path
) -> None:
    for run_id in ("kept", "private"):
        add(store, run_id, story)
    export_runs(store, target)
    store.delete("private")
    done = export_runs(store, target, replace=True)
    assert (done.runs, done.removed, done.left) == (["kept"], ["private"], [])
    assert imported(target) == {"kept"}
    assert b"private" not in (target / ".exported").read_bytes()


def test_an_export_of_one_run_replaces_an_export_of_all(
    store: Any, story: list[Event], target: Path
) -> None:
    for run_id in ("a", "b", "c"):
        add(store, run_id, story)
    export_runs(store, target)
    assert export_runs(store, target, ["b"], replace=True).removed == ["a", "c"]
    assert imported(target) == {"b"}


def test_an_export_that_replaces_nothing_leaves_the_earlier_ones_to_be_replaced_later(
    store: Any, story: list[Event], target: Path
) -> None:
    for run_id in ("a", "b"):
        add(store, run_id, story)
        export_runs(store, target, [run_id])
    assert imported(target) == {"a", "b"}
    store.delete("a")
    assert export_runs(store, target, replace=True).removed == ["a"]


def test_a_run_that_is_damaged_by_now_keeps_the_file_of_when_it_was_not(
    story: list[Event], tmp_path: Path, target: Path
) -> None:
    store = FileStore(tmp_path / "runs")
    for run_id in ("good", "hole"):
        add(store, run_id, story)
    export_runs(store, target)
    before = content(target)["hole"]
    lines = store.path("hole").read_text().splitlines(keepends=True)
    store.path("hole").write_text("".join(lines[:2] + lines[3:]))
    done = export_runs(FileStore(tmp_path / "runs"), target, replace=True)
    assert [problem.run_id for problem in done.damaged] == ["hole"]
    assert (done.removed, done.left) == ([], [])
    assert content(target)["hole"] == before


def foreign(target: Path, run_id: str, story: list[Event]) -> None:
    """Somebody else's file, which no export has made."""
    add(FileStore(target), run_id, story)


def changed(target: Path, run_id: str, story: list[Event]) -> None:
    """Somebody has gone on there with a run that was exported."""
    with open(target / f"{run_id}.jsonl", "a") as file:
        file.write(json.dumps({"type": "message", "text": "More.", "seq": len(story) + 1}) + "\n")


def linked(target: Path, run_id: str, story: list[Event]) -> None:
    """A name for a file elsewhere."""
    elsewhere = target.with_name("elsewhere.jsonl")
    (target / f"{run_id}.jsonl").rename(elsewhere)
    (target / f"{run_id}.jsonl").symlink_to(elsewhere)


def taken(target: Path, run_id: str, story: list[Event]) -> None:
    """Somebody works on a run there."""
    with FileStore(target) as store:
        store.release(store.acquire(run_id, owner_id(), 30.0))


@pytest.mark.parametrize("by_somebody_else", [foreign, changed, linked, taken])
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_what_is_not_as_an_export_has_left_it_is_neither_replaced_nor_taken_away(
    by_somebody_else: Callable[[Path, str, list[Event]], None],
    is_asked_for: bool,
    story: list[Event],
    target: Path,
) -> None:
    store = MemoryStore()
    for run_id in ("a", "z"):
        add(store, run_id, story)
    export_runs(store, target, ["a"] if by_somebody_else is foreign else [])
    by_somebody_else(target, "z", story)
    before = content(target)
    if is_asked_for:
        with pytest.raises(ConfigError, match="choose another directory"):
            export_runs(store, target, replace=True)
        assert content(target) == before
        return
    store.delete("z")
    add(store, "b", story)
    if by_somebody_else is taken:
        store.delete("a")
    done = export_runs(store, target, replace=True)
    assert (done.removed, "z" in done.left) == ([], True)
    assert content(target) == {**before, "b": before["a"]}


def test_the_list_of_an_export_names_nothing_outside_the_directory(
    story: list[Event], tmp_path: Path, target: Path
) -> None:
    store = MemoryStore()
    add(store, "a", story)
    export_runs(store, target)
    outside, notes = tmp_path / "outside.jsonl", target / "notes.txt"
    for file, name in ((outside, "../outside.jsonl"), (notes, "notes.txt")):
        file.write_text("mine")
        with open(target / ".exported", "a") as listed:
            listed.write(f"{hashlib.sha256(b'mine').hexdigest()}  {name}\n")
    assert export_runs(store, target, replace=True).removed == []
    assert outside.exists()
    assert notes.exists()


def steps(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> Iterator[None]:
    """Call `fail` before each step that changes the directory."""

    def before(place: Any, name: str) -> None:
        real = getattr(place, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            fail()
            return real(*args, **kwargs)

        monkeypatch.setattr(place, name, step)

    before(whole_file, "_give_name")
    before(jsonl.Earlier, "writing")
    before(Path, "unlink")
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("how", [Killed(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("last", range(8))
def test_an_export_that_dies_on_the_way_loses_nothing_and_the_next_one_is_whole(
    how: BaseException,
    last: int,
    story: list[Event],
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    for run_id in ("gone", "grows"):
        add(store, run_id, story[:3] if run_id == "grows" else story)
    export_runs(store, target)
    old = content(target)
    store.delete("gone")
    add(store, "grows", story[3:])
    add(store, "new", story)
    done = 0

    def fail() -> None:
        nonlocal done
        done += 1
        if done > last:
            raise how

    ended = False
    for _ in steps(monkeypatch, fail):
        with contextlib.suppress(Killed, StoreError, OSError):
            export_runs(store, target, replace=True)
            ended = True
    assert ended == (last == 7)
    there = content(target)
    assert there["grows"] in (old["grows"], b"".join(line(event) for event in story))
    assert "gone" not in there or there["gone"] == old["gone"]
    assert "gone" in there or {"grows", "new"} <= there.keys()
    again = export_runs(store, target, replace=True)
    assert (again.left, imported(target)) == ([], {"grows", "new"})
    assert FileStore(target).load("grows") == story


def line(event: Event) -> bytes:
    return f"{event.to_json()}\n".encode()


@pytest.mark.parametrize("replace", [False, True])
def test_of_two_exports_to_a_directory_at_once_the_second_is_refused_and_spoils_nothing(
    store: Any, story: list[Event], target: Path, replace: bool
) -> None:
    for run_id in ("first", "second", "third"):
        add(store, run_id, story)
    export_runs(store, target, ["first"])
    refused = []

    def meanwhile(items: Sequence[str], what: str) -> Iterator[str]:
        for item in items:
            with pytest.raises(StoreError, match="another export writes there now") as caught:
                export_runs(store, target, ["third"], replace=replace)
            refused.append(caught.value)
            yield item

    export_runs(store, target, ["second"], replace=replace, progress=meanwhile)
    assert len(refused) == 1
    assert content(target).keys() == ({"second"} if replace else {"first", "second"})
    export_runs(store, target, ["third"], replace=True)
    assert content(target).keys() == {"third"}


def test_where_directories_have_no_locks_runs_are_exported_without(
    store: Any, story: list[Event], target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    add(store, "run", story)
    monkeypatch.setattr(earlier.fcntl, "flock", flock)
    export_runs(store, target)
    assert content(target).keys() == {"run"}


def test_a_torn_list_is_a_list_of_what_is_whole_in_it(story: list[Event], target: Path) -> None:
    store = MemoryStore()
    for run_id in ("a", "b"):
        add(store, run_id, story)
    export_runs(store, target)
    listed = target / ".exported"
    os.truncate(listed, listed.stat().st_size - 5)
    with pytest.raises(ConfigError, match="was not made by `agentor export`, or has changed since"):
        export_runs(store, target, replace=True)
    (target / "b.jsonl").unlink()
    assert export_runs(store, target, replace=True).runs == ["a", "b"]
    assert export_runs(store, target, replace=True).left == []


def test_the_verb_tells_what_it_has_taken_away_and_what_it_has_left(
    program: Program, tmp_path: Path
) -> None:
    for run_id in ("a", "b"):
        write("runs.db", run_id, BODIES)
    first = program("export", "--jsonl", "out")
    assert (first.stdout, first.stderr) == ("out: 2 runs.\n", "")
    program("delete", "b", "--yes")
    write("out/", "other", BODIES)
    again = program("export", "--jsonl", "out", "--force")
    assert again.stdout == "out: 1 run, 1 of an earlier export taken away.\n"
    assert "1 run left in out that no export has written as it is: other. " in again.stderr
    as_json = json.loads(program("export", "--jsonl", "out", "--force", "--json").stdout)
    assert (as_json["runs"], as_json["removed"], as_json["left"]) == (1, [], ["other"])
    assert again.exit_code == 0
