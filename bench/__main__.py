"""`python -m bench`: measure, print the table, write docs/bench.json and docs/bench.svg."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench import peers, report
from bench.machine import fsyncs_per_s, machine
from bench.measures import MEASURES, Measure
from bench.rows import Row
from bench.sizes import FULL, QUICK, Sizes
from bench.trials import ROOT, Lab


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Small sizes, to try the bench itself. Writes nothing.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([measure.name for measure in MEASURES]),
    help="Measure only this; may be given several times. Writes nothing.",
)
@click.option("--times", type=click.IntRange(1), help="How often each trial is run.")
@click.option("--offline", is_flag=True, help="Install no peers; those that are missing are told.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write bench.json and bench.svg here. Default: docs, for a full run of everything.",
)
def main(
    quick: bool, only: tuple[str, ...], times: int | None, offline: bool, out: Path | None
) -> None:
    """Measure agentor beside its peers on this machine."""
    console = Console(width=max(Console().width, 132))
    sizes = with_times(QUICK if quick else FULL, times)
    wanted = [measure for measure in MEASURES if not only or measure.name in only]
    problems = {} if offline else _install()
    for package, why in problems.items():
        console.print(f"[red]{package} could not be installed: {why}", highlight=False)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_scratch()) as folder:
        told = machine(Path(folder))
        rows = measure_all(Path(folder), wanted, sizes)
        told["fsyncs_per_s_after"] = round(fsyncs_per_s(Path(folder)))
    report.show(console, told, rows, sizes.name)
    if out is None and not quick and not only:
        out = ROOT / "docs"
    if out is not None:
        for path in report.save(out, told, rows, problems, sizes.name):
            console.print(f"wrote {path}", highlight=False)


def measure_all(folder: Path, wanted: list[Measure], sizes: Sizes) -> list[Row]:
    """Run the trials of each measure, then make the rows; progress goes to stderr."""
    progress = Console(stderr=True)
    with progress.status("") as status:
        lab = Lab(folder, lambda name: status.update(name))
        for number, measure in enumerate(wanted, 1):
            progress.print(f"[{number}/{len(wanted)}] {measure.title}", markup=False)
            measure.run(lab, sizes)
    return [row for measure in wanted for row in measure.rows(lab, sizes)]


def with_times(sizes: Sizes, times: int | None) -> Sizes:
    return sizes if times is None else replace(sizes, times=times, times_slow=times)


def _install() -> dict[str, str]:
    Console(stderr=True).print(
        f"peers live in {peers.VENV.name}; installing those that are missing"
    )
    return peers.install()


def _scratch() -> str:
    """Beside the checkout, so that the disk is measured and no memory file system."""
    return str(ROOT.parent)


if __name__ == "__main__":
    sys.exit(main())
