"""Fields that only the provider understands, gathered from the pieces of a stream without knowing what they mean."""

from __future__ import annotations

from typing import Any, Final

from agentor.engine import strict_json

# Text that comes piece by piece: an equal piece is more of it, not the same again.
_FLOWS: Final = frozenset(
    {"reasoning_content", "reasoning", "thinking", "reasoning_text", "refusal", "text"}
    | {"summary", "content", "transcript", "data"}
)
_LABELS: Final = frozenset({"id", "type", "format", "index", "role", "name", "status", "object"})


class Gathered:
    """An object in the making: strings go on, lists grow, objects merge, everything else is the newest said."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Fold a piece of the field in. What is empty or null never overwrites."""
        held = self._fields.get(name)
        if value is None or value in ("", [], {}):
            self._fields.setdefault(name, value)
        elif isinstance(value, str) and name not in _LABELS:
            if not isinstance(held, _Flow):
                held = self._fields[name] = _Flow()
            held.add(value, name in _FLOWS)
        elif isinstance(value, dict):
            if not isinstance(held, Gathered):
                held = self._fields[name] = Gathered()
            held.update(value)
        elif isinstance(value, list):
            if not isinstance(held, _Items):
                held = self._fields[name] = _Items()
            held.extend(value)
        else:
            self._fields[name] = value

    def update(self, pieces: dict[str, Any]) -> None:
        for name, value in pieces.items():
            self.add(name, value)

    def value(self, name: str) -> Any:
        return strict_json.clean(_whole(self._fields.get(name)))

    def whole(self) -> dict[str, Any]:
        return {strict_json.clean_text(name): self.value(name) for name in self._fields}

    def said(self) -> dict[str, Any]:
        """Everything gathered that is not empty, as strict JSON. Even an empty reasoning text is wanted back
        by some servers, so it counts."""
        return {
            name: value
            for name, value in self.whole().items()
            if value not in (None, "", [], {}) or (value == "" and name.startswith("reasoning"))
        }


class _Flow:
    """A string in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, piece: str, flows: bool) -> None:
        if not flows and self._size and len(piece) >= self._size and piece.startswith(self.whole()):
            self._pieces, self._size = [], 0  # said again, or all of it so far and more
        self._pieces.append(piece)
        self._size += len(piece)

    def whole(self) -> str:
        return "".join(self._pieces)


class _Items:
    """A list in pieces. Objects that say which item they belong to (`index`, and `type`) are merged into it."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._at: dict[tuple[Any, str | None], Gathered] = {}

    def extend(self, items: list[Any]) -> None:
        """Go on with a list. Two objects of one piece are never the same item."""
        placed: set[int] = set()
        for item in items:
            if isinstance(item, dict):
                held = self._place(item, placed)
                held.update(item)
                placed.add(id(held))
            else:
                self._items.append(item)

    def _place(self, item: dict[str, Any], placed: set[int]) -> Gathered:
        index, kind = item.get("index"), item.get("type")
        key = (index, kind if isinstance(kind, str) else None)
        held = self._at.get(key) if isinstance(index, int) else None
        if held is None or id(held) in placed:
            held = self._at[key] = Gathered()
            self._items.append(held)
        return held

    def whole(self) -> list[Any]:
        return [_whole(item) for item in self._items]


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, Gathered | _Flow | _Items) else value
