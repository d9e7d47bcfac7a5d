"""Trials: each a process of its own, started in turn with those it is compared to."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.peers import ENVIRONMENT, python_of

ROOT: Final = Path(__file__).resolve().parent.parent
LIMIT_S: Final = 1800  # a trial that takes longer has failed


@dataclass(frozen=True)
class Trial:
    """What one process measures. `log`: another trial, whose files it reads."""

    subject: str  # a module in bench/subjects
    kind: str  # one of its KINDS
    params: tuple[tuple[str, Any], ...] = ()
    log: Trial | None = None

    @property
    def name(self) -> str:
        told = "-".join(Path(str(value)).name for _, value in self.params)
        return "-".join(filter(None, (self.subject, self.kind, told)))


def trial(subject: str, kind: str, log: Trial | None = None, **params: Any) -> Trial:
    return Trial(subject, kind, tuple(sorted(params.items())), log)


class Failed(Exception):
    """A trial that gave no figures, and why."""


@dataclass
class Lab:
    """Runs trials, keeps what they measured and the files of each one's first time."""

    folder: Path
    told: Callable[[str], None] = lambda line: None  # of each trial, when it starts
    measured: dict[Trial, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[Trial, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "path").mkdir(parents=True, exist_ok=True)
        with_only_us = (
            self.folder / "path" / "bench"
        )  # so that no trial sees this checkout's agentor
        if not with_only_us.exists():
            with_only_us.symlink_to(ROOT / "bench")

    def race(self, trials: Sequence[Trial], times: int) -> None:
        """Run each of the trials `times` times, interleaved. A trial that fails is not run again."""
        for _ in range(times):
            for each in trials:
                if each not in self.failures and len(self.measured.get(each, ())) < times:
                    self._once(each)

    def median(self, of: Trial, figure: str) -> float:
        """Over all times. `Failed` says why there is none."""
        return float(statistics.median(self._values(of, figure)))

    def spread(self, of: Trial, figure: str) -> tuple[float, float] | None:
        """The lowest and the highest; None if it was measured once."""
        values = self._values(of, figure)
        return (min(values), max(values)) if len(values) > 1 else None

    def _values(self, of: Trial, figure: str) -> list[float]:
        if of in self.failures:
            raise Failed(self.failures[of])
        values = [
            found[figure] for found in self.measured.get(of, ()) if found.get(figure) is not None
        ]
        if not values:
            raise Failed("not measured")
        return values

    def together(self, trials: Iterable[Trial]) -> list[dict[str, Any]]:
        """Start all, let them go at once, and wait for all of them."""
        started = [self._start(each, self._fresh(each), stdin=subprocess.PIPE) for each in trials]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [_figures_of(process, *process.communicate(timeout=LIMIT_S)) for process in started]

    def _once(self, each: Trial) -> None:
        if each.log is not None:
            self.race([each.log], max(1, len(self.measured.get(each.log, ()))))
            if each.log in self.failures:
                self.failures[each] = f"it needs {each.log.name}, which failed"
                return
        self.told(each.name)
        folder = self._fresh(each)
        try:
            process = self._start(each, folder)
            found = _figures_of(process, *process.communicate(timeout=LIMIT_S))
        except (Failed, subprocess.TimeoutExpired, OSError) as error:
            self.failures[each] = str(error)
            return
        (folder.parent / f"{folder.name}.json").write_text(json.dumps(found))
        self.measured.setdefault(each, []).append(found)
        self._keep(each, folder, found)

    def _keep(self, each: Trial, folder: Path, found: Mapping[str, Any]) -> None:
        """The first time's files stay, for trials that read them; the others' make room."""
        kept = self._kept(each)
        if kept.exists():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.rename(kept)
            (kept / "measured.json").write_text(json.dumps(found))

    def _kept(self, each: Trial) -> Path:
        return self.folder / "kept" / each.name

    def _fresh(self, each: Trial) -> Path:
        self._kept(each).parent.mkdir(exist_ok=True)
        folder = self.folder / "running" / each.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _start(self, each: Trial, folder: Path, stdin: Any = None) -> subprocess.Popen[str]:
        told = {
            "subject": each.subject,
            "kind": each.kind,
            "params": dict(each.params),
            "folder": str(folder),
            "log": str(self._kept(each.log)) if each.log else None,
        }
        return subprocess.Popen(
            [python_of(each.subject), "-P", "-m", "bench.worker", json.dumps(told)],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(self.folder / "path")},
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _figures_of(process: subprocess.Popen[str], out: str, err: str) -> dict[str, Any]:
    lines = out.strip().splitlines()
    if process.returncode or not lines:
        last = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise Failed(last[:300])
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures
