"""What a process did, in a file beside its store, so that it counts also if the process dies before it could save it.

One line a mark, each written by one call and never held back: what stands here was reached, whatever the store says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentor.engine import strict_json

Kind: TypeAlias = Literal["commit", "committed", "start", "return", "killed"]


@dataclass(frozen=True, slots=True)
class Mark:
    """`number` counts a kind of mark in one process, from 1."""

    process: int  # the first runs, the others resume
    kind: Kind
    number: int
    text: str = ""  # of a commit: the events in it; of a kill: where
    tool: str | None = None
    call_id: str | None = None
    key: str | None = None  # the call's idempotency key
    args: str | None = None  # of the call, as JSON
    failed: bool = False  # of a return: the tool raised


class Journal:
    """The marks of one process, written as they come, by any of its threads."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = process

    def write(self, kind: Kind, number: int, **facts: Any) -> None:
        mark = asdict(Mark(self._process, kind, number, **facts))
        line = strict_json.dumps({name: value for name, value in mark.items() if value})
        os.write(self._file, f"{line}\n".encode())


def read_journal(path: Path) -> list[Mark]:
    """The marks of all processes that wrote here, in order."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").split("\n")[:-1]  # what follows the last newline is torn
    return [_mark(strict_json.loads(line)) for line in lines]


def _mark(fields: Mapping[str, Any]) -> Mark:
    return Mark(**fields)
