"""Where the processes of a crash test come from: a program that has loaded agentor, and nothing of the user's, and
forks for each order.

A fork of it is as fresh as a new interpreter, for the user's module is loaded after the fork; and it is there ten times
as fast. Orders come as lines on standard input; for each there is one line back when its process has ended. When
there is nobody left who could give orders, it ends, and its process with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import traceback
from typing import Any, Final, NoReturn

from agentor.crashtest import orphans
from agentor.crashtest.child import perform
from agentor.crashtest.orders import Order
from agentor.engine import clock, strict_json

_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM)


class _Stopped(Exception):
    """By a signal, or because standard input is at its end: whoever gave the orders is gone."""


class _Server:
    """One child at a time, and no thread, which forks do not go well with.

    It waits for three things at once: the next order, the end of the child, a signal. Python writes the number of each
    signal into a pipe, and so nothing can come in between.
    """

    def __init__(self) -> None:
        self._signals, self._signalled = os.pipe()
        os.set_blocking(self._signalled, False)
        signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        self._unread = b""

    def serve(self) -> None:
        with contextlib.suppress(_Stopped, BrokenPipeError):
            while True:
                answer = strict_json.dumps(self._obey(Order.from_json(self._line())))
                os.write(1, f"{answer}\n".encode())

    def _line(self) -> str:
        while b"\n" not in self._unread:
            self._wait(None)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def _obey(self, order: Order) -> dict[str, Any]:
        server = os.getpid()
        child = os.fork()
        if child == 0:
            self._be_child(order, server)
        in_time = False
        try:
            in_time = self._ends_within(child, order.timeout_s)
        finally:
            code = orphans.end(child)
        return {"exit": code, "timed_out": not in_time}

    def _ends_within(self, child: int, limit_s: float) -> bool:
        """Whether it does. It is not waited for yet, so its id remains its own."""
        deadline = clock.monotonic() + limit_s
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                return False
            self._wait(left_s)
        return True

    def _wait(self, limit_s: float | None) -> None:
        """Until a signal or a piece of an order has come, or the time is over."""
        ready, _, _ = select.select([0, self._signals], [], [], limit_s)
        if self._signals in ready and signal.SIGTERM in os.read(self._signals, 4096):
            raise _Stopped
        if 0 in ready:
            received = os.read(0, 65536)
            if not received:
                raise _Stopped
            self._unread += received

    def _be_child(self, order: Order, server: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            orphans.die_with(server)
            os.setsid()
            os.close(self._signals)
            os.close(self._signalled)
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
_SOON_NEEDED: Final = (
    *("agentor.testing.scripted", "agentor.blocking", "agentor.engine.models"),
    *("importlib.metadata", "email.message", "pydantic.dataclasses"),  # by the first tool
)


def main() -> None:
    for module in _SOON_NEEDED:
        importlib.import_module(module)
    gc.freeze()  # what is loaded stays; a child that looked through it would copy all of it
    orphans.adopt_orphans()
    _Server().serve()
