"""FileStore: what a crash, a bad disk, an editor or Agentor 0.1 can leave in a JSONL file, and what is made of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_children import Child

from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.store import FileStore, fork_run
from agentor.engine.store.jsonl import read_jsonl
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LeaseLostError,
    LogCorruptError,
    RunExistsError,
    RunNotFoundError,
    SequenceConflictError,
    StoreError,
)


def said(text: str, seq: int | None = None) -> Event:
    return Event("message", text=text, seq=seq)


def texts(store: FileStore, run_id: str = "run") -> list[str | None]:
    return [event.text for event in store.load(run_id)]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "runs")
    for seq in (1, 2, 3):
        store.append("run", said(f"{seq}", seq))
    return store


def test_the_file_is_one_event_a_line_with_its_line_number(store: FileStore) -> None:
    lines = store.path("run").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]
    assert store.path("run") == store.directory / "run.jsonl"


def test_files_are_for_their_owner_only(store: FileStore) -> None:
    fork_run(store, "run", "fork")
    store.acquire("run", "me", 30)
    files = [*store.directory.glob("*.jsonl"), *(store.directory / ".locks").iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    store.close()


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_last_line_is_ignored_and_the_next_event_takes_its_place(
    store: FileStore, cut: int
) -> None:
    path = store.path("run")
    line = said("torn, but whole up to here", 4).to_json().encode() + b"\n"
    path.write_bytes(path.read_bytes() + line[:cut])
    assert texts(store) == ["1", "2", "3"]
    store.append("run", said("4", 4))
    assert texts(FileStore(store.directory)) == ["1", "2", "3", "4"]
    assert path.read_bytes().count(b"\n") == 4


def test_a_last_line_that_lacks_only_its_newline_is_an_event(store: FileStore) -> None:
    path = store.path("run")
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert texts(store) == ["1", "2", "3"]
    store.append("run", said("4", 4))
    assert texts(store) == ["1", "2", "3", "4"]


def test_a_crash_in_the_middle_of_several_lines_leaves_the_first_of_them(store: FileStore) -> None:
    path = store.path("run")
    before = path.stat().st_size
    store.append_many("run", [said("4"), said("5"), said("6")])
    content = path.read_bytes()
    for size in range(before, len(content) + 1):
        path.write_bytes(content[:size])
        left = texts(FileStore(store.directory))
        assert left == ["1", "2", "3", "4", "5", "6"][: len(left)]
        assert len(left) >= 3


def damaged(store: FileStore, change: Callable[[list[bytes]], Any]) -> LogCorruptError:
    path = store.path("run")
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))
    with pytest.raises(LogCorruptError) as caught:
        FileStore(store.directory).load("run")
    with pytest.raises(LogCorruptError):
        FileStore(store.directory).append("run", said("more"))
    return caught.value


@pytest.mark.parametrize(
    ("change", "seq"),
    [
        (lambda lines: lines.pop(0), 1),
        (lambda lines: lines.pop(1), 2),
        (lambda lines: lines.insert(1, lines[1]), 3),
        (lambda lines: lines.__setitem__(1, lines[1][:9] + b"\n"), 2),
        (lambda lines: lines.__setitem__(1, b"\xff" + lines[1][1:]), 2),
        (lambda lines: lines.__setitem__(2, b"[]\n"), 3),
        (lambda lines: lines.__setitem__(2, b'{"seq": 3}\n'), 3),
        (lambda lines: lines.__setitem__(0, b"\0" * 20 + b"\n"), 1),
    ],
)
def test_a_hole_in_the_middle_names_run_and_seq(
    store: FileStore, change: Callable[[list[bytes]], Any], seq: int
) -> None:
    store.append("other", said("fine"))
    error = damaged(store, change)
    assert (error.run_id, error.seq) == ("run", seq)
    assert texts(store, "other") == ["fine"]


@given(st.integers(0), st.integers(1, 255))
def test_no_flipped_byte_loses_an_event_silently(place: int, change: int) -> None:
    bodies = [said(f"text {seq}", seq).to_json() for seq in range(1, 5)]
    content = bytearray("".join(f"{body}\n" for body in bodies).encode())
    content[place % len(content)] ^= change
    last_line = len(content) - len(bodies[-1]) - 1
    try:
        events = read_jsonl("run", bytes(content)).events
    except LogCorruptError:
        return
    # What is left: a letter of a text that is now another, or a newline at the very end that is gone.
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len(events) == 4 or (len(events) == 3 and place % len(content) >= last_line)


OLD_LINES = [
    '{"type": "run_start", "agent": "old", "model": "m", "messages": [{"role": "user", "content": "hi"}]}',
    '{"type": "generation", "turn": 1, "messages": [{"role": "user", "content": "hi"}], "text": "hello"}',
    '{"type": "message", "text": "hello"}',
]


def old_store(tmp_path: Path, content: str) -> FileStore:
    store = FileStore(tmp_path)
    store.path("old").write_text(content)
    return store


def test_a_log_of_agentor_0_1_gets_its_seqs_from_its_lines(tmp_path: Path) -> None:
    store = old_store(tmp_path, "".join(f"{line}\n" for line in OLD_LINES))
    assert [event.seq for event in store.load("old")] == [1, 2, 3]
    assert store.load("old")[1].messages == [{"role": "user", "content": "hi"}]
    store.append("old", Event("run_end", status="completed", seq=4))
    assert [event.seq for event in FileStore(tmp_path).load("old")] == [1, 2, 3, 4]
    *copied, last = store.load(fork_run(store, "old"))
    assert copied == store.load("old")
    assert last.forked_at == 4


def test_a_line_that_0_1_glued_to_a_torn_one_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = OLD_LINES
    store = old_store(tmp_path, f"{first}\n{second[:30]}{second}\n{third}\n")
    with caplog.at_level(logging.WARNING, "agentor.store"):
        loaded = store.load("old")
    assert [event.type for event in loaded] == ["run_start", "message"]
    assert [event.seq for event in loaded] == [1, 2]
    assert "line 2 cannot be read" in caplog.text
    store.append("old", said("ours", 3))
    assert [event.seq for event in FileStore(tmp_path).load("old")] == [1, 2, 3]


def test_damage_to_the_old_part_is_seen_once_ours_follows(tmp_path: Path) -> None:
    store = old_store(tmp_path, "".join(f"{line}\n" for line in OLD_LINES))
    store.append("old", said("ours", 4))
    content = store.path("old").read_bytes()
    store.path("old").write_bytes(b"#" + content[1:])
    with pytest.raises(LogCorruptError):
        FileStore(tmp_path).load("old")


def test_a_file_without_one_readable_line_is_damaged(tmp_path: Path) -> None:
    store = old_store(tmp_path, "not json\nnot json either\n")
    with pytest.raises(LogCorruptError):
        store.load("old")


def test_an_append_of_another_process_is_a_conflict_for_who_named_the_same_seq(
    store: FileStore,
) -> None:
    other = FileStore(store.directory)
    other.append("run", said("theirs", 4))
    with pytest.raises(SequenceConflictError):
        store.append("run", said("ours", 4))
    store.append("run", said("ours", 5))
    other.append("run", said("whatever comes next"))
    assert texts(store)[3:] == ["theirs", "ours", "whatever comes next"]


def test_an_append_reads_the_file_only_the_first_time(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = FileStore(store.directory)
    again.append("run", said("4", 4))
    monkeypatch.setattr("agentor.engine.store.file.read_jsonl", None)
    again.append("run", said("5", 5))
    again.append_many("run", [said("6", 6), said("7", 7)])


def test_each_append_is_one_sync_and_a_new_file_one_more(tmp_path: Path, synced: list[str]) -> None:
    store = FileStore(tmp_path / "runs")
    store.append("run", said("1"))
    assert synced == ["run.jsonl", "runs"]
    store.append_many("run", [said("2"), said("3"), said("4")])
    assert synced[2:] == ["run.jsonl"]
    fork_run(store, "run", "fork")  # of lines that are on the disk, as this store knows
    assert synced[3].startswith(".fork.")
    assert synced[4:] == ["runs"]


def test_a_question_and_its_answer_are_on_the_disk_with_their_names(
    store: FileStore, synced: list[str]
) -> None:
    store.ask("run", "cancel")
    assert synced == ["cancel", "run.asked", ".locks", store.directory.name]
    store.answered("run", "cancel")
    assert synced[4:] == ["run.asked"]
    store.answered("run", "cancel")
    assert len(synced) == 5


def fail_after(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """A disk with room for `budget` more bytes."""
    pwrite = os.pwrite
    left = [budget]

    def short(descriptor: int, content: bytes, offset: int) -> int:
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        written = pwrite(descriptor, content[: left[0]], offset)
        left[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", short)


@pytest.mark.parametrize("budget", [0, 1, 30, 60, 100])
def test_a_full_disk_is_told_and_the_half_written_line_is_cut_off(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    before = store.path("run").read_bytes()
    with monkeypatch.context() as patch:
        fail_after(patch, budget)
        with pytest.raises(StoreError, match=r"run\.jsonl: No space left"):
            store.append_many("run", [said("4" * 40, 4), said("5" * 40, 5)])
    assert store.path("run").read_bytes() == before
    store.append("run", said("4", 4))
    assert texts(store) == ["1", "2", "3", "4"]


def test_a_fork_on_a_full_disk_leaves_nothing(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 50)
        with pytest.raises(StoreError):
            fork_run(store, "run", "fork")
    assert [file.name for file in store.directory.iterdir()] == ["run.jsonl"]
    fork_run(store, "run", "fork")


def test_a_limit_of_the_system_on_file_size_is_a_store_error(tmp_path: Path) -> None:
    code = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        store = FileStore(sys.argv[1])
        store.append("run", Event("message", text="fits", seq=1))
        try:
            store.append("run", Event("message", text="x" * 2000, seq=2))
        except errors.StoreError as error:
            say(error)
        store.append("run", Event("message", text="fits too", seq=2))
    """
    assert "File too large" in Child(code, tmp_path).end()
    assert texts(FileStore(tmp_path)) == ["fits", "fits too"]


