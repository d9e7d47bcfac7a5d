"""The peers, and the environment they live in: made from the package registry, apart from ours."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

VENV: Final = Path(__file__).resolve().parent.parent / ".venv-bench"
OURS: Final = frozenset({"ours", "bare_apsw"})  # subjects that run in this environment

# subject -> how it is called in tables, and what it needs
PEERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "agentor_0_1": ("agentor 0.1.1, FileStore", ("agentor==0.1.1",)),
    "langgraph_saver": ("LangGraph, SqliteSaver", ("langgraph", "langgraph-checkpoint-sqlite")),
    "dbos_steps": ("DBOS on SQLite", ("dbos",)),
    "openai_session": ("openai-agents, SQLiteSession", ("openai-agents",)),
}
NAMES: Final = {subject: name for subject, (name, _) in PEERS.items()} | {
    "ours": "agentor",
    "bare_apsw": "bare apsw loop",
}
PLOTTING: Final = ("matplotlib",)

# No peer may reach for the network while it is measured.
ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "DBOS__CLOUD": "false",
    "PYTHONHASHSEED": "0",
}


def python_of(subject: str) -> str:
    """The interpreter that measures a subject."""
    return sys.executable if subject in OURS else str(VENV / "bin" / "python")


def install() -> dict[str, str]:
    """Make the environment if it is missing; why a package could not be installed, by package."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    wanted = [*(needs for _, needs in PEERS.values()), PLOTTING]
    return {needs[0]: error for needs in wanted if (error := _installed(str(python), needs))}


def _installed(python: str, needs: tuple[str, ...]) -> str | None:
    if _has(python, needs):
        return None
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def _has(python: str, needs: tuple[str, ...]) -> bool:
    return set(versions(python, [need.partition("==")[0] for need in needs]).values()).isdisjoint(
        {"absent"}
    )


def versions(python: str, packages: list[str]) -> dict[str, str]:
    """Of packages in the environment of an interpreter; none if there is no such environment."""
    if not Path(python).exists():
        return {}
    code = (
        "import sys; from importlib import metadata\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, metadata.version(name))\n"
        "    except metadata.PackageNotFoundError: print(name, 'absent')\n"
    )
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def our_version() -> str:
    return metadata.version("agentor")
