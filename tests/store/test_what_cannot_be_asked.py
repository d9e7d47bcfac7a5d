"""Arguments of a wrong type or size: one clear refusal, the same in every bundled store, and nothing is changed."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine.events import Event, RunStatus, Usage
from agentor.engine.store import FileStore, MemoryStore, SQLiteStore, fork_run
from agentor.errors import ConfigError, SequenceConflictError, StoreError

TOO_LARGE = [2**63, 2**70, 10**400, 10**5000, -(2**70), -(10**5000)]
NO_COUNTS = [True, 1.0, 1.5, "2", b"2", float("nan"), [], *TOO_LARGE]
NO_NUMBERS = [True, "30d", b"1", float("nan"), [], 10**400, 10**5000]


@pytest.fixture(params=["sqlite", "files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = {
        "sqlite": lambda: SQLiteStore(tmp_path / "runs.db"),
        "files": lambda: FileStore(tmp_path / "runs"),
        "memory": MemoryStore,
    }
    store: Any = made[request.param]()
    store.append_many(
        "run", [Event("run_start"), Event("message"), Event("run_end", status="completed")]
    )
    yield store
    store.close()


@pytest.mark.parametrize("at", NO_COUNTS, ids=lambda at: type(at).__name__)
def test_a_fork_at_what_is_no_seq_is_a_config_error(store: Any, at: Any) -> None:
    for fork in (store.fork, lambda *names, at: fork_run(store, *names, at=at)):
        with pytest.raises(ConfigError, match=r"at=|at seq"):
            fork("run", "fork", at=at)
    assert store.list_runs() == ["run"]


@pytest.mark.parametrize("after", NO_COUNTS, ids=lambda after: type(after).__name__)
def test_a_tail_after_what_is_no_seq_is_a_config_error(store: Any, after: Any) -> None:
    for run_id in ("run", None):
        for follow in (store.tail, store.atail):
            with pytest.raises(ConfigError, match="after"):
                follow(run_id, after=after)


@pytest.mark.parametrize("timeout", NO_NUMBERS, ids=lambda timeout: type(timeout).__name__)
def test_a_tail_for_what_is_no_time_is_a_config_error(store: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        store.tail("run", timeout=timeout)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("keep", value) for value in (True, 1.0, "2", [], -1, -(10**5000))),
        *(("older_than", value) for value in (*NO_NUMBERS, datetime.fromisoformat("0001-01-01"))),
        *(("status", value) for value in (5, True, b"failed", [None], ["failed", 5], [[]])),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_a_prune_by_what_is_none_of_it_is_a_config_error_that_names_it(
    store: Any, name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        store.prune(**{name: value})
    assert store.list_runs() == ["run"]


def chosen(store: Any, status: Any) -> list[str]:
    """The runs of a status, by each verb that takes one."""
    pruned: list[str] = store.prune(status=status, dry_run=True).run_ids
    if isinstance(store, SQLiteStore) and isinstance(status, str):
        assert store.list_runs(status=status) == pruned
        assert [row.run_id for row in store.runs(status=status)] == pruned
        assert store.list_runs(status=status, agent="nobody") == []
    return pruned


@pytest.mark.parametrize("status", ["running", "queued", "damaged", "unfinised", "Failed", ""])
def test_a_status_that_no_run_can_have_is_a_config_error_that_says_which_there_are(
    store: Any, status: str
) -> None:
    with pytest.raises(ConfigError, match=r"unfinished") as refused:
        store.prune(status=["completed", status])
    assert repr(status) in str(refused.value)
    assert store.list_runs() == ["run"]
    if isinstance(store, SQLiteStore):
        for look in (store.list_runs, store.runs):
            with pytest.raises(ConfigError, match=r"unfinished"):
                look(status=status, limit=1)


def test_every_status_that_a_run_can_have_can_be_asked_for(store: Any) -> None:
    for status in ("unfinished", *get_args(RunStatus)):
        assert chosen(store, status) == ["run"] * (status == "completed")


def test_a_status_that_we_do_not_know_is_found_as_long_as_a_log_has_it(store: Any) -> None:
    store.append("theirs", Event("run_end", status="timed out"))
    assert chosen(store, "timed out") == ["theirs"]
    assert chosen(store, ["timed out", "failed"]) == ["theirs"]
    store.delete("theirs")
    with pytest.raises(ConfigError, match="timed out"):
        chosen(store, "timed out")


@pytest.mark.parametrize("since", NO_NUMBERS, ids=lambda since: type(since).__name__)
def test_a_list_since_what_is_no_time_is_a_config_error(tmp_path: Path, since: Any) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store, pytest.raises(ConfigError, match="since"):
        store.list_runs(since=since)


@pytest.mark.parametrize(
    "limit", [True, -1, 1.0, *TOO_LARGE], ids=lambda limit: type(limit).__name__
)
def test_a_list_of_so_many_is_a_config_error(tmp_path: Path, limit: Any) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store, pytest.raises(ConfigError, match="limit"):
        store.list_runs(limit=limit)


def test_a_time_that_no_sqlite_integer_can_hold_is_a_time(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert store.list_runs(since=2**63) == []


def test_whoever_asks_is_kept_in_valid_unicode_and_is_text(store: Any) -> None:
    for nobody in (5, b"Ada", ["Ada"]):
        with pytest.raises(ConfigError, match="by="):
            store.ask("run", "cancel", by=nobody)
    assert store.asked("run") == []
    store.ask("run", "cancel", by="Ada \ud800")
    assert store.asked_by("run", "cancel") == "Ada \ufffd"


NO_EVENTS: list[Any] = [
    *(None, "message", 5, b"", {"type": "message"}, [], Event, object()),
    *(Event("message", seq=seq) for seq in ("4", 4.0, True, [4], {})),
    *(Event(kind) for kind in (None, 5, b"message", ["message"])),
    *(Event("generation", usage=usage) for usage in (3, {"input_tokens": 1}, "none")),
    *(Event("message", **{name: 5}) for name in ("text", "calls", "messages", "status", "queued")),
    *(Event("generation", calls=calls) for calls in ("x", [5], {"a": 1})),
    *(Event("message", **{name: "1"}) for name in ("kept", "turn", "started_at", "forked_at")),
    *(Event("message", extra=extra) for extra in ({"type": 5}, {"text": []}, "x", 5)),
]  # fmt: skip


@pytest.mark.parametrize("event", NO_EVENTS, ids=range(len(NO_EVENTS)))
def test_what_is_no_event_is_a_value_or_type_error_and_nothing_is_written(
    store: Any, event: Any
) -> None:
    before = store.load("run")
    for append in (
        store.append,
        lambda run_id, each: store.append_many(run_id, [Event("message"), each]),
    ):
        for run_id in ("run", "new"):
            with pytest.raises((ValueError, TypeError)) as refused:
                append(run_id, event)
            assert not isinstance(refused.value, StoreError)
    assert (store.load("run"), store.list_runs()) == (before, ["run"])
    store.append("run", Event("message", text="after"))


FIELDS = [field.name for field in dataclasses.fields(Event)]
VALUES = st.sampled_from(
    [None, "a", "", 0, 1, -1, 2**70, 1.5, True, [], ["a"], [{}], {}, {"a": 1}, Usage(1, 2, 3), b"b"]
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_what_append_has_acknowledged_can_be_loaded(fields: dict[str, Any]) -> None:
    store = MemoryStore()
    with contextlib.suppress(ValueError, TypeError, SequenceConflictError):
        store.append("run", Event(**{"type": "message", **fields}))
    for loaded in store.load("run"):
        assert loaded.seq == 1


NO_TEXTS = [None, 5, True, b"Ada", ["Ada"], {}, "", "\ud800"]


def test_a_lease_for_nobody_or_no_time_is_a_config_error_and_leaves_the_run_free(
    store: Any,
) -> None:
    for owner in NO_TEXTS:
        with pytest.raises(ConfigError, match="owner="):
            store.acquire("run", owner, 30.0)
    for ttl_s in (None, *(ttl for ttl in NO_NUMBERS if ttl == ttl)):
        with pytest.raises(ConfigError, match="ttl_s="):
            store.acquire("run", "me", ttl_s)
    for seq in (None, {}, *NO_COUNTS):
        with pytest.raises(ConfigError, match="seq="):
            store.peek("run", seq)
    assert store.holder("run") is None


@pytest.mark.parametrize("seq", [0, -1, -2, 4, 2**63 - 1])
def test_a_run_has_no_event_before_its_first_or_after_its_last(store: Any, seq: int) -> None:
    assert store.peek("run", seq) == (3, None)


@pytest.mark.parametrize("name", ["lease_ttl_s", "busy_timeout_s"])
@pytest.mark.parametrize("value", [None, *NO_NUMBERS], ids=lambda value: type(value).__name__)
def test_a_setting_that_is_no_time_is_a_config_error_and_makes_no_file(
    tmp_path: Path, name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        SQLiteStore(tmp_path / "runs.db", **{name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NO_TEXTS, ids=repr)
def test_what_is_no_name_is_that_of_no_letter(tmp_path: Path, name: Any) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert not store.drop_letter(name)
        assert not store.retry_letter(name)
        assert store.letters(name) == []
