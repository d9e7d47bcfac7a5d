"""The verb that looks after letters: what transactional tools want delivered, and nobody has delivered yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict

import click
from rich.text import Text

from agentor.cli import console
from agentor.cli.options import Verb, debug_option, json_option, store_option
from agentor.cli.plain import one_line
from agentor.cli.stores import existing_store
from agentor.cli.wording import counted, typed
from agentor.engine import clock
from agentor.engine.store.protocol import Store
from agentor.engine.store.transacting import ShowsLetters, WaitingLetter
from agentor.errors import ConfigError, StoreError

_HEADINGS = ("run", "key", "kind", "attempts", "due", "error")


@click.command(
    cls=Verb,
    short_help="List the letters that are not delivered yet.",
    epilog="agentor outbox\nagentor outbox --json --store runs.db\nagentor outbox --retry KEY\nagentor outbox --drop KEY",
)
@click.option("--retry", "retried", metavar="KEY", multiple=True, help="Make this letter due now.")
@click.option(
    "--drop", "dropped", metavar="KEY", multiple=True, help="Give this letter up for good."
)
@store_option()
@json_option
@debug_option
def outbox(
    retried: Sequence[str], dropped: Sequence[str], store_path: str | None, as_json: bool
) -> None:
    """List the letters of transactional tools that are not delivered yet, oldest first.

    With --retry or --drop these are done first, and what is left is listed; exit code 1, and no list but as JSON, if a
    letter of that key is not there, or cannot be retried since it is being delivered.
    """
    with existing_store(store_path) as store:
        if not isinstance(store, ShowsLetters):
            raise ConfigError(
                "only a SQLite store has an outbox; name another store with --store PATH"
            )
        waiting = _missed(store.retry_letter, retried)
        gone = _missed(store.drop_letter, dropped)
        letters = store.letters()
    if as_json or not (waiting or gone):
        _tell(letters, as_json)
    for key in waiting:
        click.echo(f"There is no letter {key!r}, or it is being delivered now.", err=True)
    for key in gone:
        click.echo(f"There is no letter {key!r}.", err=True)
    if waiting or gone:
        click.get_current_context().exit(1)


def tell_letters_stay(
    store: Store, run_ids: Collection[str], where: str, *, all_others: bool = False
) -> int | None:
    """Say on standard error which letters of these runs do not go where the runs go; how many, None if nobody knows.
    `all_others`: also those of runs that are deleted, or not among these for another reason."""
    if not isinstance(store, ShowsLetters) or not (run_ids or all_others):
        return 0
    try:
        letters = store.letters()
    except StoreError as error:  # the file is damaged
        click.echo(
            one_line(f"Which letters are not delivered cannot be read: {error}", 1000), err=True
        )
        return None
    own = sum(letter.run_id in run_ids for letter in letters)
    others = len(letters) - own if all_others else 0
    count = own + others
    if count:
        one = count == 1
        whose = "this run" if len(run_ids) == 1 else "these runs"
        of = f"({others:,} of runs that are deleted or damaged)" if others else f"of {whose}"
        click.echo(
            f"{counted(count, 'letter')} {of} "
            f"{'is' if one else 'are'} not delivered yet and {'stays' if one else 'stay'} {where}: {typed('outbox')}",
            err=True,
        )
    return count


def _missed(act: Callable[[str], bool], keys: Sequence[str]) -> list[str]:
    return [key for key in keys if not act(key)]


def _tell(letters: Sequence[WaitingLetter], as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(letter) for letter in letters])
    elif not letters:
        click.echo("Every letter is delivered.")
    else:
        console.print_table(_HEADINGS, map(_cells, letters))


def _cells(letter: WaitingLetter) -> list[str | Text]:
    uncut = (Text(one_line(text, 1000)) for text in (letter.run_id, letter.key))
    return [*uncut, letter.kind, str(letter.attempts), _due(letter), letter.error or ""]


def _due(letter: WaitingLetter) -> str:
    if letter.is_claimed:
        return "being delivered"
    return "now" if letter.due_at <= clock.now() else console.moment(letter.due_at)


def undelivered(store: object, run_id: str) -> int:
    """How many letters of a run are not delivered yet."""
    return len(store.letters(run_id)) if isinstance(store, ShowsLetters) else 0
