"""Keeps keys and headers out of everything that is told: errors, logs, third-party loggers included."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Any, Final

HIDDEN: Final = "[secret]"
_SHORTEST: Final = (
    8  # characters; "ollama" and "none" are no secrets, and hiding them would garble texts
)

# A filter works only on the logger that a record was made with, so each of them is named.
_LOGGERS: Final = (
    *("openai", "openai._base_client", "openai._response", "openai._legacy_response"),
    *("httpx2", "httpx", "agentor", "agentor.models", "agentor.tools"),
    *(
        f"{core}.{part}"
        for core in ("httpcore2", "httpcore")
        for part in ("connection", "http11", "http2", "proxy", "socks")
    ),
)


class Secrets:
    """Texts that must not be told. One object serves the whole process: a log record knows no owner."""

    def __init__(self) -> None:
        self._texts: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def add(self, texts: Iterable[str]) -> None:
        """Hide these texts, and the token in a text like "Bearer TOKEN"."""
        words = {word for text in texts for word in (text, *text.split()) if len(word) >= _SHORTEST}
        with self._lock:
            self._texts = tuple(sorted({*self._texts, *words}, key=len, reverse=True))

    def hide(self, text: str) -> str:
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text

    def hide_in(self, value: Any) -> Any:
        """The same value with every text in it made safe: in bytes, lists, tuples, sets and dicts, too."""
        match value:
            case str():
                return self.hide(value)
            case bytes() | bytearray():
                text = value.decode("utf-8", "surrogateescape")
                return type(value)(self.hide(text).encode("utf-8", "surrogateescape"))
            case dict():
                return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
            case list() | set() | frozenset():
                return type(value)(self.hide_in(item) for item in value)
            case tuple():
                # One with names takes its items one by one.
                make = getattr(value, "_make", type(value))
                return make(self.hide_in(item) for item in value)
        return value


SECRETS: Final = Secrets()


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        told = record.getMessage()
        safe = SECRETS.hide(told)
        if safe != told:
            record.msg, record.args = safe, ()
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            if (safe := SECRETS.hide(trace)) != trace:
                record.exc_info, record.exc_text = None, safe
        return True


_FILTER: Final = _Filter()

# Beside what an exception has of its own; an `OSError` says the last three.
_TELLING: Final = ("args", "message", "body", "strerror", "filename", "filename2")


def guard_loggers() -> None:
    """Make the loggers on the way of a request safe. Doing it again changes nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)


def hide_in_error(error: BaseException) -> None:
    """Make the texts of somebody else's exception safe in place: arguments, attributes, and its causes'."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        for name in (*_TELLING, *vars(link)):
            with contextlib.suppress(
                Exception
            ):  # an exception may be anything; its own type is what counts
                told = getattr(link, name, None)
                safe = SECRETS.hide_in(told)
                if safe is not told and safe != told:
                    setattr(link, name, safe)
        links += [link.__cause__, link.__context__]
        with contextlib.suppress(Exception):
            links += [each for each in link.args if isinstance(each, BaseException)]
        if isinstance(link, BaseExceptionGroup):
            links += link.exceptions
