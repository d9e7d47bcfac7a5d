"""Servers refuse fields they do not know. What one has refused once is left out, or renamed, from then on.

A change is tried once when an error names the field, and remembered when the request then gets through. Nothing
the answer depends on is ever dropped in silence: neither the messages nor the tools.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentor.engine.wire import provider_fields, with_role, with_schema, without_fields

_log = logging.getLogger("agentor.models")

_NEVER_DROPPED: Final = frozenset({"model", "messages", "tools", "stream", "response_format"})
_RENAMED: Final = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
_FORMAT_WORDS: Final = re.compile(
    r"response_format|json_schema|json_object|json schema|json mode|structured outputs?", re.I
)
_NO_TOOLS: Final = re.compile(
    r"\b(?:no|not|cannot|doesn't|don't)\b[^.]{0,60}\bsupport\w*\b[^.]{0,40}\b(?:tools?|functions?)\b"
    r"|\b(?:tools?|tool use|functions?|function calling)\b[^.]{0,60}(?:\bnot |\bun)support",
    re.I,
)
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that a request got: its HTTP status, the field it blames if it says so, and its words."""

    status: int
    param: str | None
    text: str

    def names(self, field: str) -> bool:
        if self.param:
            return re.split(r"[.\[]", self.param)[0] == field
        return re.search(rf"(?<!\w){re.escape(field)}(?!\w)", self.text) is not None

    def mentions(self, field: str) -> bool:
        """Also where the field is only part of the path that is blamed."""
        told = f"{self.param} {self.text}"
        return re.search(rf"(?<!\w){re.escape(field)}(?!\w)", told) is not None

    @property
    def says_no_to_tools(self) -> bool:
        return _NO_TOOLS.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class Change:
    """One way to ask differently. Equal names are the same change."""

    name: str
    apply: Callable[[Body], Body]


class Adaptations:
    """What one server has refused so far. Shared by all calls of a model object, from any thread."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}
        self._lock = threading.Lock()

    def attempt(self, body: Body) -> Attempt:
        return Attempt(self, body, list(self._changes.values()))

    def remember(self, change: Change) -> None:
        with self._lock:
            if change.name not in self._changes:
                self._changes = {**self._changes, change.name: change}
                _log.warning("the server refuses part of the request: %s from now on", change.name)


class Attempt:
    """The request of one call, as it changes from refusal to refusal. Each change is made once, so it ends."""

    def __init__(self, memory: Adaptations, body: Body, known: list[Change]) -> None:
        self._memory = memory
        self._tried: list[Change] = []
        self._made = {change.name for change in known}
        self.body = body
        for change in known:
            self.body = change.apply(self.body)

    def adapt(self, refusal: Refusal) -> bool:
        """Change the request so that it may pass; False if nothing of it is to blame."""
        change = change_for(refusal, self.body)
        if change is None or change.name in self._made:
            return False
        self._made.add(change.name)
        self._tried.append(change)
        self.body = change.apply(self.body)
        return True

    def passed(self) -> None:
        """The server took the request: remember what it took."""
        for change in self._tried:
            self._memory.remember(change)
        self._tried = []


def change_for(refusal: Refusal, body: Body) -> Change | None:
    """The one change that answers this refusal of this request, or None."""
    if refusal.status >= 500:
        return _format_change(refusal, body)
    if refusal.status not in (400, 422):
        return None
    for find in (_stream_change, _message_change, _rename_change, _format_change, _drop_change):
        if change := find(refusal, body):
            return change
    return None


def _stream_change(refusal: Refusal, body: Body) -> Change | None:
    if "stream_options" in body and refusal.names("stream_options"):
        return _dropping("stream_options")
    if body.get("stream") and (
        refusal.names("stream") or re.search(r"\bstreaming\b", refusal.text, re.I)
    ):
        return Change("unstreamed", lambda sent: _less(sent, "stream", "stream_options"))
    return None


def _message_change(refusal: Refusal, body: Body) -> Change | None:
    for field in sorted(provider_fields(body["messages"]), key=len, reverse=True):
        if refusal.mentions(field):
            return _without_field(field)
    roles = {message.get("role") for message in body["messages"]}
    if "developer" in roles and refusal.mentions("developer"):
        return Change(
            "instructions as system",
            lambda sent: {**sent, "messages": with_role(sent["messages"], "system")},
        )
    return None


def _rename_change(refusal: Refusal, body: Body) -> Change | None:
    for old, new in _RENAMED.items():
        if old in body and new not in body and refusal.names(old):
            return _renaming(old, new)
    return None


def _format_change(refusal: Refusal, body: Body) -> Change | None:
    wanted = body.get("response_format")
    if wanted is None:
        return None
    if not (refusal.names("response_format") or _FORMAT_WORDS.search(refusal.text)):
        return None
    if wanted.get("type") == "json_schema":
        return Change("json_object for json_schema", _loosened)
    return Change("no response_format", lambda sent: _less(_loosened(sent), "response_format"))


def _drop_change(refusal: Refusal, body: Body) -> Change | None:
    for field in sorted(body.keys() - _NEVER_DROPPED, key=len, reverse=True):
        if refusal.names(field):
            return _dropping(field)
    return None


def _without_field(field: str) -> Change:
    def apply(sent: Body) -> Body:
        return {**sent, "messages": without_fields(sent["messages"], frozenset({field}))}

    return Change(f"messages without {field}", apply)


def _renaming(old: str, new: str) -> Change:
    def apply(sent: Body) -> Body:
        return {new if name == old else name: value for name, value in sent.items()}

    return Change(f"{new} for {old}", apply)


def _dropping(field: str) -> Change:
    return Change(f"no {field}", lambda sent: _less(sent, field))


def _less(body: Body, *fields: str) -> Body:
    return {name: value for name, value in body.items() if name not in fields}


def _loosened(body: Body) -> Body:
    """Any JSON object, the schema being told in the instructions instead."""
    wanted = body.get("response_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        return body
    schema = wanted.get("json_schema", {}).get("schema", {})
    return {
        **body,
        "messages": with_schema(body["messages"], schema),
        "response_format": {"type": "json_object"},
    }
