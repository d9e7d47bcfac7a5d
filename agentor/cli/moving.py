"""The verbs that take runs somewhere else: `export`, `import`, `backup`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import click
from rich.console import Console
from rich.progress import Progress

from agentor.cli import console
from agentor.cli.options import Place, Verb, debug_option, json_option, store_option
from agentor.cli.plain import one_line
from agentor.cli.posting import tell_letters_stay
from agentor.cli.stores import DEFAULT_STORE, existing_store, made_store, note_where
from agentor.cli.wording import advised, counted, noted, some
from agentor.engine.store.protocol import Store
from agentor.errors import ConfigError, StoreError
from agentor.export.jsonl import Imported, OnConflict, export_runs, import_runs, log_files
from agentor.export.reading import Problem

_FORCE = "--force replaces what an earlier export has left there"


@runtime_checkable
class BacksUp(Protocol):
    """A store that can copy its file while it is in use."""

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None: ...


@click.command(
    cls=Verb,
    short_help="Write runs to tables to analyse, or to JSONL files.",
    epilog="agentor export analysis.db\nagentor export --jsonl elsewhere/ --run RUN",
)
@click.argument("out", metavar="OUT", type=Place())
@click.option(
    "--jsonl", is_flag=True, help="Make OUT a directory of JSONL files, one per run, to move runs."
)
@click.option("--run", "run_ids", metavar="RUN", multiple=True, help="Only this run; repeatable.")
@click.option("--force", is_flag=True, help="Replace what an earlier export has left at OUT.")
@store_option()
@json_option
@debug_option
def export(
    out: str,
    jsonl: bool,
    run_ids: tuple[str, ...],
    force: bool,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Write the runs to OUT, a new SQLite file with tables to analyse, full-text search included.

    The tables are runs, turns, messages, tool_calls and usage; any SQLite tool and Datasette open them. With --jsonl
    OUT is a directory of JSONL files instead, which `agentor import` takes in elsewhere. The store may be in use.
    Exit code 1 if a run was damaged; the others are exported.
    """
    mentioned = contextlib.nullcontext() if force else noted("exists already", _FORCE)
    with existing_store(store_path) as store, mentioned:
        if jsonl:
            _export_runs(store, out, run_ids, force, as_json)
        else:
            _export_tables(store, out, run_ids, force, as_json)


def _export_tables(
    store: Store, out: str, run_ids: Sequence[str], force: bool, as_json: bool
) -> None:
    from agentor.export.snapshot import write_snapshot  # the other verbs need no sqlite-utils

    done = write_snapshot(store, out, run_ids, replace=force, progress=console.with_progress)
    one = {name: name.replace("_", " ").removesuffix("s") for name in done.rows if name != "usage"}
    told = ", ".join(counted(done.rows[name], one[name]) for name in one)
    _tell({"out": out, **done.rows}, f"{out}: {told}.", done.damaged, as_json)
    _end(done.damaged)


def _export_runs(
    store: Store, out: str, run_ids: Sequence[str], force: bool, as_json: bool
) -> None:
    done = export_runs(store, out, run_ids, replace=force, progress=console.with_progress)
    if done.left:
        told = f"{_runs(len(done.left))} left in {out} that no export has written as it is: {some(done.left)}. An import takes that in, too."
        click.echo(one_line(told, 1000), err=True)
    stay = "in this store, which still delivers them"
    letters = tell_letters_stay(store, set(done.runs), stay, all_others=not run_ids)
    summary = {"out": out, "runs": len(done.runs), "letters": letters}
    summary |= {"removed": done.removed, "left": done.left}
    gone = f", {len(done.removed)} of an earlier export taken away" if done.removed else ""
    _tell(summary, f"{out}: {_runs(len(done.runs))}{gone}.", done.damaged, as_json)
    _end(done.damaged)


