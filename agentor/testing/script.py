"""The order of replies: a list that is given out once, a function, or a list that the conversation indexes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Script:
    """Replies one after the other, or the same function for ever. What a reply is, others know."""

    def __init__(self, replies: Iterable[Any] | Callable[..., Any]) -> None:
        if isinstance(replies, str):
            raise TypeError("replies is a list or a function; a single text goes in a list")
        self._lock = threading.Lock()
        self._behaviour = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._given = 0

    @property
    def left(self) -> int:
        """How many replies of the list are not given yet; 0 when a function answers."""
        return len(self._replies) - self._given

    def add(self, replies: Iterable[Any]) -> None:
        if self._behaviour is not None:
            raise TypeError("a function answers every request; there is no list to add to")
        self._replies.extend(replies)

    def next(self) -> Any:
        """The reply to the next request. `AssertionError` beyond the end of the list."""
        with self._lock:
            if self._behaviour is not None:
                return self._behaviour
            if self._given == len(self._replies):
                raise AssertionError(_exhausted(self._given, "request"))
            self._given += 1
            return self._replies[self._given - 1]


def by_turn(replies: Sequence[Any], turn_of: Callable[[Any], int]) -> Callable[[Any], Any]:
    """A function that gives `replies[turn_of(asked)]`, so that nothing is counted."""
    script = list(replies)

    def answer(asked: Any) -> Any:
        turn = turn_of(asked)
        if turn >= len(script):
            raise AssertionError(_exhausted(len(script), "turn"))
        reply = script[turn]
        return reply(asked) if is_function(reply) else reply

    return answer


def is_function(reply: Any) -> bool:
    """Whether a reply is to be computed. An exception class is callable too, but it is to be raised."""
    return callable(reply) and not isinstance(reply, type)


def _exhausted(length: int, what: str) -> str:
    replies = "1 reply" if length == 1 else f"{length} replies"
    return (
        f"the script has {replies} and this is {what} {length + 1}; "
        "add one, or see in `requests` what was asked"
    )
