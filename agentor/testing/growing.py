"""Checking and keeping requests that mostly extend the one before, without looking at everything again at each turn."""

from __future__ import annotations

from typing import Any

from agentor.engine.strict_json import copied
from agentor.testing.checker import call_ids_of, check_messages, check_more


class Growing:
    """`check_messages` and a deep copy, in time that grows with what is new when a request extends the last one."""

    def __init__(self, allow: frozenset[str] = frozenset()) -> None:
        self._allow = allow
        self._last: list[Any] = []  # as it was asked
        self._legal: tuple[list[Any], frozenset[str]] = ([], frozenset())  # and its call ids

    def copied(self, messages: Any) -> Any:
        """A deep copy. What is as it was in the last one is shared with that."""
        last = self._last
        if last and isinstance(messages, list) and messages[: len(last)] == last:
            copy = last + copied(messages[len(last) :])
        else:
            copy = copied(messages)
        self._last = copy if isinstance(copy, list) else []
        return copy

    def check(self, messages: Any) -> list[str]:
        """Every breach in a value that `copied` gave."""
        legal, asked = self._legal
        is_more = isinstance(messages, list) and len(messages) >= len(legal) > 0
        if is_more and messages[: len(legal)] == legal:
            is_legal = not any(check_more(messages, len(legal), set(asked), self._allow))
            new = messages[len(legal) :]
        else:
            is_legal, new, asked = False, messages, frozenset()
        if not is_legal and (breaches := check_messages(messages, allow=self._allow)):
            return breaches
        self._legal = (messages, asked.union(*map(call_ids_of, new)))
        return []