@click.command(
    "import",
    cls=Verb,
    short_help="Add runs from JSONL files to a store.",
    epilog="agentor import elsewhere/\nagentor import runs/one.jsonl runs/two.jsonl --store runs.db",
)
@click.argument("paths", metavar="PATH...", type=Place(), nargs=-1, required=True)
@click.option(
    "--on-conflict",
    type=click.Choice(["skip", "fail"]),
    default="skip",
    show_default=True,
    help="When another run has the id: leave it out, or import nothing at all.",
)
@store_option("Where to add them; made if it is not there.  [default: runs.db]")
@json_option
@debug_option
def import_(
    paths: tuple[str, ...], on_conflict: OnConflict, store_path: str | None, as_json: bool
) -> None:
    """Add the runs in PATH to a store: JSONL files, or directories of them, Agentor 0.1's included.

    A run keeps the id that its file is named after. What is there already is not added twice, and a run of which only
    the beginning is there is completed. Exit code 1 if a file was damaged; the others are imported.
    """
    store_path = store_path or DEFAULT_STORE
    note_where(store_path)  # what is wrong with the files is told before it is made
    files, done = log_files(paths), Imported()
    with made_store(store_path) as store:
        try:
            import_runs(store, files, on_conflict, progress=console.with_progress, outcome=done)
        except StoreError:
            if done != Imported():
                _tell_imported(done, as_json)
                click.echo("The same import, once that works, goes on with the others.", err=True)
            raise
    _tell_imported(done, as_json)
    _end(done.damaged)


def _tell_imported(done: Imported, as_json: bool) -> None:
    for each in done.changed:
        click.echo(one_line(f"run {each.run_id}: {each.problem}", 1000), err=True)
    _tell(_counts(done), _story(done), done.damaged, as_json)


def _counts(done: Imported) -> dict[str, Any]:
    return {
        "imported": len(done.imported),
        "completed": len(done.completed),
        "already_there": len(done.already_there),
        "taken": done.taken,
        "held": done.held,
        "changed": [asdict(each) for each in done.changed],
    }


def _story(done: Imported) -> str:
    parts = [f"{_runs(len(done.imported))} imported"]
    if done.completed:
        parts.append(f"{len(done.completed)} completed")
    if done.already_there:
        parts.append(f"{len(done.already_there)} already there")
    if done.taken:
        parts.append(
            f"{len(done.taken)} left out, since another run has the id ({some(done.taken)})"
        )
    if done.held:
        parts.append(f"{len(done.held)} left out, since somebody works there ({some(done.held)})")
    return ", ".join(parts) + "."


@click.command(
    cls=Verb,
    short_help="Copy a SQLite store while it is in use.",
    epilog="agentor backup backups/monday.db --store runs.db",
)
@click.argument("out", metavar="OUT", type=Place())
@store_option("The SQLite file to copy.  [default: runs.db]")
@json_option
@debug_option
def backup(out: str, store_path: str | None, as_json: bool) -> None:
    """Copy a SQLite store to the new file OUT, as it is at one moment, while others go on writing.

    OUT is a store like the other. It is there when it is complete, or not at all, and never replaces a file. Its
    directory is made if it is not there.
    """
    with existing_store(store_path) as store:
        if not isinstance(store, BacksUp):
            raise ConfigError(
                "only a SQLite store needs a backup of its own; copy a directory of JSONL files with any tool, "
                "or use `agentor export --jsonl DIR`"
            )
        with contextlib.suppress(OSError):  # what is in the way is told by the backup itself
            Path(out).parent.mkdir(parents=True, exist_ok=True)
        with _bar("copying") as progress:
            store.backup(out, progress)
    size = os.stat(out).st_size
    _tell({"out": out, "bytes": size}, f"{out}: {size:,} bytes.", [], as_json)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, if somebody is looking."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _tell(summary: dict[str, Any], story: str, damaged: Sequence[Problem], as_json: bool) -> None:
    damaged = [replace(each, problem=advised(each.problem)) for each in damaged]
    if as_json:
        console.print_json({**summary, "damaged": [asdict(each) for each in damaged]})
    else:
        click.echo(one_line(story, 2000))
    for each in damaged:
        click.echo(one_line(f"run {each.run_id}: {each.problem}", 1000), err=True)


def _end(damaged: Sequence[Problem]) -> None:
    """With exit code 1 if anything was damaged."""
    if damaged:
        click.get_current_context().exit(1)
