"""Move runs between a store and JSONL files: one file per run, `<run_id>.jsonl`, one event a line.

Such a directory is what a FileStore reads and writes, and what Agentor 0.1 wrote. Nothing is translated on the way:
ids, seqs, fields and event types that this version does not know arrive as they left. What no event can say does not, and
is told (`fidelity`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentor.commands import command
from agentor.engine.events import Event, without_repeats
from agentor.engine.replay import replay
from agentor.engine.store.copying import check_whole
from agentor.engine.store.file_reading import SUFFIX, reading
from agentor.engine.store.jsonl import read_jsonl
from agentor.engine.store.protocol import Store, check_run_id
from agentor.engine.store.whole_file import file_errors, refuse_taken, sync_directory, whole_file
from agentor.errors import (
    ConfigError,
    LeaseHeldError,
    LeaseLostError,
    LogCorruptError,
    SequenceConflictError,
    StoreError,
)
from agentor.export.adding import add_events
from agentor.export.earlier import Earlier, only_export
from agentor.export.fidelity import changes_of
from agentor.export.reading import Problem, Progress, chosen_runs, readable_runs, silent

OnConflict: TypeAlias = Literal["skip", "fail"]

_NO_JSON = (ValueError, TypeError, OverflowError)  # what a value raises that cannot be written
_LOST = "somebody has taken it over while it was written: import it again before anybody goes on with it"
_TICK_NS = 1_000  # what file systems tell apart


@dataclass(slots=True)
class Exported:
    runs: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)  # of an earlier export, and not of this one
    left: list[str] = field(default_factory=list)  # are there as well, and no export has made them
    damaged: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class Imported:
    """What became of each file, by run id."""

    imported: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)  # the store had only the beginning
    already_there: list[str] = field(default_factory=list)
    taken: list[str] = field(
        default_factory=list
    )  # the store has another run of that id: left as it is
    held: list[str] = field(default_factory=list)  # somebody works on them: left as they are
    changed: list[Problem] = field(default_factory=list)  # what did not arrive as it left
    damaged: list[Problem] = field(default_factory=list)


def export_runs(
    store: Store,
    directory: str | os.PathLike[str],
    run_ids: Sequence[str] = (),
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Write each run asked for, or all, as `<directory>/<run_id>.jsonl`; each file is whole or absent.

    A run that cannot be read is left out and named. `replace`: the files of earlier exports are replaced, and taken away
    in the end if they are not of this one, but for those of damaged runs; nothing else is. `ConfigError`, before anything
    is written: one of the files exists and may not be replaced, or the directory is the store's own. `RunNotFoundError`:
    no such run. `StoreError`: another export writes there, or the disk is full.
    """
    target = Path(directory)
    _refuse_own_directory(store, target)
    chosen = chosen_runs(store, run_ids)
    with file_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    with only_export(target):
        return _export(store, target, chosen, replace, progress)


def _export(
    store: Store, target: Path, chosen: Sequence[str], replace: bool, progress: Progress
) -> Exported:
    exported, earlier = Exported(), Earlier(target)
    files = _files_of(target, chosen, exported.damaged)
    for file in files.values():
        _check_taken(file, earlier, replace)
    earlier.save()
    for run_id, log in readable_runs(store, progress([*files], "exporting"), exported.damaged):
        try:
            content = "".join(f"{event.to_json()}\n" for event in log).encode()
        except _NO_JSON as error:
            exported.damaged.append(Problem(run_id, f"{type(error).__name__}: {error}"))
            continue
        _check_taken(files[run_id], earlier, replace)
        with earlier.writing(files[run_id], content):
            _write(files[run_id], content, replace)
        exported.runs.append(run_id)
    _date_in_order([files[run_id] for run_id in exported.runs])
    sync_directory(target)
    if replace:
        _take_away_the_rest(target, earlier, exported)
    earlier.save()
    sync_directory(target)
    return exported


def _check_taken(file: Path, earlier: Earlier, replace: bool) -> None:
    refuse_taken(file, replace=replace)
    if os.path.lexists(file):
        earlier.check(file)


