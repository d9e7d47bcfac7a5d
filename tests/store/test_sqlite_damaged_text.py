"""Bytes in a database file that are no text any more harm the run or the row they stand in, and no other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from agentor import Agentor
from agentor.cli import main
from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore
from agentor.errors import LogCorruptError, StatementError, StoreError
from agentor.testing import ScriptedModel, calls

WORDS = (
    "an-agent",
    "a-model",
    "an-owner",
    "an-asker",
    "a-letter",
    "a-kind",
    "a-payload",
    "a-fault",
)


def written(path: Path) -> bytes:
    """A file whose texts are known words: a sound run, one to be damaged, and a fork of that."""
    model = ScriptedModel([calls(("look", {})), "a-text"], model="a-model")
    with SQLiteStore(path) as store:
        store.append("sound", Event("run_start", agent="sound", messages=[]))
        agent = Agentor("an-agent", model=model, store=store, tools=[look])
        agent.run("a-question", run_id="hurt", tracing=False)
        store.fork("hurt", "fork")
        store.append("fork", Event("run_end", status="failed", error="a-fault"))
        store.acquire("sound", "an-owner", 1000.0)
        store.ask("sound", "cancel", by="an-asker")
        transaction = store.transact("hurt")
        transaction.put("a-kind", json.dumps("a-payload"), "a-letter")
        transaction.commit([]).result()
    return path.read_bytes()


def look() -> str:
    """Look around."""
    return "a-view"


def damaged(path: Path, word: str) -> Iterator[int]:
    """The file again and again, each time with another place damaged where the word stands."""
    whole = written(path)
    place = whole.find(word.encode())
    assert place > 0
    while place > 0:
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=True)
        path.write_bytes(whole[: place + 2] + b"\xff" + whole[place + 3 :])
        yield place
        place = whole.find(word.encode(), place + 1)


LOOKS: dict[str, Callable[[SQLiteStore], object]] = {
    "list_runs": SQLiteStore.list_runs,
    "runs": SQLiteStore.runs,
    "counts": SQLiteStore.counts,
    "integrity_check": SQLiteStore.integrity_check,
    "load": lambda store: store.load("hurt"),
    "load a fork": lambda store: store.load("fork"),
    "holder": lambda store: store.holder("sound"),
    "asked": lambda store: store.asked("sound"),
    "asked_by": lambda store: store.asked_by("sound", "cancel"),
    "runs_asked": lambda store: store.runs_asked("cancel"),
    "letters": SQLiteStore.letters,
    "claim_letter": lambda store: store.claim_letter(1.0),
    "append": lambda store: store.append("hurt", Event("message", text="more")),
    "fork": lambda store: store.fork("hurt", "second"),
    "fork at a seq": lambda store: store.fork("hurt", "third", at=1),
    "rebuild_runs": SQLiteStore.rebuild_runs,
    "prune": lambda store: store.prune(older_than=0),
}


@pytest.mark.parametrize("word", [*WORDS, "hurt", "a-text", "a-question", "a-view", "tool_result"])
def test_damaged_text_anywhere_is_a_store_error_at_most_and_leaves_the_other_run_alone(
    tmp_path: Path, word: str
) -> None:
    for _ in damaged(tmp_path / "runs.db", word):
        with SQLiteStore(tmp_path / "runs.db") as store:
            assert "sound" in store.list_runs()
            for name, act in LOOKS.items():
                if name == "prune":  # which takes the run that nobody holds
                    assert [each.type for each in store.load("sound")] == ["run_start"]
                with contextlib.suppress(StoreError):
                    act(store)


@pytest.mark.parametrize(("word", "seq"), [("a-question", 1), ("a-view", 4), ("a-text", 7)])
def test_a_damaged_event_is_damage_of_its_run_that_names_the_seq(
    tmp_path: Path, word: str, seq: int
) -> None:
    path = tmp_path / "runs.db"
    next(damaged(path, word))
    with SQLiteStore(path) as store:
        agent = Agentor("an-agent", model=ScriptedModel(["more"]), store=store, tools=[look])
        for act in (store.load, agent.resume, lambda run_id: list(store.tail(run_id, timeout=0))):
            with pytest.raises(LogCorruptError, match="utf-8") as told:
                act("hurt")
            assert (told.value.run_id, told.value.seq) == ("hurt", seq)
        found = store.integrity_check()
        assert [each for each in found if "'hurt' is damaged" in each and f"seq {seq}" in each]
        assert not [each for each in found if "'sound'" in each]
        seen = [(run_id, event.seq) for _, run_id, event in store.tail(timeout=0)]
        assert ("sound", 1) in seen
        assert ("hurt", seq) not in seen


def test_every_reading_verb_goes_on_to_the_runs_that_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    next(damaged(path, "a-view"))

    def told(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, "--store", str(path)])
        assert not done.exception or isinstance(done.exception, SystemExit)
        return done.output

    verified = json.loads(told("verify", "--json"))
    assert verified["runs"] == 3
    assert {each["run_id"] for each in verified["problems"]} == {"hurt", "fork"}
    assert "seq 4" in told("show", "hurt")
    assert "sound" in told("runs")
    exported = told("export", str(tmp_path / "out.db"))
    assert "hurt" in exported
    assert "hurt" in told("export", "--jsonl", str(tmp_path / "out"))
    assert (tmp_path / "out" / "sound.jsonl").exists()


def test_a_damaged_letter_waits_with_the_reason_and_the_next_is_delivered(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    next(damaged(path, "a-payload"))
    with SQLiteStore(path) as store:
        transaction = store.transact("hurt")
        transaction.put("a-kind", '"sound"', "next")
        transaction.commit([]).result()
        letter = store.claim_letter(1.0)
        assert letter is not None
        assert (letter.key, letter.payload) == ("next", "sound")
        bad, _ = store.letters()
        assert "its payload is damaged" in (bad.error or "")
        assert "\N{REPLACEMENT CHARACTER}" in bad.payload


def test_what_is_shown_of_a_damaged_row_has_a_mark_in_the_place_of_the_damage(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    written(path)
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(
            "UPDATE agentor_runs SET agent = CAST(x'61ff62' AS TEXT) WHERE number = 2"
        )
    connection.close()
    with SQLiteStore(path) as store:
        (sound, hurt, _) = store.runs()
        assert (sound.agent, hurt.agent) == ("sound", "a\N{REPLACEMENT CHARACTER}b")
        assert hurt.status == "completed"
        assert any("summary is out of date (agent)" in each for each in store.integrity_check())
        store.rebuild_runs()
        assert store.runs()[1].agent == "an-agent"
        assert store.integrity_check() == []


def test_a_run_whose_id_is_damaged_stops_no_worker_no_export_and_no_rebuilding(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    idle = Agentor("an-agent", model=ScriptedModel(["done"], model="a-model"), store=str(path))
    with SQLiteStore(path) as store:
        for name in ("hurt", "sound"):
            idle.enqueue("go", run_id=name)
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(
            "UPDATE agentor_runs SET run_id = CAST(x'68ff74' AS TEXT) WHERE run_id = 'hurt'"
        )
    connection.close()
    report = idle.work(until_idle=True, poll_s=0.001)
    assert report.finished == {"sound": "completed"}
    assert list(report.failed) == ["h\N{REPLACEMENT CHARACTER}t"]
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["export", "--jsonl", str(out), "--store", str(path)])
    assert done.exit_code == 1
    assert [each.name for each in out.glob("*.jsonl")] == ["sound.jsonl"]
    with SQLiteStore(path) as store:
        (told,) = store.rebuild_runs()
        assert "id is damaged" in told
    idle.close()


def test_a_tools_own_table_is_read_as_it_is(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        transaction = store.transact("run")
        transaction.begun.result()
        assert transaction.execute("SELECT x'ff'", ()) == [(b"\xff",)]
        with pytest.raises((UnicodeDecodeError, StatementError)):
            transaction.execute("SELECT CAST(x'ff' AS TEXT)", ())
        transaction.abort()