HALF_A_LINE = b'{"type":"message","te'


@pytest.mark.parametrize("left_over", [b"", b"\n", HALF_A_LINE, b" \n" + HALF_A_LINE])
@pytest.mark.parametrize("links", [True, False])
def test_what_a_crash_left_before_the_first_event_is_no_run_and_holds_no_id(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, left_over: bytes, links: bool
) -> None:
    for run_id in ("forked", "appended", "deleted"):
        store.path(run_id).write_bytes(left_over)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    store.ask("deleted", "cancel", "Bob")
    assert store.load("forked") == []
    assert store.list_runs() == ["run"]
    assert [found.split()[0] for found in store.integrity_check()] == (
        ["appended.jsonl", "deleted.jsonl", "forked.jsonl"] if left_over else []
    )
    with pytest.raises(RunNotFoundError):
        store.delete("deleted")
    assert store.asked("deleted") == ["cancel"]  # as before any run of that id
    with pytest.raises(RunNotFoundError):
        fork_run(store, "forked", "new")
    fork_run(store, "run", "forked")
    store.append("appended", said("first", 1))
    assert (texts(store, "forked")[:3], texts(store, "appended")) == (["1", "2", "3"], ["first"])
    with pytest.raises(RunExistsError):
        fork_run(store, "run", "forked")


