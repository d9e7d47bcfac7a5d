"""The contract of a store, seen by somebody who writes one: what a failure says, and what a flag leaves out."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agentor.testing
from agentor.testing import contract

STORE = """
from {place} import StoreContract
from agentor.engine.store import bodies_after
from agentor.engine.events import Event

class Kept:
    def __init__(self): self.runs = {{}}
    def append(self, run_id, event):
        bodies = self.runs.get(run_id, [])
        self.runs[run_id] = bodies + bodies_after(run_id, len(bodies), [event])
    def load(self, run_id): return [Event.from_json(body) for body in self.runs.get(run_id, ())]
    def list_runs(self): return {listed}

class TestKept(StoreContract):
    is_persistent = checks_run_ids = False
    {flag}
    def make_store(self, place): return Kept()
"""


def what_pytest_says(
    place: Path,
    select: str,
    home: str = "agentor.testing",
    listed: str = "list(self.runs)",
    flag: str = "",
) -> str:
    """What pytest prints of a user's own test file."""
    code = STORE.format(place=home, listed=listed, flag=flag)
    (place / "test_kept.py").write_text(code)
    words = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", select]
    ended = subprocess.run(
        [sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=120
    )
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("home", ["agentor.testing", "agentor.testing.store_contract"])
def test_a_failure_shows_the_values(tmp_path: Path, home: str) -> None:
    told = what_pytest_says(tmp_path, "listed_newest_last", home, listed="sorted(self.runs)")
    assert "1 failed" in told
    assert "assert ['a', 'k', 'm', 'z'] == ['m', 'z', 'a', 'k']" in told
    assert "rewritten" not in told


def test_every_module_of_the_contract_with_asserts_shows_its_values() -> None:
    home = Path(contract.__file__).parent
    with_asserts = {
        path.stem
        for path in home.glob("*contract*.py")
        if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert with_asserts <= set(agentor.testing._WITH_ASSERTS)


def test_numbered_bodies_are_all_that_a_store_needs_to_keep_its_promises(tmp_path: Path) -> None:
    told = what_pytest_says(tmp_path, "not threads")
    assert "failed" not in told
    assert "passed" in told
    assert "relies on agentor to check values" not in told


def test_a_store_that_does_not_check_the_seq_is_still_tested_for_values(tmp_path: Path) -> None:
    told = what_pytest_says(
        tmp_path, "json or surrogate or loaded_again or odd", flag="refuses_conflicts = False"
    )
    assert "skipped" not in told
    assert "8 passed" in told
