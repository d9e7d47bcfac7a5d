"""Questions to a run of the FileStore: a directory beside the lock, one small file per question.

A question is asked for as long as its file is there. What is in it says by whom, and proves that the asking was done with:
a file without it is what somebody left who failed or died, and whoever asks next begins anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentor.engine import clock
from agentor.engine.store.file_opening import opened, put, sync_directory, write_at
from agentor.engine.store.file_reading import check_file
from agentor.engine.store.protocol import check_asker
from agentor.errors import AgentorError


class FileSignals:
    """`<directory>/<run_id>.asked/<kind>`, which says when it was asked and by whom."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ask(
        self, run_id: str, kind: str, by: str | None, busy: Callable[[float], AgentorError]
    ) -> None:
        asker = check_asker(by)
        place = self._place(run_id)
        while True:
            place.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # its last question has just been answered
                place.mkdir(exist_ok=True)
                with opened(place / kind, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, busy) as (file, _):
                    self._ask(place / kind, file, asker)
                return

    def _ask(self, path: Path, file: int, asker: str | None) -> None:
        standing = os.pread(file, os.fstat(file).st_size, 0)
        is_asked = _question_in(standing) is not None
        try:
            if is_asked:
                # Once more, for its sync may have failed: after that another one brings nothing to the disk.
                put(file, 0, standing)
                os.fsync(file)
            else:
                question = {"asked_at": clock.now(), "by": asker}
                write_at(file, 0, json.dumps(question).encode())
            self._bring_to_disk(path.parent)
        except OSError:
            if not is_asked:  # else somebody was told that it is
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    def asked(self, run_id: str) -> list[str]:
        try:
            return sorted(os.listdir(self._place(run_id)))
        except FileNotFoundError:
            return []

    def asked_by(self, run_id: str, kind: str) -> str | None:
        path = self._place(run_id) / kind
        try:
            check_file(path)
            content = path.read_bytes()
        except FileNotFoundError:  # answered since
            return None
        by = (_question_in(content) or {}).get("by")
        return by if isinstance(by, str) else None

    def answered(self, run_id: str, kind: str) -> None:
        place = self._place(run_id)
        try:
            (place / kind).unlink()
        except FileNotFoundError:
            return
        with contextlib.suppress(FileNotFoundError):  # others have taken it away since
            sync_directory(place)  # an answer that is undone would make a question of it again
        with contextlib.suppress(OSError):  # other questions are in it, or it is gone already
            place.rmdir()

    def forget(self, run_id: str) -> None:
        """The run goes, and for good what was asked of it."""
        for kind in self.asked(run_id):
            self.answered(run_id, kind)
        with contextlib.suppress(OSError):  # mostly, it is not there
            self._place(run_id).rmdir()

    def _bring_to_disk(self, place: Path) -> None:
        for directory in (place, *place.parents[:2]):  # any of them may be new, too
            with contextlib.suppress(FileNotFoundError):  # answered meanwhile
                sync_directory(directory)

    def _place(self, run_id: str) -> Path:
        return self._directory / f"{run_id}.asked"


def _question_in(content: bytes) -> dict[str, Any] | None:
    """None in what somebody left who failed or died as they asked."""
    try:
        question = json.loads(content)
    except ValueError:
        return None
    return question if isinstance(question, dict) else None
