"""The verb `verify`: replays every run and asks the file itself whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import click

from agentor.cli import console
from agentor.cli.options import Verb, debug_option, json_option, store_option
from agentor.cli.plain import one_line
from agentor.cli.stores import DEFAULT_STORE, existing_store, looked_at
from agentor.cli.wording import advised
from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.replay import verify as verify_log
from agentor.engine.store.copying import unfinished_copy
from agentor.engine.store.protocol import Store, check_run_id
from agentor.errors import ConfigError, LogCorruptError, RunNotFoundError, StoreError

_NAMED_MAX = 20
_TOO_LARGE = "a number is too large for a float: it is read as infinity, and written as 1e999"
_OF_SQLITE = ("SQLite", "it cannot be opened")


@runtime_checkable
class ChecksItself(Protocol):
    """A store that can say what is wrong with its file as a whole; [] if nothing is."""

    def integrity_check(self) -> list[str]: ...


@runtime_checkable
class FindsRuns(Protocol):
    """A store that can name the runs of a file that is too damaged to be listed."""

    def readable_runs(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Problem:
    run_id: str | None  # None: it concerns the store as a whole
    problem: str

    def __str__(self) -> str:
        where = "the store" if self.run_id is None else f"run {self.run_id}"
        return one_line(f"{where}: {self.problem}", 1000)


@click.command(
    cls=Verb,
    short_help="Check that every run is whole.",
    epilog="agentor verify\nagentor verify RUN --store runs/",
)
@click.argument("run_id", metavar="[RUN]", required=False)
@store_option()
@json_option
@debug_option
def verify(run_id: str | None, store_path: str | None, as_json: bool) -> None:
    """Check that every run, or RUN alone, replays to exactly what was sent and recorded.

    Looks for gaps, unreadable and unknown events, generations that were sent something else than the log says, and parts
    of a log that deny each other. A SQLite file is also put through SQLite's own integrity check; if that finds damage,
    the runs that are whole are named, and what to do with them. Exit code 1 if there is anything to tell.
    """
    try:
        with existing_store(store_path) as store:
            by_run = _verified(store, [_known(store, run_id)] if run_id else _names(store))
            if run_id and not by_run:
                raise RunNotFoundError(run_id)
            found = [problem for problems in by_run.values() for problem in problems]
            problems = found if run_id else [*found, *_of_the_store(store, found)]
    except StoreError as error:
        by_run, problems = {}, _of_a_file_that_cannot_be_opened(error, store_path or DEFAULT_STORE)
    _tell(by_run, problems, as_json)
    if problems:
        click.get_current_context().exit(1)


def _known(store: Store, run_id: str) -> str:
    if check_run_id(run_id) not in _names(store):
        raise RunNotFoundError(run_id)
    return run_id


def _names(store: Store) -> list[str]:
    """Every run; in a malformed file those that can be found."""
    try:
        return store.list_runs()
    except StoreError as error:
        if not (_is_malformed(error) and isinstance(store, FindsRuns)):
            raise
        return store.readable_runs()


def _is_malformed(error: StoreError) -> bool:
    return type(error.__cause__).__name__ == "CorruptError"  # apsw's, which is not loaded for files


def _of_a_file_that_cannot_be_opened(error: StoreError, path: str) -> list[Problem]:
    if not _is_malformed(error):
        raise error
    from agentor.engine.store.sqlite_damage import findings

    return [Problem(None, f"it cannot be opened ({error.__cause__})")] + [
        Problem(None, line) for text in findings(path) for line in text.splitlines()
    ]


def _verified(store: Store, names: Sequence[str]) -> dict[str, list[Problem]]:
    """The problems of each run. One that has been deleted since it was listed is not among them."""
    found = {
        name: _of_a_run(store, name) for name in console.with_progress(names, "verifying runs")
    }
    empty = [name for name, problems in found.items() if problems is None]
    still_listed = set(_names(store)) if empty else set()
    found |= {name: [Problem(name, "it has no event")] for name in still_listed.intersection(empty)}
    return {name: problems for name, problems in found.items() if problems is not None}


def _of_the_store(store: Store, found: list[Problem]) -> Iterator[Problem]:
    """What the store finds by itself and nobody has told yet."""
    told = tuple(f"run {problem.run_id!r} is damaged" for problem in found)
    if isinstance(store, ChecksItself):
        texts = store.integrity_check()
        yield from (
            Problem(None, line)
            for text in texts
            if not text.startswith(told)
            for line in text.splitlines()
        )


def _of_a_run(store: Store, run_id: str) -> list[Problem] | None:
    """None if there is no such run, or not one event of it."""
    try:
        log = looked_at(store, run_id)
    except LogCorruptError as damage:
        return [Problem(run_id, damage.damage)]
    except ConfigError as damage:  # no run can have this id
        return [Problem(run_id, str(damage))]
    if not log.events:
        return None
    return [*(Problem(run_id, found) for found in log.problems), *_of_a_log(run_id, log.events)]


def _of_a_log(run_id: str, log: list[Event]) -> Iterator[Problem]:
    if (copy := unfinished_copy(run_id, log)) is not None:
        yield Problem(run_id, copy.broken_off(len(log)))
    yield from (Problem(run_id, found) for found in verify_log(log, run_id))
    for event in log:
        if strict_json.has_large(event.to_dict()):
            yield Problem(run_id, f"seq {event.seq}: {_TOO_LARGE}")


def _tell(by_run: Mapping[str, list[Problem]], problems: list[Problem], as_json: bool) -> None:
    if as_json:
        console.print_json(
            {
                "ok": not problems,
                "runs": len(by_run),
                "problems": [asdict(each) for each in problems],
            }
        )
        return
    for problem in problems:
        click.echo(str(problem))
    checked = f"{len(by_run)} run{'' if len(by_run) == 1 else 's'} checked"
    bad = len({problem.run_id for problem in problems} - {None})
    found = f"{bad} with problems" if bad else "the store has problems"
    click.echo(f"{checked}: {found if problems else 'all is well'}.")
    if any(problem.problem.startswith(_OF_SQLITE) for problem in problems):
        click.echo(_advice([run_id for run_id, found in by_run.items() if not found]))


def _advice(whole: list[str]) -> str:
    if not whole:
        return "No run can be read as it was recorded: go back to a backup."
    return advised(
        "Go back to a backup, or take the runs that are whole out with `agentor export --jsonl DIR --run RUN` and into a "
        f"new store with `agentor import DIR --store NEW`. Whole: {_named(whole)}"
    )


def _named(whole: list[str]) -> str:
    told = ", ".join(one_line(run_id, 128) for run_id in whole[:_NAMED_MAX])
    return told if len(whole) <= _NAMED_MAX else f"{told} and {len(whole) - _NAMED_MAX} more"
