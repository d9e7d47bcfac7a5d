"""Signals that come at a chosen step of what the main thread does: after its n-th call, where Python looks for them."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STEPS = ("call", "c_return")
DROPPED = ("weakref.py", "_weakrefset.py")  # what is raised in their callbacks, Python itself drops
SIGNAL = signal.SIGUSR1  # a signal like any other that a program handles; nobody else sends it here


class Interrupt(BaseException):
    """What the program's handler raises."""


def interrupt(*_: Any) -> None:
    raise Interrupt


@contextmanager
def handled(handler: Any = interrupt) -> Iterator[None]:
    before = signal.signal(SIGNAL, handler)
    try:
        yield
    finally:
        signal.signal(SIGNAL, before)


def interrupted_at(step: int, act: Callable[[], Any]) -> tuple[BaseException | None, bool]:
    """What `act` raised if a signal came at its n-th step, and whether it had so many."""
    left = step

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal left
        if event in STEPS and not frame.f_code.co_filename.endswith(DROPPED):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                signal.raise_signal(SIGNAL)

    error: BaseException | None = None
    gc.disable()  # Python drops what is raised in its callbacks, too, and it runs at any step
    try:
        sys.setprofile(count)
        act()
    except BaseException as raised:
        error = raised
    finally:
        sys.setprofile(None)
        gc.enable()
    return error, left <= 0


def elsewhere(act: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What `act` gives in another thread, in time: else it waits for what an interrupt has left held."""
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(act()), daemon=True)
    thread.start()
    thread.join(timeout_s)
    assert told, "it hangs, or has failed"
    return told[0]
