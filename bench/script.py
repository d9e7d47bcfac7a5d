"""What every subject does: the same conversation, the same small tool, the same texts.

A run of n turns asks for the weather n times, one call a turn, and then answers. Nothing here imports any subject, so
that each can be measured in an environment of its own.
"""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any, Final

INSTRUCTIONS: Final = "You tell the weather. Ask the tool before you answer."
QUESTION: Final = "What is the weather like in London?"
TOOL: Final = "get_weather"
ARGUMENTS: Final = '{"city":"London"}'
ANSWER: Final = "It is sunny in London, with 21 degrees."
USAGE: Final = (120, 18, 138)  # input, output and total tokens of every model call
RUN_ID: Final = "bench"


def weather(city: str) -> str:
    """The tool. It does nothing that takes time."""
    return f"Sunny in {city}, 21 degrees, a light wind from the west."


def call_id(turn: int) -> str:
    return f"call_{turn:06d}"


def copy_log(log: Path, folder: Path) -> None:
    """Copy a store, down to the disk: else the first commits of what is measured would pay for the copy."""
    shutil.copytree(log, folder, dirs_exist_ok=True)
    os.sync()


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def peak_rss_mb() -> float:
    """The most memory this process ever had, in MB (2**20 bytes). Linux counts in units of 1,024 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def figures(**values: Any) -> dict[str, Any]:
    """What a trial measured, with the memory it took."""
    return {**values, "rss_mb": peak_rss_mb()}
