"""What a call cost, from the counts in any of the spellings servers use."""

from __future__ import annotations

import math
from typing import Any

from agentor.engine.events import Usage


def usage_of(counts: Any) -> Usage:
    """The tokens that a reply's `usage` tells of; all 0 if it tells of none."""
    if not isinstance(counts, dict):
        return Usage()
    given = _first(counts, "prompt_tokens", "input_tokens")
    taken = _first(counts, "completion_tokens", "output_tokens")
    return Usage(
        given,
        taken,
        _first(counts, "total_tokens") or given + taken,
        _detail(counts, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
        or _first(counts, "prompt_cache_hit_tokens", "cached_tokens"),
        _detail(counts, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
    )


def _first(counts: dict[str, Any], *names: str) -> int:
    return next((number for name in names if (number := _number(counts.get(name)))), 0)


def _detail(counts: dict[str, Any], groups: tuple[str, ...], name: str) -> int:
    for group in groups:
        if isinstance(inner := counts.get(group), dict) and (number := _number(inner.get(name))):
            return number
    return 0


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return max(int(value), 0)
