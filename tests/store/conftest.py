"""What tests of stores share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is brought to the disk from here on."""
    names: list[str] = []
    fsync = os.fsync

    def counting(descriptor: int) -> None:
        fsync(descriptor)
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", counting)
    return names
