"""The bench's own machinery, with sizes so small that nothing it measures means anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.machine import machine, told
from bench.measures import MEASURES, SLOW_SYNC_MS, Measure
from bench.page import BEGIN, END, filled
from bench.peers import NAMES, PEERS
from bench.rows import Row, at_least, at_most
from bench.sizes import TINY
from bench.trials import Failed, Lab, trial

_PEERS = {NAMES[peer] for peer in PEERS}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def _measure(name: str) -> Measure:
    return next(measure for measure in MEASURES if measure.name == name)


def _no_peer_is_here(lab: Lab) -> None:
    """So that the test needs no registry: every trial of a peer has failed already."""
    for turns in TINY.runs:
        for peer in PEERS:
            run = trial(peer, "run", turns=turns)
            lab.failures[run] = "not installed"
    runs, turns = TINY.many
    slow: dict[str, Any] = {"sync_ms": SLOW_SYNC_MS}
    more: dict[str, Any]
    for more in ({}, slow):
        many = trial("agentor_0_1", "concurrent", runs=runs, turns=turns, **more)
        lab.failures[many] = "not installed"
    lab.failures[trial("agentor_0_1", "run", turns=TINY.runs[0], **slow)] = "not installed"


def test_a_trial_runs_in_a_process_of_its_own_and_leaves_its_files_to_those_that_read_them(
    lab: Lab,
) -> None:
    run = trial("ours", "run", turns=2)
    load = trial("ours", "load", run)
    lab.race([load, run], 2)
    assert not lab.failures
    assert [len(lab.measured[each]) for each in (run, load)] == [2, 2]
    assert {found["events"] for found in lab.measured[run]} == {1 + 3 * 2 + 3}
    assert lab.median(run, "bytes") > lab.median(run, "json_bytes")


def test_a_figure_of_several_trials_says_how_far_they_lie_apart(lab: Lab) -> None:
    run = trial("ours", "run", turns=3)
    lab.measured[run] = [{"seconds": seconds} for seconds in (3.0, 1.0, 2.5)]
    assert (lab.median(run, "seconds"), lab.spread(run, "seconds")) == (2.5, (1.0, 3.0))
    lab.measured[run] = [{"seconds": 3.0}]
    assert lab.spread(run, "seconds") is None


def test_trials_are_interleaved(lab: Lab) -> None:
    started: list[str] = []
    lab.told = started.append
    ours = trial("ours", "run", turns=1)
    lab.race([ours, trial("bare_apsw", "run", ours, turns=1)], 2)
    assert started == ["ours-run-1", "bare_apsw-run-1"] * 2


def test_the_floor_makes_as_many_commits_as_our_run_did(lab: Lab) -> None:
    ours = trial("ours", "run", turns=3, sync_ms=1)
    floor = trial("bare_apsw", "run", ours, turns=3, sync_ms=1)
    lab.race([ours, floor], 1)
    assert lab.median(floor, "commits") == lab.median(ours, "commits") > 0


def test_a_trial_that_fails_is_told_and_not_run_again(lab: Lab) -> None:
    broken = trial("ours", "run", turns="many")
    reader = trial("ours", "load", broken)
    lab.race([broken, reader], 3)
    assert "TypeError" in lab.failures[broken]
    assert "which failed" in lab.failures[reader]
    with pytest.raises(Failed, match="TypeError"):
        lab.median(broken, "seconds")


def test_a_peer_that_is_not_there_stands_in_the_table_as_such(lab: Lab) -> None:
    _no_peer_is_here(lab)
    run = _measure("run")
    run.run(lab, TINY)
    rows = list(run.rows(lab, TINY))
    assert {row.verdict for row in rows if row.peer in _PEERS} == {"not measured: not installed"}
    assert all(row.ratio for row in rows if row.peer == "bare apsw loop")


@pytest.mark.slow
def test_every_measure_has_figures_of_ours_when_no_peer_is_there(lab: Lab) -> None:
    _no_peer_is_here(lab)
    for measure in MEASURES:
        measure.run(lab, TINY)
        rows = list(measure.rows(lab, TINY))
        assert any(row.ours for row in rows), measure.name
        for row in rows:
            assert bool(row.problem) == (row.peer in _PEERS), row


def test_a_verdict_says_by_how_much_a_target_is_missed() -> None:
    assert at_most(2, "x").verdict(2) == "reached"
    assert at_most(2, "x").verdict(3) == "missed by 50%"
    assert at_least(8, "x").verdict(6) == "missed by 25%"
    alone = Row("engine", "per turn", ours=250e-6, unit="s", target=at_most(200e-6, "s"))
    beside = Row("run", "x", 1, "s", "DBOS", 9, ratio=9, target=at_least(8, "x"))
    assert (alone.verdict, beside.verdict) == ("missed by 25%", "reached")


def test_the_report_holds_the_machine_the_rows_and_what_could_not_be_installed(
    tmp_path: Path,
) -> None:
    row = Row("run", "one run", 1.5, "s", "DBOS on SQLite", 15.0, 10.0, at_least(8, "x"))
    here = machine(tmp_path)
    report.save(tmp_path / "out", here, [row], {"dbos": "no such package"}, "tiny")
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found["rows"][0]["verdict"] == "reached"
    assert found["problems"] == {"dbos": "no such package"}
    assert str(here["cores"]) in told(found["machine"])


def test_the_page_of_the_documents_shows_the_rows_between_its_marks(tmp_path: Path) -> None:
    row = Row(
        "run",
        "one run",
        1.5,
        "s",
        "DBOS on SQLite",
        15.0,
        10.0,
        at_least(8, "x"),
        spread=(1.0, 2.5),
    )
    page = f"# Performance\n\n{BEGIN}\nold figures\n{END}\n\nThe end.\n"
    shown = filled(page, machine(tmp_path), [row])
    cells = (
        "1.50 s | 1.00 s to 2.50 s | DBOS on SQLite | 15.00 s | 10.00 x | at least 8.00 x | reached"
    )
    assert f"| one run | {cells} |" in shown
    assert "old figures" not in shown
    assert shown.endswith(f"{END}\n\nThe end.\n")
    assert filled(shown, machine(tmp_path), [row]).count("### One durable run") == 1
    with pytest.raises(ValueError, match="marks"):
        filled("# Nothing", machine(tmp_path), [row])
