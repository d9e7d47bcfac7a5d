"""The story: start, kill, resume, fork, look. Every claim is checked against the store before it is told."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from agentor.demo.provider import weather_provider
from agentor.engine import clock
from agentor.engine import events as ev
from agentor.engine.events import Event
from agentor.engine.store import SQLiteStore
from agentor.errors import AgentorError
from agentor.testing.replies import Gate

STORE: Final = "runs.db"
SCRIPT: Final = "weather.py"
SCRIPT_MODEL: Final = "gpt-4o-mini"
INSTRUCTION: Final = "Say it like a pirate."
_PATIENCE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.02


class DemoFailedError(AgentorError):
    """The demo did not go as promised."""


class Teller(Protocol):
    """Who tells the story: a terminal, or nobody."""

    silent: bool

    def says(self, text: str) -> None: ...

    def shows_program(self, code: str) -> None: ...

    def shows_command(self, command: str) -> None: ...

    def shows_log(self, events: list[Event]) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    run_id: str
    killed_after: str  # type of the last event that the killed process saved
    tool_runs: int  # until the resumed process had ended
    answer: str | None
    fork_id: str
    fork_answer: str | None
    parent_unchanged: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class _Provider:
    """Who answers the agent, and how to tell that its tool's result is on disk while the answer is not."""

    env: dict[str, str]
    is_time: Callable[[_Stage], bool]
    let_go: Callable[[], None]  # whoever asks from now on gets an answer


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where the story plays: a directory, and the environment of the processes in it."""

    directory: Path
    provider: _Provider
    teller: Teller

    @contextlib.contextmanager
    def process(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A Python process in the directory; it does not outlive the block."""
        quiet = subprocess.DEVNULL if self.teller.silent else None
        child = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.provider.env,
            stdin=subprocess.DEVNULL,
            stdout=quiet,
            stderr=quiet,
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()

    def agentor(self, *words: str) -> None:
        """Run the command line as a process of its own; `DemoFailedError` if it fails."""
        self.teller.shows_command(" ".join(["agentor", *(_quoted(word) for word in words)]))
        with self.process("-m", "agentor", *words) as child:
            try:
                code = child.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise DemoFailedError(
                    f"`agentor {words[0]}` has not ended within {_PATIENCE_S:.0f} s"
                ) from None
        if code:
            raise DemoFailedError(f"`agentor {words[0]}` ended with exit code {code}")

    def log(self, run_id: str) -> list[Event]:
        with SQLiteStore(self.directory / STORE) as store:
            return store.load(run_id)

    def runs(self) -> list[str]:
        if not (self.directory / STORE).exists():
            return []
        with SQLiteStore(self.directory / STORE) as store:
            return store.list_runs()


def play(directory: Path, teller: Teller, *, live_model: str | None = None) -> Outcome:
    """Play the whole story in `directory`. With `live_model` a real provider answers, as OPENAI_API_KEY and
    OPENAI_BASE_URL say. `DemoFailedError` if anything is not as promised."""
    started = clock.monotonic()
    with _live() if live_model else _stand_in() as provider:
        stage = _Stage(directory, provider, teller)
        _write_script(stage, live_model or SCRIPT_MODEL)
        run_id, killed_after = _kill_half_way(stage)
        answer, tool_runs = _resume(stage, run_id)
        fork_id, fork_answer = _fork(stage, run_id)
        teller.says("Both runs are in one SQLite file:")
        stage.agentor("runs")
    return Outcome(
        run_id=run_id,
        killed_after=killed_after,
        tool_runs=tool_runs,
        answer=answer,
        fork_id=fork_id,
        fork_answer=fork_answer,
        parent_unchanged=True,  # _fork has seen to it
        seconds=round(clock.monotonic() - started, 1),
    )


