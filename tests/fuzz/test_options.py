"""`python -m fuzz` refuses what it would ignore or does not have, and says what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import main

ROOT = Path(__file__).resolve().parent.parent.parent
WRONG = {
    "--seed 13 --only 0,999": "the script of seed 13 has no action '999', only 0 to ",
    "--seed 13 --only 0,x": "the script of seed 13 has no action 'x'",
    "--seed 13 --only -1": "has no action '-1'",
    "--only 0": "say whose, with --seed",
    "--trace --worlds 3": "--trace and --only are about one world",
    "--trace --smoke": "--trace and --only are about one world",
    "--seed 13 --only 0 --minutes 1": "--trace and --only are about one world",
    "--disk --case 999": "there are the cases 0 to ",
    "--disk --case -1": "there are the cases 0 to ",
    "--case 0": "--at goes with --case, and --case with --disk",
    "--disk --at 3": "--at goes with --case, and --case with --disk",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_would_be_ignored_or_is_not_there_is_wrong_usage(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.replace("--only -1", "--only=-1").split())
    assert ended.value.code == 2
    assert WRONG[words] in capsys.readouterr().err


def test_a_script_without_any_action_can_be_played() -> None:
    assert main(["--seed", "13", "--only", "none", "--json"]) == 0


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