LINES = [b"", b" ", HALF_A_LINE, said("1", 1).to_json().encode(), said("2", 2).to_json().encode()]


@given(st.lists(st.sampled_from(LINES), max_size=3).map(b"\n".join))
def test_all_agree_on_what_is_a_run(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = FileStore(directory)
        store.path("run").write_bytes(content)
        store.append("source", said("1", 1))
        try:
            is_run = bool(store.load("run"))
        except LogCorruptError:
            is_run = True  # and damaged
        assert ("run" in store.list_runs()) == is_run
        if is_run:
            with pytest.raises(RunExistsError):
                fork_run(store, "source", "run")
            assert store.path("run").read_bytes() == content
            assert store.delete("run").events > 0
        else:
            with pytest.raises(RunNotFoundError):
                store.delete("run")
            fork_run(store, "source", "run")


NOT_JSON = Event("message", extra={"x": float("nan")})


@pytest.mark.parametrize(
    ("event", "error"), [(said("3", 3), SequenceConflictError), (NOT_JSON, ValueError)]
)
def test_an_append_that_is_refused_leaves_no_file(
    store: FileStore, event: Event, error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.append("new", event)
    assert os.listdir(store.directory) == ["run.jsonl"]


def test_nor_does_one_whose_run_was_deleted_while_it_waited(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(store.path("run"), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    def deleted(_: float) -> None:
        store.path("run").unlink()
        os.close(descriptor)

    monkeypatch.setattr(clock, "pause", deleted)
    with pytest.raises(SequenceConflictError):
        store.append("run", said("4", 4))
    assert os.listdir(store.directory) == []


def test_nor_does_one_that_fails(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 20)
        with pytest.raises(StoreError):
            store.append("new", said("1", 1))
    assert os.listdir(store.directory) == ["run.jsonl"]


def no_links(source: Path, target: Path) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_fork_is_never_written_over_a_file_that_appears_meanwhile(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_text("somebody else's\n")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(RunExistsError):
        fork_run(store, "run", "fork")
    assert store.path("fork").read_text() == "somebody else's\n"
    assert sorted(file.name for file in store.directory.iterdir()) == ["fork.jsonl", "run.jsonl"]


def test_a_fork_works_on_a_file_system_without_hard_links(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    assert len(store.load(fork_run(store, "run", "fork"))) == 4
    with pytest.raises(RunExistsError):
        fork_run(store, "run", "fork")
    assert sorted(file.name for file in store.directory.iterdir()) == ["fork.jsonl", "run.jsonl"]


def test_a_path_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    path.write_text("a file")
    with pytest.raises(StoreError, match=str(path)):
        FileStore(path)


@pytest.mark.parametrize("name", ["a\0b", "\0", "runs\ud800", b"a\0b"])
def test_a_directory_that_nothing_can_be_named_is_refused_and_made_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="choose another path"):
        FileStore(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["runs", b"runs", b"runs\xff", Path("runs")])
def test_a_directory_is_named_by_text_bytes_or_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    store = FileStore(name)
    store.append("run", said("1"))
    assert store.directory == tmp_path / os.fsdecode(name)
    assert texts(store) == ["1"]


NO_NUMBERS = [None, True, "2", b"2", [], {}, 10**400]


def test_a_lease_for_nobody_or_no_time_and_a_peek_at_no_seq_are_config_errors(
    store: FileStore,
) -> None:
    for owner in (None, 5, True, b"Ada", ["Ada"], {}, "", "\ud800"):
        with pytest.raises(ConfigError, match="owner="):
            store.acquire("run", owner, 30.0)  # type: ignore[arg-type]
    for ttl_s in NO_NUMBERS:
        with pytest.raises(ConfigError, match="ttl_s="):
            store.acquire("run", "me", ttl_s)  # type: ignore[arg-type]
    assert store.holder("run") is None
    for seq in (*NO_NUMBERS, 1.5, float("nan"), 2**63):
        with pytest.raises(ConfigError, match="seq="):
            store.peek("run", seq)  # type: ignore[arg-type]


@pytest.mark.parametrize("seq", [0, -1, -2, -3, -4, 4, 2**63 - 1])
def test_a_run_has_no_event_before_its_first_or_after_its_last(store: FileStore, seq: int) -> None:
    assert store.peek("run", seq) == (3, None)


def test_a_run_that_is_a_directory_is_a_store_error(store: FileStore) -> None:
    store.path("dir").mkdir()
    with pytest.raises(StoreError, match=r"dir\.jsonl"):
        store.load("dir")
    with pytest.raises(StoreError, match=r"dir\.jsonl"):
        store.append("dir", said("x"))


@pytest.fixture
def unreadable(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the system refuse to read the run "locked" for a reason: tests may run as somebody who may read all."""

    def refuse(reason: int) -> None:
        store.append("locked", Event("run_end", status="completed"))
        read, opened = Path.read_bytes, os.open

        def read_bytes(path: Path) -> bytes:
            check(path)
            return read(path)

        def open_(path: Any, *arguments: Any, **more: Any) -> int:
            check(path)
            return opened(path, *arguments, **more)

        def check(path: Any) -> None:
            if path == store.path("locked"):
                raise OSError(reason, os.strerror(reason), str(path))

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        monkeypatch.setattr(os, "open", open_)

    return refuse


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP])
def test_a_file_that_cannot_be_read_concerns_its_own_run_only(
    store: FileStore, unreadable: Callable[[int], None], reason: int
) -> None:
    unreadable(reason)
    store.append("run", Event("run_end", status="completed"))
    with pytest.raises(LogCorruptError, match=os.strerror(reason)) as caught:
        store.load("locked")
    assert caught.value.run_id == "locked"
    assert "saved" not in str(caught.value)
    assert set(store.list_runs()) == {"run", "locked"}
    assert store.prune(keep=0).run_ids == ["run"]
    assert store.list_runs() == ["locked"]


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENOMEM])
def test_a_process_that_can_open_no_more_files_says_nothing_of_the_run(
    store: FileStore, unreadable: Callable[[int], None], reason: int
) -> None:
    unreadable(reason)
    with pytest.raises(StoreError, match="could not be read") as caught:
        store.load("locked")
    assert not isinstance(caught.value, LogCorruptError)


def test_a_directory_that_cannot_be_listed_is_not_said_to_have_saved_nothing(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match=r"runs: Permission denied\. It could not be read"):
        store.list_runs()


def test_what_is_no_file_is_listed_and_what_holds_nothing_is_not(store: FileStore) -> None:
    store.path("dir").mkdir()
    store.path("loop").symlink_to(store.path("loop"))
    store.path("nowhere").symlink_to(store.directory / "missing")
    store.path("empty").touch()
    assert sorted(store.list_runs()) == ["dir", "loop", "run"]
    for run_id in ("dir", "loop"):
        with pytest.raises(LogCorruptError, match="cannot be read"):
            store.load(run_id)


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)  # which may not be long


def _link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to a pipe": _link_to_a_pipe,
    "a link to a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a link to an empty device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", NO_FILES)
def test_a_pipe_a_socket_or_a_device_among_the_runs_keeps_nobody_waiting_and_is_one_damaged_run(
    store: FileStore, what: str
) -> None:
    store.append("run", Event("run_end", status="completed"))
    NO_FILES[what](store.path("odd"))
    for look in (
        store.load,
        store.read,
        store.status_at_end,
        lambda run_id: fork_run(store, run_id),
    ):
        with pytest.raises(LogCorruptError, match=r"odd\.jsonl cannot be read: it is no file"):
            look("odd")
    with pytest.raises(LogCorruptError):
        next(iter(store.tail("odd", timeout=0)))
    for change in (
        lambda: store.append("odd", said("x")),
        lambda: store.create_run("odd", [said("x")]),
        lambda: store.delete("odd"),
    ):
        with pytest.raises(StoreError, match="it is no file"):
            change()
    with pytest.raises(RunExistsError):
        store.fork("run", "odd")
    assert store.path("odd").lstat()  # it is not ours to take away
    assert store.integrity_check() == []
    assert set(store.list_runs()) == {"run", "odd"}
    assert store.prune(keep=0).run_ids == ["run"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", NO_FILES)
def test_a_pipe_a_socket_or_a_device_in_the_place_of_a_lock_or_a_question_keeps_nobody_waiting(
    store: FileStore, what: str
) -> None:
    asked = store.directory / ".locks" / "run.asked"
    asked.mkdir(parents=True)
    NO_FILES[what](asked / "cancel")
    NO_FILES[what](store.directory / ".locks" / "run.lock")
    for use in (
        lambda: store.acquire("run", "me", 30),
        lambda: store.holder("run"),
        lambda: store.append("run", said("4")),
        lambda: store.ask("run", "cancel"),
        lambda: store.asked_by("run", "cancel"),
    ):
        with pytest.raises(StoreError, match="it is no file"):
            use()
    store.append("another", said("1"))


def locks(store: FileStore) -> list[str]:
    return sorted(os.listdir(store.directory / ".locks"))


def test_of_two_that_delete_one_run_one_is_told_that_there_is_none(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    removing = store._locks.removing

    def late(run_id: str) -> Any:
        FileStore(store.directory).delete(run_id)
        return removing(run_id)

    monkeypatch.setattr(store._locks, "removing", late)
    with pytest.raises(RunNotFoundError):
        store.delete("run")
    assert (store.list_runs(), locks(store)) == ([], [])


def test_no_lock_file_is_left_when_a_run_is_let_go(store: FileStore) -> None:
    for _ in range(2):
        lease = store.acquire("run", "me", 30)
        assert locks(store) == ["run.lock"]
        store.append_many("run", [said("mine")], lease)
        store.release(lease)
        assert locks(store) == []
    store.acquire("run", "me", 30)
    store.close()
    assert locks(store) == []
    store.prune(status="unfinished")
    assert (store.list_runs(), locks(store)) == ([], [])


def test_nothing_is_left_of_questions_that_are_answered(store: FileStore) -> None:
    for kind in ("cancel", "pause"):
        store.ask("run", kind)
    store.answered("run", "cancel")
    assert (store.asked("run"), locks(store)) == (["pause"], ["run.asked"])
    store.answered("run", "pause")
    store.answered("run", "pause")
    assert (store.asked("run"), locks(store)) == ([], [])


def test_a_question_is_not_lost_when_the_one_before_is_answered_at_that_moment(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ask("run", "pause")
    opened, pending = os.open, ["pause"]

    def late(path: Any, *arguments: Any) -> int:
        if str(path).endswith("cancel") and pending:
            store.answered("run", pending.pop())
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", late)
    store.ask("run", "cancel")
    assert store.asked("run") == ["cancel"]


def test_what_others_have_deleted_is_forgotten_at_the_next_look(store: FileStore) -> None:
    store.append("other", said("1"))
    other = FileStore(store.directory)
    assert other.list_runs() == ["run", "other"]
    other.load("run")
    store.delete("run")
    assert other.list_runs() == ["other"]
    assert (set(other._ages), set(other._ends._known)) == ({"other"}, set())


def unlink_lock(store: FileStore) -> None:
    os.unlink(store.directory / ".locks" / "run.lock")


def remove_locks(store: FileStore) -> None:
    shutil.rmtree(store.directory / ".locks")


def replace_locks(store: FileStore) -> None:
    shutil.copytree(store.directory / ".locks", store.directory / "copy")
    remove_locks(store)
    os.rename(store.directory / "copy", store.directory / ".locks")


TAKING_IT_AWAY = [unlink_lock, remove_locks, replace_locks]


@pytest.mark.parametrize("take_away", TAKING_IT_AWAY)
@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("use", ["renew", "append"])
def test_whoever_holds_a_run_is_told_that_its_lock_file_was_taken_away(
    store: FileStore, take_away: Callable[[FileStore], None], is_taken: bool, use: str
) -> None:
    lease, other = store.acquire("run", "me", 30), FileStore(store.directory)
    take_away(store)
    theirs = other.acquire("run", "you", 30) if is_taken else None
    with pytest.raises(LeaseLostError) as lost:
        store.renew(lease) if use == "renew" else store.append_many("run", [said("4", 4)], lease)
    assert lost.value.owner == ("you" if is_taken else None)
    assert texts(store) == ["1", "2", "3"]
    if theirs is not None:
        other.append_many("run", [said("theirs", 4)], other.renew(theirs))
    other.close()


@pytest.mark.parametrize("take_away", TAKING_IT_AWAY)
def test_whoever_asks_again_for_a_run_whose_lock_file_was_taken_away_gets_it_only_if_it_is_free(
    store: FileStore, take_away: Callable[[FileStore], None]
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    lease, other = store.acquire("run", "me", 30), FileStore(store.directory)
    take_away(store)
    theirs = other.acquire("run", "you", 30)
    for owner in ("me", "somebody else here"):
        with pytest.raises(LeaseHeldError):
            store.acquire("run", owner, 30)
    other.release(theirs)
    again = store.acquire("run", "me", 30)
    assert again.term > lease.term
    store.release(lease)  # which is nobody's by now
    store.append_many("run", [said("mine")], store.renew(again))
    store.release(again)
    assert (locks(store), len(os.listdir("/proc/self/fd"))) == ([], before)


OWNERS = ["w", "w" * 440, "\N{GRINNING FACE}" * 100, "w" * 5_000]


@pytest.mark.parametrize("owner", OWNERS, ids=len)
@pytest.mark.parametrize("before", [None, *OWNERS], ids=lambda before: before and len(before))
def test_a_lease_is_one_however_long_the_names_of_its_holder_and_of_a_dead_one_are(
    store: FileStore, owner: str, before: str | None
) -> None:
    lock_file = store.directory / ".locks" / "run.lock"
    if before is not None:
        lease = store.acquire("run", before, 30)
        left_by_the_dead = lock_file.read_bytes()
        store.release(lease)
        lock_file.write_bytes(left_by_the_dead)
    lease = store.acquire("run", owner, 30)
    elsewhere = FileStore(store.directory)
    held = elsewhere.holder("run")
    assert held is not None
    assert held.owner == owner
    for use in (
        lambda: elsewhere.append("run", said("4")),
        lambda: elsewhere.acquire("run", "me", 30),
    ):
        with pytest.raises(LeaseHeldError) as caught:
            use()
        assert caught.value.owner == owner
    store.release(store.renew(lease))
    assert elsewhere.holder("run") is None
    elsewhere.append("run", said("4"))


@pytest.mark.parametrize("content", [b'{"term": 1, "own', b"[]", b"\xff", b"5"])
def test_whether_a_run_is_held_whose_lock_file_cannot_be_read_is_told_by_the_lock(
    store: FileStore, content: bytes
) -> None:
    lease = store.acquire("run", "me", 30)
    (store.directory / ".locks" / "run.lock").write_bytes(content)
    elsewhere = FileStore(store.directory)
    for use in (
        lambda: elsewhere.append("run", said("4")),
        lambda: elsewhere.delete("run"),
        lambda: elsewhere.acquire("run", "you", 30),
    ):
        with pytest.raises(LeaseHeldError):
            use()
    store.release(lease)
    (store.directory / ".locks" / "run.lock").write_bytes(content)  # as a crash leaves it
    elsewhere.append("run", said("4"))
    assert elsewhere.acquire("run", "you", 30).owner == "you"


def test_a_lock_file_of_somebody_else_is_left_to_him(store: FileStore) -> None:
    """Whoever removed ours by hand has let another take the run: his lock is not ours to take away."""
    lease = store.acquire("run", "me", 30)
    os.unlink(store.directory / ".locks" / "run.lock")
    other = FileStore(store.directory)
    theirs = other.acquire("run", "you", 30)
    store.release(lease)
    assert locks(store) == ["run.lock"]
    with pytest.raises(LeaseHeldError):
        FileStore(store.directory).acquire("run", "third", 30)
    other.release(theirs)
    assert locks(store) == []


def test_whoever_waited_for_a_lock_file_that_was_taken_away_begins_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He has opened the file, it is taken away and another made, and then the old one is his to lock."""
    first, second, third = store, FileStore(store.directory), FileStore(store.directory)
    lease = first.acquire("run", "first", 30)
    opened = os.open
    held: list[Any] = []

    def late(path: Any, *arguments: Any) -> int:
        descriptor = opened(path, *arguments)
        if str(path).endswith(".lock") and not held:
            held.append(lease)
            first.release(lease)
            held.append(second.acquire("run", "second", 30))
        return descriptor

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(LeaseHeldError) as caught:
        third.acquire("run", "third", 30)
    assert caught.value.owner == "second"
    for each in (first, second, third):
        each.close()


def test_a_lock_file_that_another_user_keeps_is_a_lease_that_is_held(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileStore(store.directory).acquire("run", "him", 30)
    opened = os.open

    def refuse(path: Any, *arguments: Any) -> int:
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    holder = store.holder("run")
    assert holder is not None
    assert "another user" in holder.owner
    for use in (lambda: store.acquire("run", "me", 30), lambda: store.append("run", said("mine"))):
        with pytest.raises(LeaseHeldError, match="another user"):
            use()
    assert store.prune(status="unfinished").held == ["run"]
    (store.directory / ".locks" / "run.lock").unlink()
    with pytest.raises(StoreError, match="Permission denied"):
        store.acquire("run", "me", 30)


def test_a_file_that_is_followed_is_closed_when_nobody_follows_it(store: FileStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    following = store.tail("run", timeout=0)
    assert next(following).seq == 1
    assert len(os.listdir("/proc/self/fd")) == before + 1
    following.close()  # type: ignore[attr-defined]
    del following
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tail_of_a_file_that_is_written_anew_in_place_ends(store: FileStore) -> None:
    following = store.tail("run", timeout=30)
    assert [next(following).seq for _ in range(3)] == [1, 2, 3]
    store.path("run").write_text('{"type":"message","seq":1}\n')
    with pytest.raises(RunNotFoundError):
        next(following)


@pytest.mark.parametrize("content", ["{}\n", "{"])
def test_files_that_are_no_runs_are_neither_listed_nor_checked(
    store: FileStore, content: str
) -> None:
    for name in ("notes.txt", ".hidden.jsonl", ".run.abc.tmp", "bad id.jsonl"):
        (store.directory / name).write_text(content)
    store.path("loop").symlink_to(store.path("loop"))
    assert store.list_runs() == ["loop", "run"]
    assert store.integrity_check() == []


def test_an_append_does_not_move_a_run_in_the_list(store: FileStore) -> None:
    store.append("a", said("1"))
    store.append("run", said("4"))
    assert store.list_runs() == ["run", "a"]


def _append(store: FileStore) -> None:
    store.append("run", said("4", 4))


def _append_to_a_new_run(store: FileStore) -> None:
    store.append("new", said("1", 1))


@pytest.mark.parametrize(
    "use",
    [
        _append,
        _append_to_a_new_run,
        lambda store: store.load("run"),
        lambda store: store.list_runs(),
        lambda store: fork_run(store, "run"),
        lambda store: store.delete("run"),
        lambda store: store.prune(keep=0),
        lambda store: store.acquire("other", "me", 30),
        lambda store: store.ask("run", "cancel"),
    ],
)
def test_whoever_uses_a_store_whose_directory_is_gone_is_told_so_and_makes_no_other(
    store: FileStore, use: Callable[[FileStore], Any]
) -> None:
    shutil.rmtree(store.directory)
    with pytest.raises(StoreError, match="the directory is gone"):
        use(store)
    assert not store.directory.exists()


def test_a_worker_is_told_that_the_directory_is_gone_and_not_that_another_has_its_run(
    store: FileStore,
) -> None:
    lease = store.acquire("run", "me", 30)
    shutil.rmtree(store.directory)
    with pytest.raises(StoreError, match="the directory is gone"):
        store.append_many("run", [said("4", 4)], lease)
    with pytest.raises(StoreError, match="the directory is gone"):
        store.renew(lease)
    store.release(lease)
    store.close()
    assert not store.directory.exists()
