"""`agentor tail`: a run, or all of them, as it grows."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stored_runs import BODIES, Program, write

from agentor import MemoryStore, SQLiteStore
from agentor.cli import following
from agentor.engine.events import Event
from agentor.engine.store.tailing import _Patience
from agentor.inputs import open_store


def test_tail_of_a_finished_run_shows_it_and_ends(program: Program, stored: str) -> None:
    told = program("tail", "finished", "--store", stored)
    assert told.exit_code == 0
    assert "completed" in told.stdout.splitlines()[-1]
    lines = program("tail", "finished", "--json", "--after", "5", "--store", stored).stdout
    assert [json.loads(line)["seq"] for line in lines.splitlines()] == [6, 7]


def test_tail_of_a_run_that_goes_on_ends_with_it(program: Program, stored: str) -> None:
    store: Any = open_store(stored)

    def go_on() -> None:
        for body in BODIES[4:]:
            store.append("killed", Event.from_dict(body).with_(seq=None))

    later = threading.Timer(0.05, go_on)
    later.start()
    told = program("tail", "killed", "--json", "--store", stored)
    later.join()
    store.close()
    assert [json.loads(line)["seq"] for line in told.stdout.splitlines()] == list(range(1, 8))


def test_tail_does_not_stop_where_a_resumed_run_had_ended_before(
    program: Program, stored: str
) -> None:
    write(stored, "resumed", [*BODIES, *BODIES])
    told = program("tail", "resumed", "--json", "--store", stored)
    assert len(told.stdout.splitlines()) == 2 * len(BODIES)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What others do while a tail without a timeout waits, one at each wait. It may not wait longer than that."""
    doing: list[Callable[[], object]] = []

    def pause_s(patience: Any) -> float | None:
        if patience._timeout is not None:
            return None
        doing.pop(0)()
        return 0.0

    monkeypatch.setattr(_Patience, "pause_s", pause_s)
    return doing


@pytest.mark.parametrize("after", [0, 6, 7, 8, 99])
def test_tail_of_a_run_that_has_ended_ends_whatever_is_left_out(
    program: Program, stored: str, meanwhile: list[Any], after: int
) -> None:
    for form in ([], ["--json"]):
        told = program("tail", "finished", "--after", str(after), *form, "--store", stored)
        assert told.exit_code == 0
        assert len(told.stdout.splitlines()) == len(range(after, 7)) + (not form and after < 5)


@pytest.mark.parametrize("after", [3, 4, 6, 7, 99])
def test_tail_of_a_run_that_goes_on_ends_with_it_however_much_is_left_out(
    program: Program, stored: str, meanwhile: list[Any], after: int
) -> None:
    store: Any = open_store(stored)
    for body in BODIES[4:]:
        event = Event.from_dict(body).with_(seq=None)
        meanwhile.append(functools.partial(store.append, "killed", event))
    told = program("tail", "killed", "--after", str(after), "--json", "--store", stored)
    store.close()
    assert [json.loads(line)["seq"] for line in told.stdout.splitlines()] == list(
        range(after + 1, 8)
    )


def test_tail_counts_the_turns_that_come_while_they_are_left_out(
    program: Program, stored: str, meanwhile: list[Any]
) -> None:
    store: Any = open_store(stored)
    for kind in ("generation", "generation", "run_end"):
        meanwhile.append(functools.partial(store.append, "killed", Event(kind)))
    told = program("tail", "killed", "--after", "5", "--store", stored)
    store.close()
    assert [line.split()[2] for line in told.stdout.splitlines() if " turn " in line] == ["3"]


def test_tail_gives_up_after_the_timeout(program: Program, stored: str) -> None:
    told = program("tail", "killed", "--timeout", "0", "--store", stored)
    assert told.exit_code == 0
    assert "get_weather gave" in told.stdout


def test_tail_of_all_runs_tells_which_run_each_event_is_of(program: Program, stored: str) -> None:
    told = program("tail", "--after", "0", "--timeout", "0", "--json", "--store", stored)
    if stored.endswith("/"):
        assert told.exit_code == 2
        assert "no order" in told.stderr
        return
    events = [json.loads(line) for line in told.stdout.splitlines()]
    assert [event["position"] for event in events] == list(range(1, 12))
    assert [event["run_id"] for event in events] == ["finished"] * 7 + ["killed"] * 4
    text = program("tail", "--after", "0", "--timeout", "0", "--store", stored).stdout
    assert [line.split() for line in text.splitlines() if line.startswith("run")] == [
        ["run", "finished"],
        ["run", "killed"],
    ]
    assert program("tail", "--timeout", "0", "--store", stored).stdout == ""


def test_tail_of_an_unknown_run_is_an_error(program: Program, stored: str) -> None:
    told = program("tail", "nobody", "--store", stored)
    assert told.exit_code == 1
    assert "no run 'nobody'" in told.stderr


def test_tail_of_all_runs_counts_the_turns_of_each_on(program: Program, place: Any) -> None:
    """Also of a run that had begun before, and of one that goes on after its end."""
    with SQLiteStore("runs.db") as store:
        for event in (Event("generation", turn=1), Event("generation", turn=2)):
            store.append("a", event)
        start = store.last_position()
        for run_id, kind in (("a", "run_end"), ("b", "generation"), ("a", "generation")):
            store.append(run_id, Event(kind))
    shown = program("tail", "--after", str(start), "--timeout", "0").stdout
    assert [line.split()[2] for line in shown.splitlines() if " turn " in line] == ["1", "3"]


def test_tail_of_all_runs_begins_to_count_anew_when_an_id_is_another_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Follows(MemoryStore):
        """One that is followed while a run is deleted, and made anew."""

        def tail(self, run_id: Any = None, **_: Any) -> Iterator[Any]:
            yield 1, "a", Event("generation", seq=1)
            yield 2, "a", Event("generation", seq=2)
            self.append("a", Event("generation"))
            yield 3, "a", Event("generation", seq=1)
            self.append("a", Event("generation"))
            self.append("a", Event("generation"))  # of a fork, say, whose parent had the first two
            yield 5, "a", Event("generation", seq=3)

    following._all(Follows(), 0, 0, as_json=False, full=False)
    shown = capsys.readouterr().out
    assert [line.split()[2] for line in shown.splitlines() if " turn " in line] == list("1213")


@pytest.fixture
def ending(stored: str) -> Iterator[tuple[Any, Iterator[Event]]]:
    """A store, and what a tail tells of its run "killed", which has just failed while it was followed."""
    store: Any = open_store(stored)
    there = len(store.load("killed"))
    store.append("killed", Event("run_end", status="failed"))
    told = following._until_it_has_ended(store, "killed", there, None, there)
    assert next(told).status == "failed"
    yield store, told
    store.close()


def test_tail_tells_the_last_end_when_a_cancel_follows_another_one_at_once(ending: Any) -> None:
    store, told = ending
    store.append("killed", Event("cancel", by="Ada"))
    store.append("killed", Event("run_end", status="cancelled"))
    assert [event.type for event in told] == ["cancel", "run_end"]


def test_tail_ends_when_nothing_follows_an_end(
    ending: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LATE_CANCEL_S", 0.0)
    assert list(ending[1]) == []


def test_tail_of_a_run_that_is_deleted_as_soon_as_it_has_ended_has_told_its_end(
    ending: Any,
) -> None:
    store, told = ending
    store.delete("killed")
    assert list(told) == []
