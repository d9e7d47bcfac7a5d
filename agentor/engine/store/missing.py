"""A store that is not there, where none may be made: an agent that names it can be loaded, and used with another one."""

from __future__ import annotations

from typing import NoReturn

from agentor.engine.events import Event
from agentor.errors import ConfigError


class MissingStore:
    """Refuses whatever is asked of it, with the `ConfigError` that `refuse` raises."""

    def __init__(self, path: str) -> None:
        self.path = path

    def refuse(self) -> NoReturn:
        raise ConfigError(
            f"there is no store at {self.path!r}; name one with --store PATH, or set AGENTOR_STORE"
        )

    def append(self, run_id: str, event: Event) -> None:
        self.refuse()

    def load(self, run_id: str) -> list[Event]:
        self.refuse()

    def list_runs(self) -> list[str]:
        self.refuse()
