"""How text comes out of the file: as it is, also where damage has left bytes that are no UTF-8.

apsw raises UnicodeDecodeError in the middle of the rows, so that one bad byte of one run would hide all the others. Every
connection of ours has this cursor instead: what cannot be read stands as U+FFFD in its place. That is good enough to
look at, and never equal to what was there. It is not good enough to go by: the body of an event or a letter is selected
as a BLOB and read as JSON, which refuses such bytes.
"""

from __future__ import annotations

from typing import Any

import apsw


class Cursor(apsw.Cursor):
    """Gives the rows of statements that only read, whatever the text in them; for `Connection.cursor_factory`."""

    __slots__ = ()

    def fetchall(self) -> list[Any]:
        try:
            return super().fetchall()
        except UnicodeDecodeError:
            if not self.is_readonly:
                raise
            return _legible(self)

    @property
    def get(self) -> Any:
        try:
            return super().get
        except UnicodeDecodeError:
            if not self.is_readonly:
                raise
            row = _legible(self)[0]
            return row if len(row) > 1 else row[0]


def _legible(cursor: apsw.Cursor) -> list[tuple[Any, ...]]:
    """Ask the same again, for bytes."""
    names = [f"c{number}" for number in range(len(cursor.get_description()))]
    kinds = [f"typeof({name}) = 'text'" for name in names]
    values = [
        f"iif({is_text}, CAST({name} AS BLOB), {name})"
        for name, is_text in zip(names, kinds, strict=True)
    ]
    rows: list[Any] = cursor.connection.execute(
        f"WITH found ({', '.join(names)}) AS ({cursor.expanded_sql}) "
        f"SELECT {', '.join(values + kinds)} FROM found"
    ).fetchall()
    return [_row(row[: len(names)], row[len(names) :]) for row in rows]


def _row(values: tuple[Any, ...], are_text: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.decode("utf-8", "replace") if is_text else value
        for value, is_text in zip(values, are_text, strict=True)
    )
