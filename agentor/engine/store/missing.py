"""A store that may not be made or opened here, or cannot be: an agent that names it can be loaded, and used with another one."""

from __future__ import annotations

import os
from typing import NoReturn

from agentor.engine.events import Event
from agentor.engine.store.protocol import Lease
from agentor.engine.store.transacting import Transaction
from agentor.errors import AgentorError, ConfigError


class MissingStore:
    """Refuses whatever is asked of it, with the error that `refuse` raises: a `ConfigError`, or why it could not be opened.

    It has the verbs that an agent asks for when it is built: whether the store that takes its place has them is looked
    at when that is known.
    """

    def __init__(self, path: str, why: AgentorError | None = None) -> None:
        self.path = path
        self._why = why  # it could not be opened

    @property
    def is_directory(self) -> bool:
        """Whether the path names a store of one file per run."""
        return self.path.endswith(("/", os.sep)) or os.path.isdir(self.path)

    def refuse(self) -> NoReturn:
        if self._why is not None:
            raise self._why
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
