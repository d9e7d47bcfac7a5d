"""Signals that stop a worker: both at once are one wish, a later one is a second."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, threading
from agentor.cli.signals import TOGETHER_S, Stops
from agentor.engine import clock

class Worker:
    def stop(self): ...

both = {signal.SIGTERM, signal.SIGINT}
stops = Stops(grace_s=30.0)
with stops._caught():
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for number in both:
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)  # both arrive at this moment
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(stops.asked in both, stops.interrupted, flush=True)
    if "later" in sys.argv:
        now = clock.monotonic
        clock.monotonic = lambda: now() + 2 * TOGETHER_S
        os.kill(os.getpid(), signal.SIGTERM)
        print("still here", flush=True)
"""


@pytest.mark.parametrize(("words", "code"), [([], 0), (["later"], -signal.SIGTERM)])
def test_two_signals_at_once_are_one_and_a_later_one_ends_the_process(
    words: list[str], code: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout == "True True\n"  # the first of the two is Ctrl-C, by its number
    assert done.returncode == code
