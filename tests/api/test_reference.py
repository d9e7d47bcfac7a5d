"""docs/reference.md names every call of an agent, and every store, with every argument and default, and none that is not there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, FileStore, MemoryStore, SQLiteStore
from agentor.worker import WorkPlan

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
SECTIONS = dict(
    re.findall(r"^## `(?:agent\.)?(\w+)(?:\(\.\.\.\))?`\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
)
PUBLIC = [name for name, _ in inspect.getmembers(Agentor, callable) if name[0] != "_"]
TWINS = {f"a{name}" for name in PUBLIC} & set(PUBLIC)
CALLS = [name for name in PUBLIC if name not in TWINS]
CLASSES = {each.__name__: each for each in (Agentor, SQLiteStore, FileStore, MemoryStore)}


def promised(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `(\S+)` \| (.*?) \|", section, re.M)


def taken(call: Any) -> list[tuple[str, str]]:
    parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    return [
        (stars.get(p.kind, "") + p.name, "" if p.default is p.empty else f"`{p.default!r}`")
        for p in parameters
    ]


def test_the_page_has_every_call_and_no_other() -> None:
    assert set(SECTIONS) == {*CLASSES, *CALLS}


@pytest.mark.parametrize("name", [*CLASSES, *CALLS])
def test_every_argument_is_there_with_its_default_in_order(name: str) -> None:
    call = CLASSES.get(name) or getattr(Agentor, name)
    assert promised(SECTIONS[name]) == taken(call)


def test_every_argument_is_explained() -> None:
    for row in re.findall(r"^\| `\S+` \|.*$", PAGE, re.M):
        assert len(row.split("|")[3].strip()) > 5, row


@pytest.mark.parametrize("name", ["worker", "work"])
def test_what_a_worker_takes_is_named(name: str) -> None:
    assert all(field in SECTIONS[name] for field in inspect.signature(WorkPlan).parameters)


def test_the_calls_without_an_async_form_are_those_that_the_page_names() -> None:
    alone = {name for name in CALLS if f"a{name}" not in TWINS}
    (sentence,) = re.findall(r"(`worker`.*?) have one form only", PAGE, re.S)
    assert set(re.findall(r"`(\w+)`", sentence)) == alone