@contextlib.contextmanager
def _stand_in() -> Iterator[_Provider]:
    gate = Gate()
    with weather_provider(gate) as server:
        env = _environment() | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "demo"}
        env |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        yield _Provider(env, lambda stage: gate.reached, gate.open)


@contextlib.contextmanager
def _live() -> Iterator[_Provider]:
    def has_result(stage: _Stage) -> bool:
        logs = [stage.log(run_id) for run_id in stage.runs()]
        return any(event.type == ev.TOOL_RESULT for log in logs for event in log)

    yield _Provider(_environment(), has_result, lambda: None)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AGENTOR_")}


def _write_script(stage: _Stage, model: str) -> None:
    code = importlib.resources.files("agentor.demo").joinpath(SCRIPT).read_text("utf-8")
    code = code.replace(f'"{SCRIPT_MODEL}"', json.dumps(model))
    (stage.directory / SCRIPT).write_text(code, "utf-8")
    stage.teller.says("An agent with one tool, and a store to write down what it does:")
    stage.teller.shows_program(code)


def _kill_half_way(stage: _Stage) -> tuple[str, str]:
    stage.teller.says("We start it, wait until the tool has answered, and kill it with SIGKILL:")
    stage.teller.shows_command(f"python {SCRIPT}")
    with stage.process(SCRIPT) as child:
        _wait_for_the_time(stage, child)
    stage.provider.let_go()
    (run_id,) = stage.runs()
    log = stage.log(run_id)
    stage.teller.shows_log(log)
    if log[-1].type != ev.TOOL_RESULT:
        raise DemoFailedError(
            f"the log ends with {log[-1].type}, not with the tool's result: the kill came too late; try again"
        )
    stage.teller.says("Killed. These events were on disk; nobody has told the answer yet.")
    return run_id, log[-1].type


def _wait_for_the_time(stage: _Stage, child: subprocess.Popen[bytes]) -> None:
    until = clock.monotonic() + _PATIENCE_S
    while not stage.provider.is_time(stage):
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(_LOOK_EVERY_S)
            raise DemoFailedError(f"the agent ended by itself, with exit code {code}")
        if clock.monotonic() > until:
            raise DemoFailedError(f"no tool was called within {_PATIENCE_S:.0f} s")


def _resume(stage: _Stage, run_id: str) -> tuple[str | None, int]:
    before = _tool_runs(stage)
    stage.teller.says("Another process, which knows nothing but the run's id, goes on:")
    stage.agentor("resume", f"{SCRIPT}:agent", run_id)
    end = ev.last_of(stage.log(run_id), ev.RUN_END)
    if end is None or end.status != "completed":
        raise DemoFailedError(f"run {run_id} was resumed and is not completed")
    if (after := _tool_runs(stage)) != before:
        raise DemoFailedError(f"the tool ran {after} times, and {before} times before the resume")
    times = "once" if after == 1 else f"{after} times, as before"
    stage.teller.says(f"It finished, and the tool ran {times}: the saved result was enough.")
    return end.text, after


def _fork(stage: _Stage, run_id: str) -> tuple[str, str | None]:
    before = _digest(stage.log(run_id))
    known = set(stage.runs())
    stage.teller.says("A fork is a new run that goes on from an old one, with a new instruction:")
    stage.agentor("fork", f"{SCRIPT}:agent", run_id, INSTRUCTION)
    (fork_id,) = set(stage.runs()) - known
    after = _digest(stage.log(run_id))
    if before != after:
        raise DemoFailedError(f"the fork has changed its parent: {before} became {after}")
    stage.teller.says(
        f"The parent is untouched: its events have the digest {after[:16]} as before."
    )
    end = ev.last_of(stage.log(fork_id), ev.RUN_END)
    return fork_id, end.text if end else None


def _digest(log: list[Event]) -> str:
    return hashlib.sha256("\n".join(event.to_json() for event in log).encode()).hexdigest()


def _tool_runs(stage: _Stage) -> int:
    calls = stage.directory / "calls.txt"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
