"""What a line of JSONL says that no event can keep: to be told when the line is brought into a store.

Events are strict JSON, and counts are numbers of tokens; so a NaN, half a surrogate pair or a count of twenty digits comes out
as something else. That is better than to refuse the run, as long as it is not silent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.strict_json import clean_text

_SHOWN = 60  # characters of a value


def changes_of(content: bytes) -> list[str]:
    """Where the events of a file differ from its lines: `seq 2: note: NaN becomes "NaN"`. Lines that are no events are passed over."""
    found = []
    seq = 0
    for line in content.split(b"\n"):
        try:
            event, said = Event.from_json(line), json.loads(line, parse_float=_number)
        except ValueError:
            continue
        seq += 1
        kept = event.to_dict()
        if said != kept:  # nearly always they are equal, and that is quickly known
            found += [f"seq {seq}: {change}" for change in _differences(said, kept)]
    return found


def _number(text: str) -> float | str:
    """As it stands there, if it is too large for a float and not as we write such a number."""
    value = float(text)
    return value if math.isfinite(value) or text.removeprefix("-") == strict_json.LARGE else text


def _differences(said: dict[str, Any], kept: dict[str, Any]) -> Iterator[str]:
    # A field that is null is a field that is absent.
    set_fields = {name: value for name, value in said.items() if value is not None}
    return _between(set_fields, kept, "")


def _between(said: Any, kept: Any, place: str) -> Iterator[str]:
    match said, kept:
        case dict(), dict():
            for name, value in said.items():
                where = f"{place}.{name}" if place else name
                if clean_text(name) not in kept:
                    yield f"{clean_text(where)} is left out"
                else:
                    yield from _between(value, kept[clean_text(name)], where)
        case list(), list() if len(said) == len(kept):
            for number, (one, other) in enumerate(zip(said, kept, strict=True)):
                yield from _between(one, other, f"{place}[{number}]")
        case _ if said != kept:
            yield f"{clean_text(place)}: {_shown(said)} becomes {_shown(kept)}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
