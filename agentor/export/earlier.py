"""What exports have left in a directory of JSONL files, so that the next one replaces that and nothing else.

Beside its files an export keeps a list of them, a line for each with the digest of what it wrote, as `sha256sum` writes and
checks it. A file that is not in the list is somebody else's, and one that is not what the list says belongs to whoever has
gone on with the run there. A line is written before its file gets its name, so that an export that is killed leaves no
file without one. Two at once would each write a list without what the other has written, so the second is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from agentor.engine.store.file_reading import SUFFIX
from agentor.engine.store.protocol import check_run_id
from agentor.engine.store.whole_file import file_errors, whole_file
from agentor.errors import ConfigError, StoreError

LIST: Final = ".exported"
_LINE: Final = re.compile(r"([0-9a-f]{64})  (.+)")


@contextlib.contextmanager
def only_export(directory: Path) -> Iterator[None]:
    """Hold while exporting to the directory. `StoreError`: another export does, in whatever process.

    The lock is one on the directory itself, so that nothing is left of it, and it ends with the process.
    """
    with file_errors(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(
            f"{directory}: another export writes there now, so nothing was exported; "
            "wait until it has ended, or choose another directory"
        ) from None
    except OSError:
        pass  # no locks on directories there, as on some network file systems


class Earlier:
    """The list of one directory, which is there already."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._list = directory / LIST
        # By the name of the file: two while it is being replaced.
        self._digests: defaultdict[str, set[str]] = defaultdict(set)
        for digest, name in _lines(self._list):
            self._digests[name].add(digest)

    def check(self, file: Path) -> None:
        """`ConfigError` unless the file is as an export has left it, and nobody has ever worked on runs beside it."""
        if (self._directory / ".locks").exists():
            raise ConfigError(
                f"{self._directory} is a store by now, in which runs were worked on, so nothing is replaced there; "
                "choose another directory"
            )
        if not self._is_own(file):
            raise ConfigError(
                f"{file} was not made by `agentor export`, or has changed since, so it is not replaced; "
                "choose another directory, or move it away first"
            )

    @contextlib.contextmanager
    def writing(self, file: Path, content: bytes) -> Iterator[None]:
        """Say what is about to be written to a file; the block writes it."""
        digest = hashlib.sha256(content).hexdigest()
        self._digests[file.name].add(digest)
        with file_errors(self._list), open(self._list, "a", encoding="utf-8") as listed:
            listed.write(f"{digest}  {file.name}\n")
        yield
        self._digests[file.name] = {digest}

    def take_away(self, kept: Collection[str]) -> list[str]:
        """Delete what earlier exports have left under other names than those in `kept`; the names of what is gone."""
        gone = []
        for name in sorted(self._digests.keys() - set(kept)):
            file = self._directory / name
            with contextlib.suppress(ConfigError):
                self.check(file)
                with file_errors(file):
                    file.unlink()
                gone.append(name)
            del self._digests[name]
        return gone

    def save(self) -> None:
        """Write the list anew: without torn lines, and without what was taken away."""
        lines = [f"{d}  {name}\n" for name, found in self._digests.items() for d in sorted(found)]
        with whole_file(self._list, replace=True) as scratch, file_errors(self._list):
            scratch.write_text("".join(lines), "utf-8")

    def _is_own(self, file: Path) -> bool:
        if file.name not in self._digests or file.is_symlink() or not file.is_file():
            return False
        with file_errors(file):
            return hashlib.sha256(file.read_bytes()).hexdigest() in self._digests[file.name]


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Digests and file names; no line that is torn, or that names what no export writes."""
    with file_errors(path), contextlib.suppress(FileNotFoundError):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            match = _LINE.fullmatch(line)
            if match and match[2].endswith(SUFFIX):
                with contextlib.suppress(ConfigError):
                    check_run_id(match[2].removesuffix(SUFFIX))
                    yield match[1], match[2]
