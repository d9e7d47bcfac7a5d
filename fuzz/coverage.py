"""Coverage-guided fuzzing of one reader with atheris, where that installs: `python -m fuzz.coverage event -runs=100000`.

Finds are written to the corpus directory of the target; what follows its name goes to libFuzzer.
"""

from __future__ import annotations

import sys
from pathlib import Path

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "fuzz" / "corpus"


def main() -> None:
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        sys.exit(
            "atheris is not installed: pip install atheris (it has wheels for some Pythons only)"
        )
    with atheris.instrument_imports(include=["agentor"]):
        from fuzz import readers
    if len(sys.argv) < 2 or sys.argv[1] not in readers.TARGETS:
        sys.exit(f"name a target: {', '.join(readers.TARGETS)}")
    name = sys.argv[1]
    target, corpus = readers.TARGETS[name], CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    found = f"-artifact_prefix={corpus}/"
    atheris.Setup([sys.argv[0], found, *sys.argv[2:], str(corpus)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