def _take_away_the_rest(directory: Path, earlier: Earlier, exported: Exported) -> None:
    """Once what is new is on the disk: what earlier exports have left of other runs. Of a damaged one that may be all there is."""
    kept = {f"{run_id}{SUFFIX}" for run_id in exported.runs}
    kept |= {f"{problem.run_id}{SUFFIX}" for problem in exported.damaged}
    exported.removed = [name.removesuffix(SUFFIX) for name in earlier.take_away(kept)]
    with reading(directory):
        others = sorted(file.name for _, file in _with_content(directory) if file.name not in kept)
    exported.left = [name.removesuffix(SUFFIX) for name in others]


def _refuse_own_directory(store: Store, target: Path) -> None:
    own = getattr(store, "directory", None)
    if own is not None and os.path.exists(target) and os.path.samefile(own, target):
        raise ConfigError(f"{target} is where this store keeps its runs; choose another directory")


def _files_of(directory: Path, run_ids: Sequence[str], damaged: list[Problem]) -> dict[str, Path]:
    """Where each run goes; one with an id that no run can have is added to `damaged`."""
    files = {}
    for run_id in run_ids:
        try:
            files[run_id] = directory / f"{check_run_id(run_id)}{SUFFIX}"
        except ConfigError as error:
            damaged.append(Problem(run_id, str(error)))
    return files


def _write(path: Path, content: bytes, replace: bool) -> None:
    with whole_file(path, replace=replace) as scratch, file_errors(path):
        scratch.write_bytes(content)


def _date_in_order(paths: Sequence[Path]) -> None:
    """Let the files' times rise in the order of the runs, by which a FileStore lists them."""
    if not paths:
        return
    with file_errors(paths[-1]):
        last = paths[-1].stat().st_mtime_ns
        for age, path in enumerate(reversed(paths)):
            os.utime(path, ns=(last - age * _TICK_NS, last - age * _TICK_NS))


def log_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The JSONL files that `paths` name; of a directory those in it, oldest first. `ConfigError`: there are none."""
    return [file for path in paths for file in _files_at(Path(path))]


def _files_at(path: Path) -> list[Path]:
    if os.path.isdir(path):
        with reading(path):
            files = sorted(_with_content(path))
        if not files:
            raise ConfigError(f"there is no {SUFFIX} file with a run in {path}")
        return [file for _, file in files]
    with reading(path):
        is_there = path.exists()
    if not is_there:
        raise ConfigError(f"there is no file or directory {path}")
    if path.suffix != SUFFIX:
        out = command("export", "DIR", options=["--jsonl", "--store", str(path)])
        raise ConfigError(
            f"{path} is no {SUFFIX} file; runs of a SQLite store are moved by `{out}` and `agentor import DIR`"
        )
    return [path]


def _with_content(directory: Path) -> Iterator[tuple[int, Path]]:
    """When each log changed last, and where it is. An empty file is what a run leaves that never began."""
    for file in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # taken away while we looked
            status = file.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size:
                yield status.st_mtime_ns, file


def import_runs(
    store: Store,
    files: Sequence[Path],
    on_conflict: OnConflict = "skip",
    *,
    progress: Progress = silent,
    outcome: Imported | None = None,
) -> Imported:
    """Add the run of each file to the store, under the id that the file is named after.

    A run that the store has already is not written again; one of which it has the beginning is completed; an id
    that another run has is left alone and named, or with "fail" refuses the whole import with `StoreError` before
    anything is written. A file that cannot be read or replayed is named and the others go on. A run appears at once
    where the store can do that, else it is held while it is written; another import of the same files may be under way.
    `outcome`: an empty one to be filled, in which what was done until then stands if a `StoreError` ends it.
    """
    if on_conflict == "fail":
        _refuse_taken_ids(store, progress(files, "comparing"))
    outcome = Imported() if outcome is None else outcome
    for run_id, log, content in _readable_files(progress(files, "importing"), outcome.damaged):
        try:
            if _add(store, run_id, log, outcome):
                outcome.changed += _changed(run_id, content)
        except LeaseHeldError:
            outcome.held.append(run_id)
        except LeaseLostError:
            outcome.damaged.append(Problem(run_id, _LOST))
        except LogCorruptError as damage:
            outcome.damaged.append(Problem(run_id, f"in the store: {damage.damage}"))
        except _NO_JSON as error:  # a value that this store cannot hold
            outcome.damaged.append(Problem(run_id, f"{type(error).__name__}: {error}"))
    return outcome


def _refuse_taken_ids(store: Store, files: Any) -> None:
    taken = [
        run_id
        for run_id, log, _ in _readable_files(files, [])
        if _missing(store, run_id, log) is None
    ]
    if taken:
        shown = ", ".join(taken[:5]) + (", ..." if len(taken) > 5 else "")
        of_whom = "belongs to another run" if len(taken) == 1 else "belong to other runs"
        raise StoreError(
            f"{len(taken)} of the ids {of_whom} in this store ({shown}); nothing was imported. "
            "Import into another store, or skip these runs"
        )


def _readable_files(files: Any, damaged: list[Problem]) -> Iterator[tuple[str, list[Event], bytes]]:
    """Each run with its log and the content of its file."""
    for file in files:
        run_id = file.name.removesuffix(SUFFIX)
        try:
            content = file.read_bytes()
            yield check_run_id(run_id), _log_of(run_id, file, content, damaged), content
        except LogCorruptError as damage:
            damaged.append(Problem(run_id, damage.reason if damage.seq is None else _where(damage)))
        except (ConfigError, OSError) as error:
            damaged.append(Problem(run_id, f"{file}: {error}"))


def _where(damage: LogCorruptError) -> str:
    return f"seq {damage.seq}: {damage.reason}"


def _log_of(run_id: str, file: Path, content: bytes, damaged: list[Problem]) -> list[Event]:
    read = read_jsonl(run_id, content)
    if not read.events:
        raise LogCorruptError(run_id, None, f"there is no event in {file}")
    state = replay(read.events, run_id)
    if not state.has_start and not len(state.transcript):
        raise LogCorruptError(
            run_id, None, f"there is no run_start in {file}, so this is not the log of a run"
        )
    check_whole(run_id, read.events)
    damaged += [Problem(run_id, f"{problem} and was left out") for problem in read.problems]
    return read.events


def _add(store: Store, run_id: str, log: list[Event], outcome: Imported) -> bool:
    """Bring the store what it lacks of a run; whether it lacked anything."""
    missing = _missing(store, run_id, log)
    while missing:
        try:
            check = partial(_check_still_missing, store, run_id, log, missing)
            add_events(store, run_id, missing, is_new=len(missing) == len(log), check=check)
        except SequenceConflictError:  # by now somebody else has written there: perhaps the same
            before, missing = missing, _missing(store, run_id, log)
            if missing == before:  # or the store has reasons of its own
                missing = None
            continue
        whole = len(missing) == len(log)
        (outcome.imported if whole else outcome.completed).append(run_id)
        return True
    (outcome.taken if missing is None else outcome.already_there).append(run_id)
    return False


def _changed(run_id: str, content: bytes) -> list[Problem]:
    changes = changes_of(content)
    more = f" (and {len(changes) - 1:,} more)" if len(changes) > 1 else ""
    return [Problem(run_id, f"{change}{more}") for change in changes[:1]]


def _missing(store: Store, run_id: str, log: list[Event]) -> list[Event] | None:
    """The events that the store lacks; None if it has another run of that id."""
    there = without_repeats(store.load(run_id))
    common = min(len(there), len(log))
    return log[common:] if there[:common] == log[:common] else None


def _check_still_missing(store: Store, run_id: str, log: list[Event], missing: list[Event]) -> None:
    if _missing(store, run_id, log) != missing:
        raise SequenceConflictError(run_id, missing[0].seq)
