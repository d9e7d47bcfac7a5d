"""Docstrings to descriptions: what the tool does, and what each parameter means.

docstring_parser reads NumPy, reST and epydoc. Google's layout, the most common and the most carelessly written,
is read here: we know the parameters' names, which tell an item from a continued line however it is indented, and
prose after a section is kept, which often tells the model when to call the tool.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import docstring_parser
from docstring_parser import DocstringStyle

_ARGS: Final = re.compile(
    r"\**(args|arguments|params|parameters|inputs|(keyword|other) (args|arguments|parameters))"
    r"\s*\**\s*:\s*\**",
    re.IGNORECASE,
)
_UNTOLD: Final = re.compile(r"\**(returns?|yields?|raises?|exceptions)\s*\**\s*:.*", re.IGNORECASE)
_HEADING: Final = re.compile(r"\**[A-Z][\w ]*\**:\**")
_TYPE: Final = (
    r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # (dict[str, int]), (Annotated[int, Ge(1)])
)
_ITEM: Final = re.compile(  # city: text, `city` (str): text, - **city**: text, city - text, or text below
    rf"(?:[-*•]\s+)?[`*]{{0,2}}(?P<name>\*{{0,2}}[^\W\d]\w*)[`*]{{0,2}}(?:\s*{_TYPE})?[`*]{{0,2}}\s*"
    r"(?:(?::(?!:)|\s[-–—]\s)[`*]{0,2}\s*(?P<text>.*))?"
)


@dataclass(frozen=True, slots=True)
class DocText:
    summary: str  # what the tool does: all prose but that on results and errors
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str, names: Collection[str]) -> DocText:
    """What a docstring says of itself and of the parameters called `names`. Never raises.

    Its indentation must be gone (`inspect.cleandoc`). The layout that explains most parameters is taken to be its.
    """
    readings = [_read_google(text, names)]
    if ":" in text or "---" in text or "@" in text:
        readings += [_read(text, names, style) for style in _OTHER_STYLES]
    return max(readings, key=lambda reading: len(reading.parameters))


_OTHER_STYLES: Final = (DocstringStyle.NUMPYDOC, DocstringStyle.REST, DocstringStyle.EPYDOC)


def _read(text: str, names: Collection[str], style: DocstringStyle) -> DocText:
    try:
        parsed = docstring_parser.parse(text, style)
    except Exception:  # ParseError, and what its regular expressions stumble over
        return DocText(text.strip())
    gap = "\n\n" if parsed.blank_after_short_description else "\n"
    parts = (parsed.short_description, parsed.long_description)
    return DocText(gap.join(part for part in parts if part), _explained(parsed, names))


def _explained(parsed: docstring_parser.Docstring, names: Collection[str]) -> dict[str, str]:
    """NumPy allows several names to one text: `days, hours : int`."""
    return {
        name: param.description.strip()
        for param in parsed.params
        for name in (part.strip("`* ") for part in param.arg_name.split(","))
        if name in names and param.description and param.description.strip()
    }


def _read_google(text: str, names: Collection[str]) -> DocText:
    google = _Google(names)
    for line in text.splitlines():
        google.take(line)
    summary = re.sub(r"\n{3,}", "\n\n", "\n".join(google.prose)).strip()
    texts = {name: "\n".join(lines).strip() for name, lines in google.items.items()}
    return DocText(summary, {name: texts[name] for name in texts if name in names and texts[name]})


class _Google:
    """Takes lines, one by one, to where they belong: the prose, an item of a parameter section, or nowhere."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._place = "prose"  # or "items", "untold"
        self._margin = 0  # of the section's heading
        self._item_margin: int | None = None  # of the section's first item
        self._item: list[str] = []  # the lines of the open item
        self._after_blank = False
        self.prose: list[str] = []
        self.items: dict[str, list[str]] = {}

    def take(self, line: str) -> None:
        words = line.strip()
        margin = len(line) - len(line.lstrip())
        item = self._item_in(words, margin)
        if _ARGS.fullmatch(words):
            self._open("items", margin)
        elif item is not None:
            self._open_item(item, margin)
        elif _UNTOLD.fullmatch(words):
            self._open("untold", margin)
        elif self._place != "prose" and self._ends_section(words, margin):
            self._open("prose", margin)
            self.prose += ["", line]
        elif self._place == "prose":
            self.prose.append(line)
        elif self._place == "items" and words:
            self._item.append(words)
        self._after_blank = not words

    def _open(self, place: str, margin: int) -> None:
        self._place, self._margin, self._item_margin = place, margin, None

    def _item_in(self, words: str, margin: int) -> re.Match[str] | None:
        """A parameter's name starts an item at any margin; another word only where the section's items start."""
        item = _ITEM.fullmatch(words) if self._place == "items" else None
        if item is None:
            return None
        name, first_margin = item["name"].lstrip("*"), self._item_margin
        if name in self._names:
            deeper = first_margin is not None and margin > first_margin
            return None if deeper and name in self.items else item
        beside = first_margin in (None, margin) and margin > self._margin
        return item if beside and item["text"] is not None else None

    def _open_item(self, item: re.Match[str], margin: int) -> None:
        self._item_margin = margin if self._item_margin is None else self._item_margin
        self._item = self.items[item["name"].lstrip("*")] = [item["text"] or ""]

    def _ends_section(self, words: str, margin: int) -> bool:
        """Text at the heading's margin, unless a careless layout goes on there with an item's text."""
        if not words or margin > self._margin:
            return False
        return self._after_blank or self._place == "untold" or bool(_HEADING.fullmatch(words))
