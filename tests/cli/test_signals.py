"""Signals that stop a worker: both at once are one wish, a later one is a second. And SIGTERM that ends a resume or a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentor.cli.signals import told_at_sigterm

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


SHOP = """
import os, signal, sys, time
from agentor import Agentor, function_tool
from agentor.testing import ScriptedModel, calls

@function_tool
def book() -> str:
    if "child" in os.environ.get("WHO", ""):
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

agent = Agentor("Shop", model=ScriptedModel.by_turn([calls(("book", {}))]), tools=[book])
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "resume shop.py:agent r --store mix.db",
            "Ended by SIGTERM. Run r is saved up to here; `agentor resume shop.py:agent r --store mix.db` goes on with it.",
        ),
        (
            "fork shop.py:agent r --id f --store mix.db",
            "Ended by SIGTERM. If the fork has begun, it is run 'f': `agentor resume shop.py:agent f --store mix.db` goes on with it.",
        ),
    ],
)
@pytest.mark.parametrize("who", ["itself", "a child"])
def test_sigterm_ends_a_resume_at_once_and_tells_how_to_go_on(
    words: str, told: str, who: str, tmp_path: Path
) -> None:
    """Once, and by nobody that a tool has started."""
    (tmp_path / "shop.py").write_text(SHOP)
    program = [sys.executable, "-m", "agentor"]
    begun = ["enqueue", "shop.py:agent", "go", "--id", "r", "--store", "mix.db"]
    subprocess.run([*program, *begun], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    done = subprocess.run(
        [*program, *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "WHO": who},
    )
    assert done.returncode == -signal.SIGTERM
    assert (done.stdout, done.stderr.splitlines()[-1:]) == ("", [told])
    assert done.stderr.count("Ended by") == 1


@pytest.mark.parametrize("is_main", [True, False])
def test_a_handler_of_somebody_else_stays_and_so_does_what_a_thread_may_not_change(
    is_main: bool,
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def somebodys(*_: object) -> None: ...

    def resumed() -> None:
        if is_main:
            signal.signal(signal.SIGTERM, somebodys)
        with told_at_sigterm("words"):
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list[object] = []
    try:
        if is_main:
            resumed()
        else:
            thread = threading.Thread(target=resumed)
            thread.start()
            thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [somebodys if is_main else before]


def test_after_a_resume_sigterm_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with told_at_sigterm("words"):
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
