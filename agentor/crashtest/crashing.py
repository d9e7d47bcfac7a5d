"""The door to the crash test: `crashtest(target, input) -> Report`."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from agentor import inputs
from agentor.agent import Agentor
from agentor.crashtest.campaign import Campaign, Progress, read_point
from agentor.crashtest.processes import Processes, check_jobs
from agentor.crashtest.report import Report
from agentor.errors import ConfigError

TIMEOUT_S_MAX: Final = 1_000_000  # twelve days; no system waits for as long as a float can say


def crashtest(
    target: str,
    input: Any,
    *,
    kills: int = 1,
    live: bool = False,
    approve: bool = False,
    at: str | None = None,
    setup: str | None = None,
    check: str | None = None,
    jobs: int | None = None,
    processes: Processes | None = None,
    timeout_s: float = 60.0,
    keep: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Kill an agent at every commit of a run, resume it from another process, and compare.

        crashtest("app.py:agent", "Pay Ada 5 euros").assert_safe()

    Args:
        target: The agent, as the command line names it: "app.py:agent" or "package.module:agent". It is loaded anew in
            each process; its own store is not touched.
        input: What the user says, or a list of chat messages.
        kills: 2 kills the resuming process as well, at each of its commits: the square of the time.
        live: Ask the agent's own model in every run. Otherwise it is asked in the first, and its answers are used again.
        approve: Consent to every call that waits for a person, so that what follows is tested, too.
        at: Kill only here, as a report names it: "before commit 3".
        setup: The name of a function `setup(store, scratch)`, "app_test.py:prepare", that is called before each run: with
            the path of its SQLite file, which does not exist yet, and that of its directory for files.
        check: The name of a function `check(store, scratch)` that is called after each. If it raises, the run is unsafe;
            what it returns must be what it returned for the uninterrupted run.
        jobs: Runs at the same time; default: as many as there are processors.
        processes: What several crash tests share: see `agentor.testing.Processes`.
        timeout_s: Seconds that one process may take.
        keep: A new or empty directory for what each run leaves behind: its store, its journal, what it printed.
        progress: Called with the number of cases that are done and of those there are.

    Raises `ConfigError` for a target or an option that cannot be, `CrashtestFailedError` if the agent fails without any
    crash, so that there is nothing to compare.
    """
    _check(target, kills, jobs, processes, timeout_s)
    _check_function("setup", setup)
    _check_function("check", check)
    only = None if at is None else read_point(at)
    messages = inputs.read_input(input)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(_directory(keep))
        found = processes or Processes(jobs)
        pool = stack.enter_context(_pool(found.jobs))
        if processes is None:  # last: broken off, they are ended before anybody waits for them
            stack.enter_context(found)
        campaign = Campaign(
            directory=directory,
            target=target,
            input=messages,
            live=live,
            approve=approve,
            timeout_s=timeout_s,
            setup=setup,
            check=check,
            processes=found,
            pool=pool,
            progress=progress,
        )
        return campaign.report(kills, only)


def _check(target: Any, kills: Any, jobs: Any, processes: Any, timeout_s: Any) -> None:
    if not hasattr(signal, "SIGKILL") or not hasattr(os, "fork"):
        raise ConfigError("a crash test needs fork and SIGKILL, which this system does not have")
    if isinstance(target, Agentor) or not isinstance(target, str):
        raise ConfigError(
            f"target is the name of the agent, such as 'app.py:agent', not {type(target).__name__}: it is loaded anew "
            "in processes of its own"
        )
    if kills not in (1, 2):
        raise ConfigError(f"kills is 1 or 2, not {kills!r}")
    check_jobs(jobs)
    if processes is not None and not isinstance(processes, Processes):
        raise ConfigError(f"processes is what agentor.testing.Processes makes, not {processes!r}")
    if processes is not None and jobs is not None:
        raise ConfigError("jobs is a matter of the processes that are shared: Processes(jobs)")
    inputs.read_seconds("timeout_s", timeout_s)
    if timeout_s is None or not timeout_s <= TIMEOUT_S_MAX:
        raise ConfigError(
            f"timeout_s is a number of seconds above 0 and up to {TIMEOUT_S_MAX:,}, not {timeout_s!r}"
        )


def _check_function(role: str, name: Any) -> None:
    if name is not None and (not isinstance(name, str) or not all(name.rpartition(":"))):
        raise ConfigError(
            f"{role} is the name of a function, such as 'app_test.py:{role}', not {name!r}: it is called in processes of "
            "their own"
        )


@contextlib.contextmanager
def _directory(keep: str | os.PathLike[str] | None) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        try:
            if keep is None:
                made = tempfile.TemporaryDirectory(prefix="agentor-crashtest-")
                directory = Path(stack.enter_context(made))
            else:
                directory = _kept(Path(keep))
        except OSError as error:
            place = "a temporary directory" if keep is None else repr(str(keep))
            raise ConfigError(f"{place} cannot be made or read: {error}") from error
        yield directory


def _kept(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigError(f"{str(directory)!r} is not empty; name a new directory")
    return directory.resolve()


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="agentor-crashtest")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
