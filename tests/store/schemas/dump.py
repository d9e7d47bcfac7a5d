"""Write `version_N.sql`: a file as the version of this checkout leaves it, with something of everything in it."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from agentor.engine.events import Event, Usage
from agentor.engine.store import SQLiteStore, fork_run
from agentor.engine.store.sqlite_file import SCHEMA_VERSION


def fill(store: SQLiteStore) -> None:
    log = [
        Event("run_start", agent="Ada", model="m", messages=[{"role": "user", "content": "hi"}]),
        Event("message", text="two"),
        Event("message", text="three"),
        Event("generation", text="said", usage=Usage(10, 5, 15, 4, 1)),
        Event("run_end", status="completed", ended_at=99.5),
    ]
    store.append_many("done", log)
    store.append_many("gone", log)
    store.append_many("open", log[:1])
    fork_run(store, "done", "fork", at=3)
    fork_run(store, "gone", "orphan", at=2)
    store.delete("gone")
    transaction = store.transact("open")
    transaction.put("mail", '{"to": "Ada"}', "open:2:0")
    transaction.commit([]).result()
    store.acquire("open", "somebody", 0.001)
    store.ask("open", "cancel", by="Ada")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        with SQLiteStore(Path(place) / "runs.db") as store:
            fill(store)
        connection = sqlite3.connect(Path(place) / "runs.db")
        text = "\n".join(connection.iterdump())
        connection.close()
    target = Path(__file__).with_name(f"version_{SCHEMA_VERSION}.sql")
    target.write_text(text + "\n")


if __name__ == "__main__":
    main()
