"""The verbs that take runs away: `delete` and `prune`."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.text import Text

from agentor.cli import console
from agentor.cli.options import Verb, WholeNumber, debug_option, json_option, store_option
from agentor.cli.overview import STATUSES, ListsRows, Overview, overviews_of
from agentor.cli.plain import one_line
from agentor.cli.posting import tell_letters_stay
from agentor.cli.stores import existing_store
from agentor.cli.wording import counted, some
from agentor.engine import clock
from agentor.engine.store.protocol import Deletes, Removed, Store, check_run_id
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LogCorruptError,
    RunNotFoundError,
    StoreError,
    UnfinishedDeleteError,
)
from agentor.recorded import another_run, identity

_HEADINGS = ("run", "status", "agent", "turns", "started")
_SHOWN = 20  # runs of a table that may have thousands
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


class _Age(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer clicks only
    """`30d` as the moment 30 days ago: fixed once, so that what is shown is what goes."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        match = _AGE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no age; write 90s, 15m, 12h, 30d or 8w", param, ctx)
        try:
            age = timedelta(seconds=float(match[1]) * _UNITS[match[2]])
            return datetime.fromtimestamp(clock.now(), UTC) - age
        except OverflowError:
            self.fail(f"{value!r} is longer ago than time goes back", param, ctx)


_yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@click.command(
    cls=Verb,
    short_help="Delete runs by age, status and number.",
    epilog="agentor prune --older-than 30d --dry-run\nagentor prune --status completed --keep 100 --yes",
)
@click.option(
    "--older-than",
    type=_Age(),
    metavar="AGE",
    help="Only runs that have not changed for so long: 90s, 15m, 12h, 30d, 8w. An import is a change.",
)
@click.option(
    "--status",
    "statuses",
    type=click.Choice(STATUSES),
    metavar="STATUS",
    multiple=True,
    help=f"Only runs of this status: {', '.join(STATUSES)}. Repeatable.  [default: every run that has ended]",
)
@click.option("--keep", type=WholeNumber(0), metavar="N", help="Not the newest N of them.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@_yes_option
@store_option()
@json_option
@debug_option
def prune(
    older_than: datetime | None,
    statuses: tuple[str, ...],
    keep: int | None,
    dry_run: bool,
    yes: bool,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Delete the runs that everything given applies to.

    Unfinished and paused runs are spared unless --status names them. Runs that somebody works on are always spared,
    and named; that is no failure, so the exit code is 0 even if nothing is left to delete. Forks of a deleted run
    keep all they have.
    """
    if older_than is None and not statuses and keep is None:
        raise ConfigError("which runs? say --older-than AGE, --status STATUS or --keep N")
    if older_than is None and not yes:
        # What changes while it asks was not shown.
        older_than = datetime.fromtimestamp(clock.now(), UTC)
    chosen: dict[str, Any] = {"older_than": older_than, "status": statuses or None, "keep": keep}
    with existing_store(store_path) as store:
        deletes = _deleting(store)
        told = deletes.prune(**chosen, dry_run=True)
        if dry_run:
            _tell(store, told, as_json, dry_run=True)
            return
        if told.run_ids:
            _ask(store, told.run_ids, yes)
        own = _own_events(store, told.run_ids)
        try:
            done = deletes.prune(**chosen, only=told.run_ids)
        except UnfinishedDeleteError as error:
            _tell(store, error.removed, as_json)
            raise
        _tell(store, replace(done, held=sorted({*told.held, *done.held})), as_json)
        _tell_what_stays(store, own, done)


@click.command(
    cls=Verb,
    short_help="Delete runs by name.",
    epilog="agentor delete RUN\nagentor delete RUN RUN --yes --store runs/",
)
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@_yes_option
@store_option()
@json_option
@debug_option
def delete(run_ids: tuple[str, ...], yes: bool, store_path: str | None, as_json: bool) -> None:
    """Delete runs for good; nothing if one of them is not there. Forks of them keep all they have.

    A run that somebody works on is spared, and the exit code is 1.
    """
    names = list(dict.fromkeys(map(check_run_id, run_ids)))
    with existing_store(store_path) as store:
        deletes = _deleting(store)
        known = set(store.list_runs())
        for name in names:
            if name not in known:
                raise RunNotFoundError(name)
        meant = {} if yes else {name: _which(store, name) for name in names}
        _ask(store, names, yes)
        for name, which in meant.items():
            if _which(store, name) != which:
                raise another_run(name)
        own = _own_events(store, names)
        parts: list[Removed] = []
        try:
            for name in names:
                parts.append(_delete(deletes, name))
        except StoreError as error:
            if isinstance(error, UnfinishedDeleteError):
                parts.append(error.removed)
            if parts:
                _tell(store, _sum(parts), as_json)
            raise
        done = _sum(parts)
        _tell(store, done, as_json)
        _tell_what_stays(store, own, done)
    if done.held:
        click.get_current_context().exit(1)


def _deleting(store: Store) -> Deletes:
    if not isinstance(store, Deletes):
        raise ConfigError("this store cannot delete runs")
    return store


def _which(store: Store, run_id: str) -> str | None:
    """What tells the run from any other of its id; None of one that is gone, or damaged."""
    with contextlib.suppress(LogCorruptError):
        return identity(log) if (log := store.load(run_id)) else None
    return None


def _own_events(store: Store, names: Sequence[str]) -> dict[str, int]:
    """How many events each run has that no parent of it has, where forks share those of their parents."""
    if not isinstance(store, ListsRows):
        return {}
    rows = [row for row in store.runs() if row.run_id in names]
    return {row.run_id: row.last_seq - row.parent_seq for row in rows}


def _tell_what_stays(store: Store, own: Mapping[str, int], done: Removed) -> None:
    if sum(own[name] for name in done.run_ids if name in own) > done.events:
        click.echo("The other events stay, since forks have them too.", err=True)
    tell_letters_stay(store, set(done.run_ids), "in the outbox, which still delivers them")


def _delete(store: Deletes, run_id: str) -> Removed:
    try:
        return store.delete(run_id)
    except LeaseHeldError:
        return Removed([], [run_id], 0, 0)
    except RunNotFoundError:  # somebody else has deleted it since we looked
        return Removed([], [], 0, 0)


def _sum(parts: Sequence[Removed]) -> Removed:
    return Removed(
        [run_id for part in parts for run_id in part.run_ids],
        [run_id for part in parts for run_id in part.held],
        sum(part.events for part in parts),
        sum(part.bytes for part in parts),
    )


def _ask(store: Store, run_ids: list[str], yes: bool) -> None:
    """Return if it was said beforehand, or is said now."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():  # None: closed from the start
        raise ConfigError("nobody is there to ask; say --yes to delete without a question")
    _show(store, run_ids)
    click.confirm(f"Delete {counted(len(run_ids), 'run')} for good?", abort=True, err=True)


def _tell(store: Store, removed: Removed, as_json: bool, dry_run: bool = False) -> None:
    if as_json:
        console.print_json({"dry_run": dry_run, **asdict(removed)})
    else:
        if dry_run and removed.run_ids:
            _show(store, removed.run_ids)
        verb = "would go" if dry_run else "deleted"
        size = f"{removed.events:,} events, {removed.bytes:,} bytes"
        click.echo(f"{counted(len(removed.run_ids), 'run')} {verb}: {size}.")
    if removed.held:
        told = f"{counted(len(removed.held), 'run')} spared, since somebody works there: {some(removed.held)}"
        click.echo(one_line(told, 1000), err=True)


def _show(store: Store, run_ids: list[str]) -> None:
    console.print_table(_HEADINGS, map(_cells, overviews_of(store, run_ids[:_SHOWN])))
    if len(run_ids) > _SHOWN:
        click.echo(f"... and {len(run_ids) - _SHOWN:,} more")


def _cells(row: Overview) -> list[str | Text]:
    return [
        row.run_id,
        console.status_text(row.status),
        row.agent or "",
        str(row.turns),
        console.moment(row.started_at),
    ]
