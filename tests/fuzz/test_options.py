"""`python -m fuzz` refuses what it would ignore or does not have, and says what it needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import campaign, canaries, invariants
from fuzz.__main__ import main
from fuzz.invariants import Breach
from fuzz.world import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
WRONG = {
    "--worlds 0": "nothing would be played",
    "--worlds -3": "nothing would be played",
    "--minutes 0": "nothing would be played",
    "--minutes nan": "nothing would be played",
    "--seed 13 --only 0,999": "the script of seed 13 has no action '999', only 0 to ",
    "--seed 13 --only 0,x": "the script of seed 13 has no action 'x'",
    "--seed 13 --only -1": "has no action '-1'",
    "--only 0": "say whose, with --seed",
    "--trace --worlds 3": "--trace and --only are about one world",
    "--trace --smoke": "--trace and --only are about one world",
    "--seed 13 --only 0 --minutes 1": "--trace and --only are about one world",
    "--disk --case 999": "there are the cases 0 to ",
    "--disk --case -1": "there are the cases 0 to ",
    "--disk --case 0 --at 0": "calls are counted from 1",
    "--case 0": "--at goes with --case, and --case with --disk",
    "--disk --at 3": "--at goes with --case, and --case with --disk",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_would_be_ignored_or_is_not_there_is_wrong_usage(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.replace(" -", "=-").replace("=--", " --").split())
    assert ended.value.code == 2
    assert WRONG[words] in capsys.readouterr().err


def test_a_script_without_any_action_can_be_played() -> None:
    assert main(["--seed", "13", "--only", "none", "--json"]) == 0


def test_actions_are_printed_with_their_places_in_the_whole_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printed(*words: str) -> list[str]:
        assert main(["--seed", "13", *words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]

    whole = printed()
    assert printed("--only", "0,3,4") == [whole[0], whole[3], whole[4]]


def test_a_reader_that_leaves_early_ends_it_without_a_word() -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "fuzz", "--seed", "13"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    started.stdout.close()
    _, told = started.communicate(timeout=60)
    assert (started.returncode, told) == (141, "")


def test_a_call_of_the_disk_that_there_is_not_is_told_and_not_called_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--disk", "--case", "0", "--at", "999999"]) == 1
    assert "nothing was tried" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--worlds 1000000 --seed 1", "--disk", "--seed 13"])
def test_an_interrupt_ends_it_with_one_line(words: str) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "fuzz", *words.split()],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline().startswith("seed ")
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=120)
    assert (started.returncode, told.count("\n")) == (130, 1)


def test_each_canary_is_told_with_all_the_invariants_it_is_there_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rang = {
        canary: Outcome(7, tuple(Breach(name, "so it was") for name in canary.rings))
        for canary in canaries.ALL
    }
    monkeypatch.setattr(campaign, "rings", lambda first: rang)
    assert main(["--canary"]) == 0
    out = capsys.readouterr().out
    for canary in canaries.ALL:
        told = out.partition(f"canary {canary.name}: rang in world 7\n")[2].partition("canar")[0]
        assert all(name in told for name in canary.rings)
    assert f"invariants={len(invariants.ALL)} without_canary=0" in out


def test_a_missing_dependency_is_named_with_the_command_that_brings_it() -> None:
    code = (
        "import runpy, sys; sys.modules['greenlet'] = None; runpy.run_module('fuzz', run_name='x')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs greenlet" in line
    assert "make quick" in line
