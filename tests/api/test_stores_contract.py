"""Stores as the documents show them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentor import FileStore, MemoryStore, SQLiteStore
from agentor.engine.events import Event
from agentor.engine.store import fork_run, is_complete, new_run_id
from tests.engine.agents import agent

IDS_REFUSED = ["", ".", "..", ".x", "a/b", "a\\b", "a b", "ü", "a\n", "a\0", "x" * 129, None, 7]
IDS_TAKEN = ["a", "A-b_c.d", "0", "x" * 128, "-", "_", "a..b"]
BUNDLED = ["memory", "file", "sqlite"]


def bundled(name: str, tmp_path: Path) -> Any:
    return {
        "memory": lambda: MemoryStore(),
        "file": lambda: FileStore(tmp_path / "runs"),
        "sqlite": lambda: SQLiteStore(tmp_path / "runs.db"),
    }[name]()


def start(text: str = "hi") -> Event:
    return Event("run_start", agent="A", messages=[{"role": "user", "content": text}])


def test_the_file_store_keeps_one_json_object_per_line_in_a_file_named_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = agent(FileStore("runs")).run("hi")
    lines = Path(f"runs/{result.run_id}.jsonl").read_text().splitlines()
    bodies = [json.loads(line) for line in lines]
    assert [body["type"] for body in bodies] == [event.type for event in result.events]
    assert [body["seq"] for body in bodies] == list(range(1, len(lines) + 1))


def test_the_file_store_makes_its_directory(tmp_path: Path) -> None:
    FileStore(tmp_path / "a" / "b").append("r", start())
    assert (tmp_path / "a" / "b" / "r.jsonl").is_file()


def test_the_file_store_syncs_every_event_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for number in range(1, 4):
        synced.clear()
        store.append("r", start())
        assert synced
        assert len((tmp_path / "r.jsonl").read_text().splitlines()) == number


@pytest.mark.parametrize("name", BUNDLED)
def test_an_unknown_run_loads_as_an_empty_list(tmp_path: Path, name: str) -> None:
    store = bundled(name, tmp_path)
    assert store.load("nobody") == []
    assert store.list_runs() == []
    store.close()


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("bad", IDS_REFUSED)
def test_a_bad_id_is_a_value_error_in_every_verb(tmp_path: Path, name: str, bad: Any) -> None:
    store = bundled(name, tmp_path)
    store.append("ok", start())
    for verb in (
        lambda: store.append(bad, start()),
        lambda: store.load(bad),
        lambda: store.fork(bad, "new"),
        lambda: store.fork("ok", bad),
    ):
        with pytest.raises(ValueError, match="run id"):
            verb()
    assert store.list_runs() == ["ok"]
    store.close()


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("good", IDS_TAKEN)
def test_a_good_id_works_in_every_verb(tmp_path: Path, name: str, good: str) -> None:
    store = bundled(name, tmp_path)
    store.append(good, start())
    store.fork(good, "fork-of-it")
    assert [event.type for event in store.load(good)] == ["run_start"]
    assert store.list_runs() == [good, "fork-of-it"]
    store.close()


@pytest.mark.parametrize("name", BUNDLED)
def test_runs_are_listed_newest_last(tmp_path: Path, name: str) -> None:
    store = bundled(name, tmp_path)
    for run_id in ("b", "a", "c"):
        store.append(run_id, start())
    store.append("b", Event("message", text="x"))
    assert store.list_runs() == ["b", "a", "c"]
    store.close()


@pytest.mark.parametrize("name", BUNDLED)
def test_fork_copies_a_run_and_refuses_a_taken_id(tmp_path: Path, name: str) -> None:
    store = bundled(name, tmp_path)
    store.append("a", start("one"))
    store.append("b", start("two"))
    store.fork("a", "copy")
    assert store.load("copy") == store.load("a")
    with pytest.raises(ValueError, match="'b'"):
        store.fork("a", "b")
    with pytest.raises(KeyError, match="nobody"):
        store.fork("nobody", "new")
    assert store.load("b")[0].messages == start("two").messages
    store.append("copy", Event("message", text="x"))
    assert len(store.load("a")) == 1
    store.close()


def test_fork_run_gives_a_fresh_id_or_the_one_asked_for(store: Any) -> None:
    store.append("a", start())
    fresh = fork_run(store, "a")
    assert fork_run(store, "a", "named") == "named"
    assert len(fresh) == len(new_run_id()) == 32
    for run_id in (fresh, "named"):
        assert [e.type for e in store.load(run_id)] == ["run_start", "fork"]
        assert store.load(run_id)[-1].forked_from == "a"


@pytest.mark.parametrize("name", ["file", "sqlite"])
def test_what_was_appended_is_there_for_another_store_on_the_same_path(
    tmp_path: Path, name: str
) -> None:
    first = bundled(name, tmp_path)
    run = agent(first).run("hi")
    first.close()
    second = bundled(name, tmp_path)
    assert is_complete(second.load(run.run_id))
    assert agent(second).resume(run.run_id).final_output == run.final_output
    second.close()


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_store_closes_and_may_be_closed_twice(tmp_path: Path, name: str) -> None:
    store = bundled(name, tmp_path)
    store.append("r", start())
    store.close()
    store.close()


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_store_is_a_context_manager(tmp_path: Path, name: str) -> None:
    with bundled(name, tmp_path) as store:
        store.append("r", start())
        assert store.list_runs() == ["r"]


@pytest.mark.parametrize("name", BUNDLED)
def test_an_event_of_three_megabytes_and_of_any_text_comes_back_as_it_was(
    tmp_path: Path, name: str
) -> None:
    store = bundled(name, tmp_path)
    for text in ("x" * 3_000_000, "a\0b", "Grüße 👋\u2028\r\n\t", '"\\'):
        store.append("r", Event("message", text=text))
    assert [len(e.text or "") for e in store.load("r")] == [3_000_000, 3, 11, 2]
    assert store.load("r")[1].text == "a\0b"
    store.close()
