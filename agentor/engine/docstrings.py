"""Docstrings to descriptions: what the tool does, and what each parameter means.

Google, NumPy, reST and epydoc layouts are read by docstring_parser. We know the names of the parameters, which
it does not: so the reading that explains most of them wins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import docstring_parser
from docstring_parser import DocstringStyle

_STYLES = (
    DocstringStyle.GOOGLE,
    DocstringStyle.NUMPYDOC,
    DocstringStyle.REST,
    DocstringStyle.EPYDOC,
)


@dataclass(frozen=True, slots=True)
class DocText:
    summary: str  # everything before the sections
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str, names: Collection[str]) -> DocText:
    """What a docstring says of itself and of the parameters called `names`. Never raises."""
    readings = [_read(text, names, style) for style in _STYLES]
    best = max(readings, key=lambda reading: len(reading.parameters))
    return best if best.parameters else DocText(text.strip())


def _read(text: str, names: Collection[str], style: DocstringStyle) -> DocText:
    try:
        parsed = docstring_parser.parse(text, style)
    except Exception:
        return DocText(text.strip())
    parts = (parsed.short_description, parsed.long_description)
    parameters = {}
    for param in parsed.params:
        for name in param.arg_name.split(","):
            if name.strip("`* ") in names and param.description:
                parameters[name.strip("`* ")] = param.description.strip()
    return DocText("\n\n".join(part for part in parts if part), parameters)
