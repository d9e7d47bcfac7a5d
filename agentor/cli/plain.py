"""Text that cannot harm a terminal.

What a model or a tool says may hold escape sequences that recolour, retitle, overwrite or answer for the user, and
characters that show a line in another order than it is stored. All of it is dropped before anything is shown.
"""

from __future__ import annotations

import re

from agentor.engine import strict_json

_SEQUENCE = re.compile(
    r"""
      (?:\x1b\[|\x9b) [0-?]* [ -/]* [@-~]?                             # CSI: colour, cursor, erase
    # OSC, DCS and other strings; one without an end is kept as text, lest it hide the rest
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]) (?:[^\x07\x1b\x9c\n]{0,4000} (?:\x07|\x1b\\|\x9c))?
    | \x1b [ -/]* [0-~]?                                               # the short ones
    """,
    re.VERBOSE,
)
_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f"  # controls, but for newline and tab
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction overrides
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # marks and tags that nobody sees
)


def plain(text: str) -> str:
    """`text` without terminal escapes, control characters (newline and tab stay) and direction overrides.

    >>> plain("\\x1b[31mred\\x1b[0m, and a bell\\x07")
    'red, and a bell'
    """
    text = _SEQUENCE.sub("", strict_json.clean_text(text))
    return _UNSEEN.sub("", _LINE_BREAK.sub("\n", text))


def one_line(text: str, width: int) -> str:
    """`text` made plain, in one line of at most `width` characters, with "…" where something was cut."""
    line = " ".join(plain(text[: 20 * width]).split())
    return line if len(line) <= width and len(text) <= 20 * width else line[: width - 1] + "…"


def exact(text: str) -> str:
    """`text` in one line, with everything that cannot be seen written out: for those who must know what is there.

    >>> exact("pay\\x1b[2K \\u202e40")
    'pay\\\\u001b[2K \\\\u202e40'
    """
    text = strict_json.clean_text(text)
    return text if text.isprintable() else "".join(map(_written_out, text))


def _written_out(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
