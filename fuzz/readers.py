"""Everything that reads bytes from outside, as functions of bytes: whatever comes, a clear error or a sound value.

Each target raises only if there is a bug: an exception of the wrong type, or a value that breaks further on. Hypothesis
feeds them in the tests, `python -m fuzz.coverage` with coverage as its guide, and the corpus of past finds always.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from agentor import AgentorError, FileStore, SQLiteStore
from agentor.engine import strict_json
from agentor.engine.arguments import parse_arguments
from agentor.engine.asking import _read as reply_of
from agentor.engine.events import Event
from agentor.engine.replay import replay, verify
from agentor.engine.reply import BrokenReply, ReplyReader
from agentor.engine.request import build_request
from agentor.engine.sse import EventDecoder
from agentor.errors import LogCorruptError, StoreError
from agentor.testing.checker import check_messages

_PAGE: Final = 4096


def event(data: bytes) -> None:
    """One line of a log."""
    try:
        read = Event.from_json(data)
    except ValueError:
        return
    _check_event(read)


def event_dict(data: bytes) -> None:
    """An event from JSON that somebody else has parsed."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        read = Event.from_dict(value)
    except ValueError:
        return
    _check_events([read])


def log(data: bytes) -> None:
    """A run's JSONL file."""
    with tempfile.TemporaryDirectory(prefix="agentor-fuzz-") as directory:
        store = FileStore(directory)
        Path(directory, "run.jsonl").write_bytes(data)
        try:
            events = store.load("run")
        except StoreError:
            return
        _check_events(events)
        store.append("run", Event("message", text="more"))
        again = store.load("run")
        assert again[:-1] == events
        assert again[-1].text == "more"


def server_events(data: bytes) -> None:
    """Server-sent events, which mean the same however they are cut."""
    whole = EventDecoder()
    expected = [*whole.feed(data), *whole.close()]
    for size in (1, 3):
        decoder, found = EventDecoder(), []
        for start in range(0, len(data), size):
            found += decoder.feed(data[start : start + size])
        assert [*found, *decoder.close()] == expected


def reply(data: bytes) -> None:
    """The body of a provider's answer, in two pieces: a reply that can be recorded, or what is wrong with it."""
    reader = ReplyReader(["get_weather"])
    try:
        reader.feed(data[: len(data) // 2])
        reader.feed(data[len(data) // 2 :])
        reader.end()
        response = reader.response()
    except BrokenReply:
        return
    generation = Event("generation", **reply_of(response))
    start = Event("run_start", messages=[{"role": "user", "content": "Hello"}])
    _check_events([start, generation])


def arguments(data: bytes) -> None:
    """The arguments of a tool call."""
    args, problem = parse_arguments(data.decode("utf-8", "surrogateescape"))
    assert isinstance(args, dict)
    assert problem is None or not args
    assert strict_json.loads(strict_json.dumps(args)) == args


def database(data: bytes) -> None:
    """An SQLite file with damaged bytes: pairs of a place (two bytes) and what is there (one byte)."""
    with tempfile.TemporaryDirectory(prefix="agentor-fuzz-") as directory:
        _open(Path(directory, "runs.db"), _damaged(data, range(len(_sound_database()))))


def rows(data: bytes) -> None:
    """The same, with damage only where rows are kept: few bytes of a small file, and so hardly ever met by chance."""
    with tempfile.TemporaryDirectory(prefix="agentor-fuzz-") as directory:
        _open(Path(directory, "runs.db"), _damaged(data, _places_of_rows()))


def _open(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        with SQLiteStore(path, busy_timeout_s=0.1) as store:
            _use(store)
    except AgentorError:
        pass


def _use(store: SQLiteStore) -> None:
    looks = (
        *(store.integrity_check, store.list_runs, store.runs, store.letters),
        *(lambda: store.load("run"), lambda: list(store.tail(timeout=0))),
        *(lambda: store.holder("run"), lambda: store.asked_by("run", "cancel")),
        lambda: store.runs_asked("cancel"),
    )
    for look in looks:
        try:
            look()
        except AgentorError:
            continue
    try:
        store.append("run", Event("message", text="more"))
        store.fork("run", "fork")
    except AgentorError:
        return
    _check_events(store.load("run"))


def _damaged(data: bytes, places: Sequence[int]) -> bytes:
    content = bytearray(_sound_database())
    for start in range(0, len(data) - 2, 3):
        place = int.from_bytes(data[start : start + 2], "big")
        content[places[place % len(places)]] = data[start + 2]
    return bytes(content)


@cache
def _places_of_rows() -> list[int]:
    """Whatever is not zero, except where the schema stands."""
    content = _sound_database()
    pages = [range(start, start + _PAGE) for start in range(0, len(content), _PAGE)]
    of_rows = [page for page in pages if b"CREATE " not in content[page.start : page.stop]]
    return [place for page in of_rows for place in page if content[place]]


@cache
def _sound_database() -> bytes:
    with tempfile.TemporaryDirectory(prefix="agentor-fuzz-") as directory:
        path = Path(directory, "runs.db")
        with SQLiteStore(path) as store:
            for content in ("Hello", "And?"):
                store.append(
                    "run", Event("run_start", messages=[{"role": "user", "content": content}])
                )
            store.append("other", Event("run_start", agent="agent", model="model", messages=[]))
            store.append("other", Event("run_end", status="failed", error="broken"))
            store.acquire("other", "owner", 1e9)
            store.ask("run", "cancel", by="somebody")
        return path.read_bytes()


def _check_event(read: Event) -> None:
    again = Event.from_json(read.to_json())
    assert again == read
    _check_events([read])


def _check_events(events: list[Event]) -> None:
    """What can be read can be folded, or is refused as damaged; and what it would send is legal."""
    try:
        state = replay(events)
    except LogCorruptError:
        return
    verify(events)
    messages = build_request(state.transcript)
    if messages:
        breaches = check_messages(
            [*messages, {"role": "user", "content": "And then?"}], allow=_keys(messages)
        )
        assert not breaches, breaches


def _keys(messages: list[dict[str, Any]]) -> set[str]:
    """Provider fields are the provider's business, so whatever keys there are may be there."""
    keys = {key for message in messages for key in message}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return keys | {key for call in calls for key in call}


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (event, event_dict, log, server_events, reply, arguments, database, rows)
}
