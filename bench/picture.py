"""Draw bench.json: the time and the size of a run beside its peers. Run by the environment that has matplotlib."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

_OURS, _THEIRS = "#1f6f5c", "#b9bfc6"


def draw(found: dict[str, Any], path: str) -> None:
    panels = _panels(found["rows"])
    matplotlib.rcParams["svg.hashsalt"] = "bench"  # the same figures give the same file
    figure, axes = plt.subplots(1, len(panels), figsize=(4.3 * len(panels), 2.9), squeeze=False)
    for axis, (title, bars) in zip(axes[0], panels, strict=True):
        _panel(axis, title, bars)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _panels(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, float]]]:
    """One panel for each figure that has peers: ours first, then each of theirs."""
    panels: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["measure"] in ("run", "bytes", "concurrent") and row["peer"] and row["theirs"]:
            bars = panels.setdefault((row["figure"], row["unit"]), {"agentor": row["ours"]})
            bars[row["peer"]] = row["theirs"]
    several = {key: bars for key, bars in panels.items() if "over" not in key[0]}
    return [(_title(figure, unit), bars) for (figure, unit), bars in several.items()]


def _title(figure: str, unit: str) -> str:
    return f"{figure} ({ {'s': 'seconds'}.get(unit, unit) })"


def _panel(axis: Any, title: str, bars: dict[str, float]) -> None:
    names = list(bars)[::-1]
    colours = [_OURS if name == "agentor" else _THEIRS for name in names]
    drawn = axis.barh(names, [bars[name] for name in names], color=colours)
    axis.bar_label(drawn, labels=[f"{bars[name]:,.3g}" for name in names], padding=3, fontsize=8)
    axis.set_xscale("log")
    axis.margins(x=0.25)
    axis.set_title(title, fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        draw(json.load(file), sys.argv[2])
