"""Where the processes of a crash test come from: a program that has loaded agentor, and nothing of the user's, and
forks for each order.

A fork of it is as fresh as a new interpreter, for the user's module is loaded after the fork; and it is there ten times
as fast. Orders come as lines on standard input; for each there is one line back when its process has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from typing import Any, Final

from agentor.crashtest.child import perform
from agentor.crashtest.orders import Order
from agentor.engine import strict_json


class _Server:
    """One child at a time."""

    def __init__(self) -> None:
        self._child = 0
        self._timed_out = False

    def serve(self) -> None:
        signal.signal(signal.SIGALRM, self._too_late)
        signal.signal(signal.SIGTERM, self._stop)
        for line in sys.stdin:
            print(strict_json.dumps(self._obey(Order.from_json(line))), flush=True)

    def _obey(self, order: Order) -> dict[str, Any]:
        self._timed_out = False
        self._child = os.fork()
        if self._child == 0:
            _be_child(order)
        signal.setitimer(signal.ITIMER_REAL, order.timeout_s)
        os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._kill()  # what it has left behind
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        return {"exit": os.waitstatus_to_exitcode(status), "timed_out": self._timed_out}

    def _too_late(self, *_: Any) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        """End the child and what it has started. It is not waited for yet, so its id is its own."""
        if self._child:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):  # before it had a group of its own
                os.kill(self._child, signal.SIGKILL)

    def _stop(self, *_: Any) -> None:
        self._kill()
        if self._child:
            os.waitpid(self._child, 0)
        os._exit(0)


def _be_child(order: Order) -> None:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _redirect(order)
        perform(order)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(
            code
        )  # never back into the server's loop; and threads of the user's hold up nothing


def _redirect(order: Order) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


# Loaded by most agents under test, or by agentor itself in their first moments.
_SOON_NEEDED: Final = ("agentor.testing.scripted", "agentor.blocking", "agentor.engine.models")


def main() -> None:
    for module in _SOON_NEEDED:
        importlib.import_module(module)
    _Server().serve()
