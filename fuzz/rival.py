"""Somebody else's program on the same file: it takes the write lock and gives it back later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from agentor.engine.store import sqlite_guard as guard

if TYPE_CHECKING:
    from fuzz.world import World


class Rival:
    """Holds the lock for some seconds. A worker that waits for it inside SQLite makes that time pass."""

    def __init__(self, world: World, seconds: float) -> None:
        self._world = world
        self._left_s = seconds
        with world.disk.spared():
            self.connection = apsw.Connection(
                world.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=world.disk.vfs_name
            )
            self.connection.execute("BEGIN IMMEDIATE")
        world.faults["locked"] += 1
        world.disk.on_sleep = self._waited
        world.after(seconds, self.leave)

    def _waited(self, seconds: float) -> None:
        self._left_s -= seconds
        if self._left_s <= 0:
            self.leave()

    def leave(self) -> None:
        if self._world.rival is self:
            self._world.rival = None
            self._world.disk.on_sleep = None
            guard.let_go(self.connection)
