"""The file that `--junit` names: of this crash test, or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from agentor.errors import ConfigError


def make_way(junit: Path | None) -> None:
    """See that it can be written, before the work, not after it; and leave nothing there of an earlier one."""
    if junit is None:
        return
    if not os.path.isdir(os.path.dirname(os.path.realpath(junit))):
        raise ConfigError(f"--junit {str(junit)!r}: there is no such directory")
    try:
        if not junit.exists() or junit.is_file():  # a pipe is opened once
            junit.open("wb").close()
            if not junit.is_symlink():  # as /dev/stdout is
                with contextlib.suppress(OSError):  # an empty one tells nothing wrong, either
                    junit.unlink()
    except OSError as error:
        raise _unwritable(junit, error) from error


def written(junit: Path | None, xml: str) -> ConfigError | None:
    """Write it; what to raise when all else has been printed, if that could not be done after all."""
    if junit is None:
        return None
    try:
        junit.write_text(xml, "utf-8")
    except OSError as error:
        return _unwritable(junit, error)
    return None


def _unwritable(junit: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"--junit {str(junit)!r} cannot be written ({error.strerror}); name another file"
    )
