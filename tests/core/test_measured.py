"""What is measured is the core, and a score counts only what is surely killed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.mutation_score import main, score_of
from tests.test_layers import FLOORS

ROOT = Path(__file__).resolve().parents[2]
NOT_PURE = {"agentor.engine.clock", "agentor.engine.interrupts"}


def test_every_module_of_the_core_and_the_floor_is_measured() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    measured = config["tool"]["coverage"]["run"]["include"]
    names = {path.removesuffix(".py").replace("/", ".") for path in measured}
    assert names == {*FLOORS["floor"], *FLOORS["core"]} - NOT_PURE
    assert all((ROOT / path).is_file() for path in measured)


def test_a_mutant_that_was_not_tested_has_survived() -> None:
    codes = {"failed": 1, "out of time": -24, "passed": 0, "no tests": 33, "never run": None}
    score = score_of("decide", codes)
    assert score.survivors == ("passed", "no tests", "never run")
    assert (score.mutants, score.killed, score.share) == (5, 2, 0.4)


@pytest.mark.parametrize(("killed", "status"), [(9, 0), (8, 1)])
def test_nine_of_ten_mutants_must_be_killed_in_each_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], killed: int, status: int
) -> None:
    for module, dead in (("decide", 10), ("lease", killed)):
        codes = {f"{module}_{i}": 1 if i < dead else 0 for i in range(10)}
        (tmp_path / f"{module}.py.meta").write_text(json.dumps({"exit_code_by_key": codes}))
    assert main(str(tmp_path)) == status
    printed = capsys.readouterr().out
    assert "lease_9" in printed
    assert f"| lease | 10 | {killed} | {10 - killed} | {killed / 10:.1%} |" in printed


def test_no_result_is_no_success(tmp_path: Path) -> None:
    assert main(str(tmp_path)) == 1
