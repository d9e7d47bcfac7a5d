"""Real child processes for tests: started together, spoken to by lines, killed for good."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

PREAMBLE = """
import os, sys
from agentor.engine.events import Event
from agentor.engine.store import FileStore, SQLiteStore, owner_id
from agentor import errors

def ready():
    print("ready", flush=True)
    sys.stdin.readline()

def say(*words):
    print(*words, flush=True)
"""


class Child:
    """A Python process that runs `code`. In it, `ready()` waits until the parent calls `go`."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line it says; '' at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait_until_ready(self) -> None:
        line = self.line()
        if line != "ready":
            raise AssertionError(f"{line}\n{self.process.communicate()[1]}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> str:
        """SIGKILL; what it had said before and nobody has read."""
        self.process.kill()
        return self._ends()[0]

    def end(self) -> str:
        """Wait until it ends by itself, in order; what it said."""
        said, complaints = self._ends()
        assert self.process.returncode == 0, complaints
        return said

    def _ends(self) -> tuple[str, str]:
        """What it says until it ends, with what was read ahead of the last line, which `communicate` would miss."""
        with self.process as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.close()
            return process.stdout.read(), process.stderr.read()


def together(children: list[Child]) -> list[str]:
    """Let them go at the same moment; what each of them said."""
    for child in children:
        child.wait_until_ready()
    for child in children:
        child.go()
    return [child.end() for child in children]
