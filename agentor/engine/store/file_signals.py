"""Questions to a run of the FileStore: a directory beside the lock, one small file per question.

A file is made by one call that fails if it is there, and taken away by one call, so nothing needs a lock and a reader
never sees half a question.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from agentor.engine import clock
from agentor.engine.store.file_opening import sync_directory
from agentor.engine.store.protocol import check_asker


class FileSignals:
    """`<directory>/<run_id>.asked/<kind>`, which says when it was asked and by whom."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ask(self, run_id: str, kind: str, by: str | None) -> None:
        asker = check_asker(by)
        with contextlib.suppress(FileExistsError):
            descriptor = self._new(self._place(run_id), kind)
            try:
                os.write(descriptor, json.dumps({"asked_at": clock.now(), "by": asker}).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            place = self._place(run_id)
            for directory in (place, *place.parents[:2]):  # any of them may be new, too
                with contextlib.suppress(FileNotFoundError):  # answered meanwhile
                    sync_directory(directory)

    def asked(self, run_id: str) -> list[str]:
        try:
            return sorted(os.listdir(self._place(run_id)))
        except FileNotFoundError:
            return []

    def asked_by(self, run_id: str, kind: str) -> str | None:
        try:
            asked = json.loads((self._place(run_id) / kind).read_bytes())
        except (FileNotFoundError, ValueError):  # answered since, or torn by a crash
            return None
        by = asked.get("by") if isinstance(asked, dict) else None
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

    def _new(self, place: Path, kind: str) -> int:
        """The open file of a new question; `FileExistsError` if it is asked already."""
        while True:
            place.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # its last question has just been answered
                place.mkdir(exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                return os.open(place / kind, flags, 0o600)

    def _place(self, run_id: str) -> Path:
        return self._directory / f"{run_id}.asked"
