"""Simulated worlds: they hold, they repeat, the alarm rings, and a failure says how to see it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import actions, campaign, canaries, invariants, memory
from fuzz.__main__ import main
from fuzz.campaign import Tally
from fuzz.canaries import Canary
from fuzz.script import Action, draw

ROOT = Path(__file__).resolve().parent.parent.parent
_, NORMAL, _, _, NO_CLAIM = canaries.ALL[:5]
ON_FILES = Canary("nothing", frozenset(), on_files=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 1001, 2001, 3001])
def test_no_invariant_breaks_in_sixty_worlds(first: int) -> None:
    tally = campaign.play_all(range(first, first + 60))
    told = [
        f"seed {failed.seed}: {breach}" for failed in tally.failed for breach in failed.breaches
    ]
    assert told == []
    assert tally.counts["crashes"] > 60
    assert tally.counts["tool starts"] > 300
    assert tally.counts["transfers"] > 20
    assert tally.counts["letters"] > 20
    assert tally.counts["shown"] > 50
    assert tally.counts["deleted"] > 0
    assert tally.counts["settled"] > 5
    assert tally.counts["on files"] > 0
    for kind in ("start", "resume", "fork", "approve", "reject", "settle", "cancel", "delete"):
        assert tally.counts[f"{kind} done"] > 0, kind
    assert {"stall", "power cut", "write full", "slow disk", "locked"} <= set(tally.faults)


def outside(*arguments: str, hash_seed: str) -> str:
    """What the command prints in a process of its own, without the line that tells how long it took."""
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("took"))


@pytest.mark.slow
def test_one_seed_gives_the_same_output_in_every_process() -> None:
    first = outside("--seed", "13", "--trace", hash_seed="1")
    assert first == outside("--seed", "13", "--trace", hash_seed="2")
    assert first.splitlines()[0] == first.splitlines()[-1] == "seed 13"
    assert "history " in first
    assert "worlds=1 crashes=" in first
    assert first.splitlines()[-2] == "all is well"


def test_other_seeds_are_other_histories() -> None:
    digests = {campaign.play(seed, draw(seed)).digest for seed in range(8)}
    assert len(digests) == 8


def test_a_world_played_twice_in_one_process_is_the_same_world() -> None:
    assert campaign.play(5, draw(5)) == campaign.play(5, draw(5))


def test_what_worlds_remember_of_pure_functions_changes_no_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remembering = [campaign.play(seed, draw(seed)) for seed in range(20, 26)]
    monkeypatch.setattr(memory, "patches", list)
    assert [campaign.play(seed, draw(seed)) for seed in range(20, 26)] == remembering


@pytest.mark.slow
@pytest.mark.parametrize("canary", canaries.ALL, ids=lambda canary: canary.name)
def test_a_planted_fault_rings_the_alarm(canary: Canary) -> None:
    outcome = campaign.first_ring(canary, 1)
    assert outcome is not None
    nothing = Canary("nothing", frozenset(), on_files=canary.on_files)
    without = campaign.play(outcome.seed, canary.script(outcome.seed), nothing)
    assert not canary.rings & {breach.invariant for breach in without.breaches}


def test_a_world_on_files_played_twice_is_the_same_world() -> None:
    for seed in range(8):
        once = campaign.play(seed, draw(seed), ON_FILES)
        assert once.counts["on files"] == 1
        assert campaign.play(seed, draw(seed), ON_FILES) == once


def test_a_failure_is_shrunk_to_a_script_that_still_fails() -> None:
    outcome = campaign.first_ring(NORMAL, 1)
    assert outcome is not None
    failure = campaign.explained(outcome, NORMAL)
    assert len(failure.script) < failure.actions
    assert any(action.kind == "power" for action in failure.script)
    again = campaign.play(outcome.seed, failure.script, NORMAL)
    assert outcome.breaches[0].invariant in {breach.invariant for breach in again.breaches}
    whole = draw(outcome.seed)
    assert [whole[position] for position in failure.kept] == list(failure.script)
    assert failure.command == (
        f"python -m fuzz --seed {outcome.seed} --only {','.join(map(str, failure.kept))}"
    )


def test_a_failing_world_exits_1_and_prints_the_seed_the_script_and_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = campaign.first_ring(NO_CLAIM, 1)
    assert found is not None
    seed = found.seed
    with NO_CLAIM.planted():
        assert main(["--seed", str(seed)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == told[-1] == f"seed {seed}"
    assert any(line.startswith(f"world {seed} failed") for line in told)
    [command] = [line for line in told if line.startswith("replay: ")]
    with NO_CLAIM.planted():
        assert main(command.split("fuzz ")[1].split()) == 1
    capsys.readouterr()
    assert main(command.split("fuzz ")[1].split()) == 0


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["seed"], report["worlds"], report["failed"]) == (3, 1, [])


def test_an_exception_of_the_simulation_fails_its_world_and_not_the_campaign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(actions.ALL, "start", lambda world, **details: 1 / 0)
    tally = Tally()
    tally.add(campaign.play(1, draw(1)))
    assert [breach.invariant for breach in tally.failed[0].breaches] == ["the_simulation_works"]


def test_an_operation_that_is_tried_often_and_never_succeeds_fails_the_campaign() -> None:
    tally = Tally(worlds=60)
    tally.counts.update({"fork tried": 49, "start tried": 50, "start done": 1})
    tally.judge(7)
    assert tally.failed == []
    tally.counts["fork tried"] += 1
    tally.judge(7)
    [failed] = tally.failed
    assert [str(breach) for breach in failed.breaches] == [
        "every_operation_succeeds_at_times: fork: none of 50 succeeded"
    ]
    assert campaign.explained(failed).command == "python -m fuzz --seed 7 --worlds 60"


def test_every_invariant_says_in_one_sentence_what_it_holds() -> None:
    for invariant in invariants.ALL:
        told = " ".join((invariant.__doc__ or "").split())
        assert told.endswith("."), invariant
        assert told.count(". ") == 0, invariant


def test_every_action_that_scripts_draw_exists() -> None:
    drawn = {action.kind for seed in range(60) for action in draw(seed)}
    assert drawn == set(actions.ALL)


RIVALS = [
    Action(30 + 0.7 * number, "resume", {"worker": ("w2", "w3")[number % 2], "run": "run"})
    for number in range(100)
]


def broken(seeds: range, script: list[Action], canary: Canary | None = None) -> list[str]:
    outcomes = (campaign.play(seed, script, canary) for seed in seeds)
    return [f"seed {each.seed}: {breach}" for each in outcomes for breach in each.breaches]


@pytest.mark.slow
def test_a_renewal_that_hangs_in_a_slow_disk_does_not_let_two_workers_act() -> None:
    start = Action(0, "start", {"worker": "w1", "run": "run", "turns": 6})
    slow = Action(1, "slow_disk", {"seconds": 140})
    assert broken(range(14, 20), [start, slow, *RIVALS]) == []


@pytest.mark.slow
def test_a_run_that_began_without_a_lease_is_not_worked_on_by_two() -> None:
    other = Action(0, "start", {"worker": "w1", "run": "other", "turns": 1})
    locked = Action(5, "locked", {"seconds": 12})
    start = Action(6, "start", {"worker": "w1", "run": "run", "turns": 6})
    early = [Action(action.at_s - 10, action.kind, action.details) for action in RIVALS]
    assert broken(range(6), [other, locked, start, *early]) == []


def test_a_file_whose_first_writer_died_before_its_name_was_on_the_disk_is_not_lost() -> None:
    crash = {"worker": "w1", "where": "before a commit", "known_dead": True}
    power = {"call": "write", "after": 1, "survival": "lost"}
    script = [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 3}),
        Action(0.0, "crash", crash),  # in its first write, or before one of the two syncs after it
        Action(2.0, "take_over", {"worker": "w2"}),
        Action(10.0, "power", power),
        Action(11.0, "take_over", {"worker": "w2"}),
    ]
    assert broken(range(12), script, ON_FILES) == []


def test_what_a_dead_writer_left_in_the_cache_is_on_the_disk_before_anything_follows_it() -> None:
    """Else a power cut may keep the line that follows and lose the one before: a hole in the middle of the log."""
    first = {"worker": "w1", "where": "before a commit", "known_dead": True}
    power = {"call": "write", "after": 2, "survival": "mixed"}
    script = [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(0.5, "crash", first),
        Action(8.0, "power", power),
        Action(8.0, "take_over", {"worker": "w2"}),
    ]
    assert broken(range(60), script, ON_FILES) == []
