"""The moments at which a process is killed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

Moment: TypeAlias = Literal["before commit", "after commit", "after return"]
_MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)


@dataclass(frozen=True, slots=True)
class Point:
    """The `number`-th of its kind in one process, from 1. "after return": of a tool, before its result is saved."""

    moment: Moment
    number: int

    def __str__(self) -> str:
        return f"{self.moment} {self.number}"

    @property
    def slug(self) -> str:
        return str(self).replace(" ", "-")

    @classmethod
    def parse(cls, text: str) -> Point:
        """What `str` wrote; `ValueError` if that is nothing of the kind."""
        words, _, number = text.strip().rpartition(" ")
        moment = next((each for each in _MOMENTS if each == words), None)
        if moment is None or not number.isdecimal() or number == "0":
            raise ValueError(f"no point: {text!r}")
        return cls(moment, int(number))
