"""The models that carry on with a run when the one before is rate-limited or down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentor.engine.models import as_model
from agentor.engine.responses import Model
from agentor.errors import ConfigError


class Fallbacks:
    """One named by text lives at the agent's own endpoint, and is made once; another host needs a model object."""

    def __init__(self, endpoint: Mapping[str, Any]) -> None:
        self._endpoint = endpoint
        self.by_name: dict[str, Model] = {}

    def of(self, models: Sequence[str | Model]) -> list[Model]:
        """The models, in the order given. `ConfigError` for a bare name, which is no list of names."""
        if isinstance(models, str):
            raise ConfigError("fallback_models is a list of models; put the name into one")
        return [self._named(m) if isinstance(m, str) else as_model(m) for m in models]

    def _named(self, name: str) -> Model:
        if name not in self.by_name:
            self.by_name[name] = as_model(name, **self._endpoint)
        return self.by_name[name]
