"""One trial, in the process that was started for it: `python -m bench.worker '{"subject": ..., "kind": ...}'`.

The last line it prints is a JSON object of what was measured.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def perform(trial: dict[str, Any]) -> dict[str, Any]:
    """Run a trial. `folder` is its own and empty; `log` is the folder of the trial it builds on, or None."""
    subject = importlib.import_module(f"bench.subjects.{trial['subject']}")
    log = Path(trial["log"]) if trial.get("log") else None
    measured: dict[str, Any] = subject.KINDS[trial["kind"]](
        Path(trial["folder"]), log, **trial["params"]
    )
    return measured


if __name__ == "__main__":
    print(json.dumps(perform(json.loads(sys.argv[1]))), flush=True)
