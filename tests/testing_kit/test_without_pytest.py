"""What `agentor.testing` gives to those who test with something else than pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentor.testing

WITHOUT = "import sys; sys.modules['pytest'] = None\n"  # as if it were not installed


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True)


def test_all_that_needs_no_pytest_comes_without_it() -> None:
    code = "from agentor.testing import *\nimport agentor.testing as kit\nprint(*kit.__all__)\nassert ScriptedModel"
    done = run(code)
    assert done.stderr == ""
    for_pytest = {"StoreContract", "crashtest_fixture"}
    assert set(done.stdout.split()) == set(agentor.testing.__all__) - for_pytest
    assert for_pytest <= set(agentor.testing.__all__)


@pytest.mark.parametrize("name", ["StoreContract", "crashtest_fixture"])
def test_what_needs_pytest_says_what_to_install(name: str) -> None:
    done = run(f"from agentor.testing import {name}")
    assert done.returncode == 1
    told = f"agentor.testing.{name} is for pytest, which is not installed: pip install pytest"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {told}"
