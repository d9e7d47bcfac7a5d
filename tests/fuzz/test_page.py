"""docs/testing.md promises what is there."""

from __future__ import annotations

import re
from pathlib import Path

from fuzz import canaries, invariants
from fuzz.__main__ import parser
from fuzz.readers import TARGETS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "testing.md").read_text()


def test_the_page_names_every_invariant_and_no_other() -> None:
    table = PAGE.split("## The simulation")[0]
    assert set(re.findall(r"\| `(\w+)` \|", table)) == {each.__name__ for each in invariants.ALL}


def test_every_command_on_the_page_is_one_the_program_takes() -> None:
    shown = re.findall(r"^\$ python -m fuzz(?!\.)(.*)$", PAGE, re.M)
    assert len(shown) >= 6
    for words in shown:
        parser().parse_args(words.split())


def test_every_option_of_the_program_is_on_the_page() -> None:
    told = {"--case", "--at", "-h", "--help"}  # printed by the program where they are needed
    options = {option for action in parser()._actions for option in action.option_strings}
    assert [option for option in sorted(options - told) if option not in PAGE] == []


def test_the_page_counts_its_canaries() -> None:
    numbers = {41: "forty-one", 42: "forty-two", 43: "forty-three"}
    assert f"plants {numbers[len(canaries.ALL)]} faults" in PAGE


def test_every_invariant_has_a_canary() -> None:
    rung = {name for canary in canaries.ALL for name in canary.rings}
    assert rung == {invariant.__name__ for invariant in invariants.ALL}


def test_the_reader_that_the_page_fuzzes_exists() -> None:
    for name in re.findall(r"python -m fuzz\.coverage (\w+)", PAGE):
        assert name in TARGETS
