"""What an error of a model means: whether to ask again, how long to wait, and what to tell."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from agentor.engine import clock, strict_json
from agentor.engine.adapt import Refusal
from agentor.engine.redact import SECRETS
from agentor.engine.reply import BrokenReply, ReplyReader
from agentor.errors import ModelError

_TRANSIENT: Final = frozenset({408, 409, 425, 429})
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 8.0
_LONGEST_RETRY_AFTER_S: Final = 120.0
_SEEN_CHARACTERS: Final = 200


def is_unavailable(error: BaseException) -> bool:
    """Whether a model is rate-limited, overloaded, down or out of reach, so that another one may be asked."""
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status >= 500 or status in _TRANSIENT
    return isinstance(error, _connection_errors())


def _connection_errors() -> tuple[type[BaseException], ...]:
    """Of the packages that are loaded: an error can only come from one of those."""
    names = (
        ("openai", "APIConnectionError"),
        ("httpx2", "TransportError"),
        ("httpx", "TransportError"),
    )
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return tuple(kind for kind in kinds if isinstance(kind, type))


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal in an error: of the openai package, or told in the body of a reply. None if it is no refusal."""
    if isinstance(error, BrokenReply):
        return Refusal(error.status, None, error.told) if error.status else None
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    if not isinstance(status, int):
        return None
    param = body.get("param") if isinstance(body, dict) else None
    if not isinstance(param, str) or param in ("", "None", "null"):  # as some proxies write it
        param = None
    return Refusal(status, param, f"{error} {body}")


def wait_before_retry(headers: Mapping[str, str], tried: int) -> float | None:
    """Seconds to wait after the attempt number `tried` (from 0): what the server asks for, else a growing while
    with some chance in it. None if the server asks for longer than anybody would wait."""
    asked = _retry_after(headers)
    if asked is not None:
        return asked if asked <= _LONGEST_RETRY_AFTER_S else None
    wait = min(_FIRST_WAIT_S * 2.0 ** min(tried, 10), _LONGEST_WAIT_S)
    return wait * (1 - 0.25 * clock.uniform())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (seconds := _float(headers.get(name))) is not None:
            return max(seconds * unit, 0.0)
    try:
        return max(
            parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - clock.now(), 0.0
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _float(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(number) else number


def model_error(broken: BrokenReply, reader: ReplyReader, source: str, model: str) -> ModelError:
    """The error for a reply that cannot be used: what was wrong, and the beginning of what was seen."""
    told = broken.told or reader.seen()
    text = SECRETS.hide(strict_json.clean_text(told))
    if len(text) > _SEEN_CHARACTERS:
        text = f"{text[:_SEEN_CHARACTERS]}..."
    return ModelError(
        f"no usable reply from model {model!r} at {source}: {SECRETS.hide(broken.reason)}; {text}",
        retryable=broken.transient,
    )


def explain_connection(error: Exception, source: str) -> None:
    """A server that cannot be reached is named: whoever reads of it may have meant another one."""
    if isinstance(error, _connection_errors()):
        error.add_note(f"The server is {source}.")


def explain_tools(error: Exception, refusal: Refusal, tools: bool) -> None:
    """Tools are never dropped in silence, so a server that takes none ends the run: say what to do."""
    if tools and refusal.status in (400, 404, 422) and refusal.says_no_to_tools:
        error.add_note(
            "This model or server seems to take no tools. agentor does not leave them out by itself: "
            "choose a model that takes tools, or an agent without them."
        )
