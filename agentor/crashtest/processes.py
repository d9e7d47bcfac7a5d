"""Having orders obeyed, several at a time, and what came of each."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from agentor.crashtest.journal import read_journal
from agentor.crashtest.orders import JOURNAL, Order, Outcome
from agentor.crashtest.points import Point
from agentor.engine import strict_json
from agentor.errors import AgentorError, ConfigError

JOBS_MAX: Final = 1_000
_SERVER: Final = """
import sys
sys.path += [path for path in sys.argv[1:] if path not in sys.path]
from agentor.crashtest.fork_server import main
main()
"""


class CrashtestFailedError(AgentorError):
    """There is nothing to compare: the agent does not run as it is, or does not run twice in the same way."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    exit: int  # negative: the signal that killed it
    timed_out: bool
    outcome: Outcome | None  # None if it was killed
    missed: Point | None = None  # where it was to be killed, and was not

    @property
    def how(self) -> str:
        """Of a process that said nothing of its end."""
        if self.exit >= 0:
            return f"ended with exit code {self.exit} by itself"
        hint = (
            ": if memory has run out, fewer --jobs need less"
            if self.exit == -signal.SIGKILL
            else ""
        )
        return f"was ended by {_name_of(-self.exit)}, and not by the crash test{hint}"


def _name_of(number: int) -> str:
    with contextlib.suppress(ValueError):  # of a real-time signal
        return signal.Signals(number).name
    return f"signal {number}"


class Processes:
    """Up to `jobs` processes at a time, from any number of threads. A context manager: none is left behind.

    Several crash tests can share one, which saves each of them a second. Its processes have the working directory and
    the environment of the moment in which they were first needed.
    """

    def __init__(self, jobs: int | None = None) -> None:
        check_jobs(jobs)
        self.jobs = jobs or os.cpu_count() or 1
        self._servers: list[subprocess.Popen[str]] = []
        self._free: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        for _ in range(self.jobs):
            self._free.put(None)  # not started yet
        self._lock = threading.Lock()
        self._ended = False

    def obey(self, order: Order) -> Ended:
        """Have a process do it; return when it has ended."""
        with self._server() as server:
            answer = _asked(server, order.to_json())
            if not answer:
                self._check()
                raise CrashtestFailedError("the program that starts the processes has ended")
        told = strict_json.loads(answer)
        ended = Ended(told["exit"], told["timed_out"], Outcome.read(order.outcome))
        return ended if _was_killed(ended, order) else replace(ended, missed=order.dies_at)

    @contextlib.contextmanager
    def _server(self) -> Iterator[subprocess.Popen[str]]:
        server = self._free.get()
        try:
            if server is None:
                server = self._start()
            self._check()
            yield server
        except BaseException:
            # Its answer may still come, and would be taken for that to the next order.
            if server is not None:
                self._end(server)
            server = None
            raise
        finally:
            self._free.put(server)

    def _end(self, server: subprocess.Popen[str]) -> None:
        with self._lock:
            if server in self._servers:
                self._servers.remove(server)
        _close(server)

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:  # so that none begins while they are ended
            self._check()
            server = _started()
            self._servers.append(server)
        return server

    def _check(self) -> None:
        if self._ended:
            raise CrashtestFailedError(
                "the processes of this crash test have been ended: run it inside the `with` block of its Processes, or "
                "without processes="
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True
            servers = list(self._servers)
        for server in servers:
            server.terminate()
        for server in servers:
            _close(server)


def check_jobs(jobs: object) -> None:
    """`ConfigError` unless it is a number of processes, or None."""
    if jobs is not None and (not isinstance(jobs, int) or not 1 <= jobs <= JOBS_MAX):
        raise ConfigError(f"jobs is a number of processes from 1 to {JOBS_MAX:,}, not {jobs!r}")


def _close(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.wait()
    for pipe in (server.stdin, server.stdout):
        with contextlib.suppress(OSError):
            pipe and pipe.close()


def _was_killed(ended: Ended, order: Order) -> bool:
    """At its point, as its journal says: anybody may kill a process."""
    marks = read_journal(order.directory / JOURNAL)
    was_there = any(mark.kind == "killed" and mark.process == order.process for mark in marks)
    return was_there and ended.exit == -signal.SIGKILL and not ended.timed_out


def _asked(server: subprocess.Popen[str], line: str) -> str:
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            server.stdin.write(f"{line}\n")
            server.stdin.flush()
        return server.stdout.readline()
    except ValueError:
        if server.stdin.closed:  # by whoever has ended it meanwhile
            return ""
        raise


def _started() -> subprocess.Popen[str]:
    # -P: the directory we stand in is no place to look for the standard library in. What can be imported here can be
    # imported there, too, but only where nothing else of that name comes first.
    command = [sys.executable, "-P", "-c", _SERVER, *map(os.path.abspath, sys.path)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
