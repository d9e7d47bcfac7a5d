"""What the contract suite shares: every kind of store, and a place for programs that run as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.agents import STORES

DURABLE = {name: STORES[name] for name in ("file", "sqlite")}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store = STORES[request.param](tmp_path)
    yield store
    if hasattr(store, "close"):
        store.close()


@pytest.fixture(params=DURABLE)
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store = DURABLE[request.param](tmp_path)
    yield store
    store.close()


@dataclass
class Program:
    """A user's script in a process of its own."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        """The next line it prints; "" when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ends(self, within_s: float = 30.0) -> tuple[int, str, str]:
        """Exit code, what is left of its output, and its errors."""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a script in an empty directory; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, **environment: str) -> Program:
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(source)
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-u", str(script)],
            cwd=tmp_path, env=os.environ | environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return Program(process)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
