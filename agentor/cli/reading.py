"""The verbs that only look: `runs` and `show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from agentor.cli import console
from agentor.cli.choosing import may_have
from agentor.cli.holding import who
from agentor.cli.options import (
    Verb,
    WholeNumber,
    debug_option,
    full_option,
    json_option,
    store_option,
)
from agentor.cli.overview import (
    DAMAGED,
    STANDINGS,
    STATUSES,
    ListsRows,
    Overview,
    as_tree,
    attended,
    overview,
    overview_of_row,
    overviews_of,
)
from agentor.cli.plain import exact, one_line
from agentor.cli.posting import undelivered
from agentor.cli.stores import existing_store
from agentor.cli.timeline import call_text, timeline, tokens, what_resume_would_do
from agentor.cli.wording import counted, typed
from agentor.engine import clock
from agentor.engine.events import FORK, Event
from agentor.engine.replay import RunState, replay
from agentor.engine.store.protocol import Store, check_run_id
from agentor.engine.store.summary import UNFINISHED
from agentor.errors import ConfigError, RunNotFoundError

SHOWN = 50  # runs in a list for people
HEADINGS = ("run", "status", "worker", "agent", "turns", "tokens", "started", "took", "forked from")


@click.command(
    cls=Verb,
    epilog="agentor runs\nagentor runs --tree\nagentor runs --status failed --agent support\n"
    "agentor runs --store runs/ --limit 5 --json",
)
@store_option()
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    metavar="N",
    help=f"Only the newest N.  [default: {SHOWN}; all with --json]",
)
@click.option(
    "--status",
    type=click.Choice((*STATUSES, *STANDINGS, DAMAGED)),
    metavar="STATUS",
    help=f"Only runs of this status: {', '.join(STATUSES)}; or of the unfinished those that are {' or '.join(STANDINGS)}; "
    f"or, of a directory of files, {DAMAGED}.",
)
@click.option("--agent", metavar="NAME", help="Only runs of the agent of this name.")
@click.option("--tree", is_flag=True, help="Put each fork under the run it was forked from.")
@json_option
@debug_option
def runs(
    store_path: str | None,
    limit: int | None,
    status: str | None,
    agent: str | None,
    tree: bool,
    as_json: bool,
) -> None:
    """List the runs of a store, newest last.

    Of those without an end, "running" ones are being worked on (by which process is in the column "worker"), "queued" ones
    wait for a worker, and "unfinished" ones are nobody's: `agentor resume` or a worker goes on with them.
    """
    with existing_store(store_path) as store:
        limit = limit or (None if as_json else SHOWN)
        rows, more = _asked_for(store, limit, status, agent)
    if as_json:
        console.print_json([row.to_dict() for row in rows])
        _tell_of_more(more)
        return
    if not rows:
        asked = status or agent
        click.echo("There is no such run." if asked else "There is no run in this store yet.")
        return
    lines = as_tree(rows) if tree else (("", row) for row in rows)
    console.print_table(HEADINGS, (_cells(row, branch) for branch, row in lines))
    _tell_of_more(more)


def _tell_of_more(more: int | None) -> None:
    """`more` is None where nobody has counted them."""
    if more == 0:
        return
    told = "1 older run is" if more == 1 else f"{'More' if more is None else more} older runs are"
    click.echo(f"{told} not shown (--limit).", err=True)


def _asked_for(
    store: Store, limit: int | None, status: str | None, agent: str | None
) -> tuple[list[Overview], int | None]:
    """The newest of the runs asked for, newest last, with who works on them, and how many there are besides."""
    if status not in STANDINGS:
        rows, more = _newest(store, limit, status, agent)
        return [attended(store, row) for row in rows], more
    unfinished, _ = _newest(store, None, UNFINISHED, agent)
    attended_rows = (attended(store, row) for row in unfinished)
    return _last([row for row in attended_rows if row.standing == status], limit)


def _last(rows: list[Overview], limit: int | None) -> tuple[list[Overview], int]:
    shown = rows if limit is None else rows[-limit:]
    return shown, len(rows) - len(shown)


def _newest(
    store: Store, limit: int | None, status: str | None, agent: str | None
) -> tuple[list[Overview], int | None]:
    if not isinstance(store, ListsRows):
        return _newest_read(store, limit, status, agent)
    if status == DAMAGED:
        raise ConfigError(
            "this store lists its runs without reading their logs, so it cannot tell which are damaged: "
            "`agentor verify` reads them and does"
        )
    one_more = None if limit is None else limit + 1
    rows = store.runs(limit=one_more, newest=True, status=status, agent=agent)
    shown, more = _last([overview_of_row(row) for row in rows], limit)
    if not more or limit is None:
        return shown, 0
    return shown, None if status or agent else store.counts()["runs"] - limit


def _newest_read(
    store: Store, limit: int | None, status: str | None, agent: str | None
) -> tuple[list[Overview], int]:
    """As `_newest`, where only reading the logs tells. All of them, if that is what it takes to find the runs."""
    known = store.list_runs()
    looked_at = known if status or agent or limit is None else known[-limit:]
    passed_over = len(known) - len(looked_at)
    if status not in (None, DAMAGED):  # damage may stand anywhere in a log
        looked_at = may_have(store, looked_at, [status])
    rows = list(overviews_of(store, console.with_progress(looked_at, "reading runs")))
    # Whose a damaged run is, nobody knows.
    agents = (None, agent) if status == DAMAGED else (agent,)
    found = [
        row
        for row in rows
        if status in (None, row.status) and (agent is None or row.agent in agents)
    ]
    shown, more = _last(found, limit)
    return shown, passed_over + more


def _cells(row: Overview, branch: str = "") -> list[str | Text]:
    return [
        Text(branch + one_line(row.run_id, 128)),
        console.status_text(row.standing),
        _worker(row),
        row.agent or "",
        str(row.turns),
        f"{row.usage.total_tokens:,}",
        console.moment(row.started_at),
        row.took(clock.now()),
        row.forked_from or "",
    ]


def _worker(row: Overview) -> str:
    return "" if row.worker is None else who(row.worker)


@click.command(
    cls=Verb,
    short_help="Show one run as a timeline.",
    epilog="agentor show RUN\nagentor show RUN --full\nagentor show RUN --events --store runs/",
)
@click.argument("run_id", metavar="RUN")
@click.option("--events", "raw", is_flag=True, help="Print the log itself, one JSON event a line.")
@full_option
@store_option()
@json_option
@debug_option
def show(run_id: str, raw: bool, full: bool, store_path: str | None, as_json: bool) -> None:
    """Show one run: what was asked, said, called and answered, and what a resume would do.

    Long texts are shortened, and say by how much; --full, --events and --json have them whole.
    """
    with existing_store(store_path) as store:
        log = _load(store, run_id)
        row = None if raw else attended(store, overview(run_id, log))
        letters = undelivered(store, run_id)
    if row is None:
        for event in log:
            click.echo(event.to_json())
        return
    state = replay(log, run_id)
    resume, doubts = _resume(row, state, log), _in_doubt(row, state)
    if as_json:
        log_as_dicts = [event.to_dict() for event in log]
        told = {"resume": resume, "in_doubt": doubts, "letters": letters, "events": log_as_dicts}
        console.print_json({**row.to_dict(), **told})
        return
    _print_run(row, log, resume, full)
    console.print_facts([("in doubt", _doubt_in_words(doubt)) for doubt in doubts])
    if letters:
        click.echo(f"outbox    {counted(letters, 'letter')} not delivered yet: {typed('outbox')}")


def _resume(row: Overview, state: RunState, log: list[Event]) -> str:
    if row.worker is not None:
        return f"is refused while {row.worker.owner.split('/')[0]} works on it"
    return what_resume_would_do(state, log)


def _in_doubt(row: Overview, state: RunState) -> list[dict[str, Any]]:
    """The calls of which nobody knows what became, with the keys by which that can be found out."""
    batch = state.batch
    if batch is None or row.worker is not None:
        return []
    return [
        {
            "call_id": call.call_id,
            "name": call.name,
            "args": batch.args_of(call),
            "idempotency_key": batch.key_of(row.run_id, call),
        }
        for call in batch.in_doubt
    ]


def _doubt_in_words(doubt: Mapping[str, Any]) -> str:
    call = exact(call_text(doubt["name"], doubt["args"]))
    return f"{exact(doubt['call_id'])}, key {doubt['idempotency_key']}: {call}"


def _load(store: Store, run_id: str) -> list[Event]:
    log = store.load(check_run_id(run_id))
    if not log:
        raise RunNotFoundError(run_id)
    return log


def _lineage(row: Overview, log: list[Event]) -> str:
    """The whole line, from the first run down, where there is more of it than a parent."""
    forks = [event.forked_from for event in log if event.type == FORK and event.forked_from]
    return " → ".join([*forks, row.run_id]) if len(forks) > 1 else ""


def _print_run(row: Overview, log: list[Event], resume: str, full: bool) -> None:
    at = f" at seq {row.forked_at}" if row.forked_at else ""
    console.print_facts(
        [
            ("run", row.run_id),
            ("status", row.standing),
            ("worker", _worker(row)),
            ("agent", " · ".join(filter(None, [row.agent, row.model]))),
            ("started", console.moment(row.started_at)),
            ("took", row.took(clock.now())),
            (
                "cost",
                " · ".join(
                    filter(
                        None,
                        [f"{row.turns} turn{'' if row.turns == 1 else 's'}", tokens(row.usage)],
                    )
                ),
            ),
            ("parent", f"{row.forked_from}{at}" if row.forked_from else ""),
            ("lineage", _lineage(row, log)),
        ]
    )
    click.echo()
    console.print_timeline(timeline(log), full)
    click.echo()
    console.print_facts([("resume", resume)])
