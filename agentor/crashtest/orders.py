"""What a child is told to do and what it says came of it: one JSON document each, in the directory of its case."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from agentor.crashtest.points import Point
from agentor.engine import strict_json

STORE: Final = "runs.db"
JOURNAL: Final = "journal.jsonl"
SCRATCH: Final = "scratch"  # for the user's own files
SCRATCH_VARIABLE: Final = "AGENTOR_CRASHTEST_DIR"

Ending: TypeAlias = Literal[
    "ended",  # the run came to the end of its segment
    "no run",  # nothing had been saved: there is no run to resume
    "raised",  # running or resuming raised
    "config",  # a ConfigError: the program, or its use, is wrong
    "not loaded",  # the user's module raised
]


@dataclass(frozen=True, slots=True)
class Order:
    """One process: run the agent, or resume its run, and die at a point."""

    directory: Path
    target: str
    input: Any
    run_id: str
    process: int  # 1 runs, the others resume
    timeout_s: float
    dies_at: Point | None = None
    replies: Path | None = None  # of the model; None: the agent's own model answers
    approves: bool = False  # every call that waits for a person
    setup: str | None = None  # a function to be called first, by the process that runs
    check: str | None = None  # the function to be called; then nothing else is done

    @property
    def output(self) -> Path:
        """What the process prints."""
        return self.directory / f"process-{self.process}.txt"

    @property
    def outcome(self) -> Path:
        return self.directory / f"outcome-{self.process}.json"

    def to_json(self) -> str:
        """One line of ASCII, whatever the locale; also of file names that are no text, which strict JSON could not say."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields = {n: str(v) if isinstance(v, Path | Point) else v for n, v in fields.items()}
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Order:
        fields = json.loads(text)
        fields["directory"] = Path(fields["directory"])
        fields["dies_at"] = Point.parse(fields["dies_at"]) if fields["dies_at"] else None
        fields["replies"] = Path(fields["replies"]) if fields["replies"] else None
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended that was not killed. `effects`: of the agent's tools, by name."""

    ending: Ending
    error: str = ""
    agent: str = ""
    effects: dict[str, str | None] = field(default_factory=dict)
    own_store: str | None = None  # the kind of store that the agent has outside of the test
    found: str = ""  # by the check
    # Idempotent tools that are not given their key.
    keyless: list[str] = field(default_factory=list)
    begun: int = 0  # runs that loading the user's module began

    def write(self, path: Path) -> None:
        path.write_text(strict_json.dumps(strict_json.clean(asdict(self))), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """None if the process did not come so far."""
        return cls(**strict_json.loads(path.read_text("utf-8"))) if path.exists() else None
