"""A store that may not be made or opened here: an agent that names it can be loaded, and used with another one."""

from __future__ import annotations

import os
from typing import NoReturn

from agentor.engine.events import Event
from agentor.engine.store.protocol import Lease
from agentor.engine.store.transacting import Transaction
from agentor.errors import ConfigError


class MissingStore:
    """Refuses whatever is asked of it, with the `ConfigError` that `refuse` raises.

    It has the verbs that an agent asks for when it is built: whether the store that takes its place has them is looked
    at when that is known.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def is_directory(self) -> bool:
        """Whether the path names a store of one file per run."""
        return self.path.endswith(("/", os.sep)) or os.path.isdir(self.path)

    def refuse(self) -> NoReturn:
        if os.path.lexists(self.path):
            raise ConfigError(f"the store at {self.path!r} is not to be opened here")
        raise ConfigError(
            f"there is no store at {self.path!r}; name one with --store PATH, or set AGENTOR_STORE"
        )

    def append(self, run_id: str, event: Event) -> None:
        self.refuse()

    def load(self, run_id: str) -> list[Event]:
        self.refuse()

    def list_runs(self) -> list[str]:
        self.refuse()

    def transact(
        self, run_id: str, lease: Lease | None = None, limit_s: float = 5.0
    ) -> Transaction:
        self.refuse()
